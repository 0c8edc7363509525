"""X-LAN: X-Linear attention in the encoder and in an LSTM decoder (Pan et al., CVPR 2020, §3.3).

Original repository: JDAI-CV/image-captioning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlp_captioning.models.base import InputSettings, Shape
from vlp_captioning.models.images import Images, Memory
from vlp_captioning.models.ranges import check_ranges
from vlp_captioning.models.recurrent import RecurrentCaptioner
from vlp_captioning.models.updown import AdditiveAttention
from vlplatform.attention.xlinear import Activation, XLinear, activation_named
from vlplatform.attention.xlinear_stack import XLinearStack
from vlplatform.decoding import DecoderState
from vlplatform.text import Vocabulary


@dataclass(frozen=True)
class XlanSettings(InputSettings):
    """Settings of X-LAN; the defaults are the authors' code, with D = 1024 in all parts.

    The rows of table 3, from the top: ``encoder_layers=0`` with ``decoder_attn=additive``; ``encoder_layers=0``; one,
    two, three blocks; four, the default; and four with ``activation=elu``.

    Attributes:
        dim: Model width D, also of the LSTM.
        feature_activation: After the map from features to D channels.
        feature_dropout: Rate.
        heads: Heads of the X-Linear blocks.
        mid: Middle width c of a head; half of its width unless given.
        encoder_layers: X-Linear blocks of the encoder; 0 leaves the features as they are (table 3, rows 1 and 2), and
            the vector for the whole is made of their mean alone.
        whole_norm: That vector, W_G of the paper's equation 10, ends with layer normalisation; not in the paper.
        decoder_attn: Attention of the LSTM to the image: the X-Linear block, or the conventional ``additive`` one of
            equation 1 (table 3, row 1).
        attention_dim: Width in which the latter adds query and features.
        activation: Of the embeddings in the blocks; the paper has ``relu``, or ``elu`` for infinite order.
        alpha: Of CELU and ELU there; null: 1.3 (the code's) and 1.
        word_activation: Of word vectors.
        word_alpha: Of CELU and ELU there; null: 1.3 and 1.
        group_norm: Embeddings end with group normalisation; not in the paper.
        gate: Gate channels, too; without it the attention weighs places alone.
        separate: Keys and values are updated apart, as in the paper's equation 8.
        dropout: Of bilinear features.
        word_dropout: Of word vectors.
        encoder_dropout: Of the encoder's attended vectors.
        update_dropout: Of its updates of keys and values.
        decoder_dropout: Of the decoder's attended vector, and of the context that goes back into the LSTM.
        output_dropout: Of the context before the vocabulary.
    """

    dim: int = 1024
    feature_activation: Literal["none", "relu", "celu", "elu"] = "celu"
    feature_dropout: float = 0.5
    heads: int = 8
    mid: int | None = None
    encoder_layers: int = 4
    whole_norm: bool = True
    decoder_attn: Literal["xlinear", "additive"] = "xlinear"
    attention_dim: int = 512
    activation: Activation = "celu"
    alpha: float | None = None
    word_activation: Activation = "celu"
    word_alpha: float | None = None
    group_norm: bool = True
    gate: bool = True
    separate: bool = False
    dropout: float = 0.1
    word_dropout: float = 0.5
    encoder_dropout: float = 0.5
    update_dropout: float = 0.3
    decoder_dropout: float = 0.5
    output_dropout: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        rates = ("dropout", "word_dropout", "encoder_dropout", "update_dropout", "decoder_dropout", "output_dropout")
        check_ranges(self, *rates, split=True, heads=1, mid=1, encoder_layers=0, attention_dim=1)


class XlanCaptioner(RecurrentCaptioner):
    """X-Linear encoder, LSTM decoder with one X-Linear block, context through a gated linear unit.

    Per word, with the whole image ṽ and its enhanced features X from the encoder::

        (h_t, c_t) = LSTM([CELU(E[y_t]) ; ṽ + ctx_{t−1}])
        ctx_t = GLU(W_c [LN(W_a [h_t ; XLinear(h_t, X)]) ; h_t])          logits = W_o ctx_t

    Where the text differs from the authors' code, whose weights are published: there ṽ and the context are joined, not
    added, and neither W_a nor its norm exist; those are not options here, the rest are settings.
    """

    name = "xlan"
    summary = "X-Linear attention encoder and attention-LSTM decoder (X-LAN)"
    Settings = XlanSettings
    default_attn = "xlinear"
    fixed_attn = True
    image_attentions = ("attention",)
    kept = ("hidden", "cell", "context")
    model_settings: XlanSettings

    def __init__(self, vocabulary: Vocabulary, shape: Shape, attn: Mapping[str, Any], model: XlanSettings) -> None:
        super().__init__(vocabulary, shape, attn, model)
        dim = model.dim
        blocks: dict[str, Any] = {
            "heads": model.heads,
            "mid": model.mid,
            "activation": model.activation,
            "alpha": model.alpha,
            "group_norm": model.group_norm,
            "gate": model.gate,
            "dropout": model.dropout,
        }
        self.encoder = XLinearStack(
            dim,
            layers=model.encoder_layers,
            block_dropout=model.encoder_dropout,
            update_dropout=model.update_dropout,
            separate=model.separate,
            norm=model.whole_norm,
            **blocks,
        )
        self.words = nn.Embedding(len(vocabulary), dim)
        self.word_activation = activation_named(model.word_activation, model.word_alpha)
        self.lstm = nn.LSTMCell(2 * dim, dim)
        additive = model.decoder_attn == "additive"
        self.attention = AdditiveAttention(dim, model.attention_dim) if additive else XLinear(dim, **blocks)
        self.attended = nn.Linear(2 * dim, dim)
        self.attended_norm = nn.LayerNorm(dim)
        self.context = nn.Linear(2 * dim, 2 * dim)
        self.output = nn.Linear(dim, len(vocabulary))

    def encode(self, images: Images) -> Memory:
        """The enhanced features, with their keys where attention is additive, and one vector for the whole."""
        images = self.seen(images)
        assert images.features is not None
        whole, tokens = self.encoder(self.features(images.features, images.mask), images.mask)
        if isinstance(self.attention, AdditiveAttention):
            return Memory((tokens, self.attention.of_features(tokens)), (images.mask, None), whole)
        return Memory((tokens,), (images.mask,), whole)

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """Logits (…, V)."""
        model = self.model_settings
        return self.output(F.dropout(hidden, model.output_dropout, self.training))

    def embedded(self, tokens: Tensor) -> Tensor:
        """Word vectors (…, D)."""
        return F.dropout(self.word_activation(self.words(tokens)), self.model_settings.word_dropout, self.training)

    def advance(self, word: Tensor, state: DecoderState) -> Tensor:
        """The context (R, D) after one more word vector (R, D)."""
        model, rows, memory = self.model_settings, state.rows, Memory.of(state.memory)
        assert memory.whole is not None
        whole = memory.whole.repeat_interleave(state.share, 0)
        context = F.dropout(rows["context"], model.decoder_dropout, self.training)
        hidden, cell = self.lstm(torch.cat((word, whole + context), 1), (rows["hidden"], rows["cell"]))
        if isinstance(self.attention, AdditiveAttention):
            found = self.attention(hidden, *memory.tokens, memory.masks[0])
        else:
            found = self.attention(hidden[:, None], memory.tokens[0], mask=memory.masks[0], cache=state.cache)[:, 0]
        found = F.dropout(found, model.decoder_dropout, self.training)
        attended = self.attended_norm(self.attended(torch.cat((hidden, found), 1)))
        context = F.glu(self.context(torch.cat((attended, hidden), 1)), -1)
        rows.update(hidden=hidden, cell=cell, context=context)
        return context
