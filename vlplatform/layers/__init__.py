"""Transformer encoders and decoders built from an attention spec per layer; needs torch alone."""

from vlplatform.layers.decoder import Decoder, DecoderLayer
from vlplatform.layers.encoder import Encoder, EncoderLayer
from vlplatform.layers.feed_forward import FeedForward
from vlplatform.layers.norm import UnbiasedNorm
from vlplatform.layers.position import sinusoids
from vlplatform.layers.residual import Residual
from vlplatform.layers.spec import Spec, attentions

__all__ = [
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "Residual",
    "Spec",
    "UnbiasedNorm",
    "attentions",
    "sinusoids",
]
