"""MD-SAN: multi-branch distance-sensitive self-attention (Ji et al., IEEE TMM 2022).

Original repository: Young499/image-captioning-MDSANet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from vlp_captioning.models.images import Memory
from vlp_captioning.models.transformer import TransformerCaptioner, TransformerSettings
from vlp_captioning.models.words import WordEmbedding
from vlplatform.attention.cache import Cache
from vlplatform.layers import FeedForward, Residual
from vlplatform.layers.spec import attentions
from vlplatform.losses import real_words


@dataclass(frozen=True)
class MdsanSettings(TransformerSettings):
    """As a Transformer's; 3 + 3 layers, a norm after the features, an output map without bias.

    Attributes:
        encoder_layers: Layers over the image.
        decoder_layers: Layers over the words.
        feature_norm: Layer norm after the map of features: ``none``, or on either side of the dropout.
        output_bias: The output map has a bias.
        decoder: ``code``: a second residual and norm around each attention of the decoder, as in the authors' code,
            whose scores are the published ones; ``paper``: the original Transformer's decoder.
    """

    encoder_layers: int = 3
    decoder_layers: int = 3
    feature_norm: Literal["none", "before_dropout", "after_dropout"] = "after_dropout"
    output_bias: bool = False
    decoder: Literal["code", "paper"] = "code"


class MdsanCaptioner(TransformerCaptioner):
    """Three branches of distance-sensitive attention per encoder layer, a plain decoder (eq. 6–11).

    Where we differ from the code: the positions of a fresh model are sinusoids and stay so (there the initialisation
    overwrites them; a converted model has the table of its checkpoint), and padding is told by the features, not by
    the sums of normalised rows. Regions lie where their boxes' centres are, grids in their cells.
    """

    name = "mdsan"
    summary = "multi-branch distance-sensitive encoder attention (MD-SAN)"
    Settings = MdsanSettings
    default_attn = "mdsa"

    def make_words(self) -> WordEmbedding:
        """``E[y] + P[t]``, neither scaled nor dropped, positions from 1."""
        model = self.model_settings
        return WordEmbedding(len(self.vocabulary), model.dim, model.max_length + 1, scaled=False, dropout=0.0, first=1)

    def make_decoder(self) -> nn.Module:
        """The decoder of the code or of the paper."""
        model = self.model_settings
        assert isinstance(model, MdsanSettings)
        if model.decoder == "paper":
            return super().make_decoder()
        given: dict[str, Any] = {"dim": model.dim, "heads": model.heads, "dropout": model.attention_dropout}
        own = attentions(model.decoder_attn, model.decoder_layers, **given)
        cross = attentions(model.cross_attn, model.decoder_layers, **given)
        return DoubleDecoder([DoubleLayer(a, c, model.dim, model.hidden, model.dropout) for a, c in zip(own, cross)])

    def decode(self, memory: Memory, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Hidden states (R, T, D); those of padding are zeros, as in the authors' code."""
        hidden = super().decode(memory, tokens, lengths)
        return hidden if lengths is None else hidden.masked_fill(~real_words(lengths, tokens.shape[1])[..., None], 0)


class DoubleLayer(nn.Module):
    """A decoder layer with two residuals and norms around each attention.

    ``s = LN(x + drop(LN(x + drop(MHA(x)))))``, then likewise to the memory, then the feed-forward network with one.

    Args:
        attention: Of the words to each other.
        cross: Of the words to the image.
        dim: Model width D.
        hidden: Width of the feed-forward network.
        dropout: Rate of all of them.
    """

    def __init__(self, attention: nn.Module, cross: nn.Module, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.cross = attention, cross
        self.inside_attention, self.around_attention = Residual(dim, dropout=dropout), Residual(dim, dropout=dropout)
        self.inside_cross, self.around_cross = Residual(dim, dropout=dropout), Residual(dim, dropout=dropout)
        self.feed_forward = FeedForward(dim, hidden, dropout=dropout)
        self.around_feed_forward = Residual(dim, dropout=dropout)

    def forward(self, tokens: Tensor, memory: Tensor, memory_mask: Tensor | None, cache: Cache | None) -> Tensor:
        """(R, T, D) → (R, T, D)."""
        own, other = (None, None) if cache is None else (cache.child("self"), cache.child("memory"))

        def attend(x: Tensor) -> Tensor:
            return self.inside_attention(x, lambda y: self.attention(y, causal=True, cache=own))

        def look(x: Tensor) -> Tensor:
            return self.inside_cross(x, lambda y: self.cross(y, memory, mask=memory_mask, cache=other))

        tokens = self.around_cross(self.around_attention(tokens, attend), look)
        return self.around_feed_forward(tokens, self.feed_forward)


class DoubleDecoder(nn.Module):
    """A stack of :class:`DoubleLayer`."""

    def __init__(self, layers: list[DoubleLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(
        self, tokens: Tensor, memory: Tensor, *, memory_mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """(R, T, D) → (R, T, D)."""
        for i, layer in enumerate(self.layers):
            tokens = layer(tokens, memory, memory_mask, None if cache is None else cache.child(str(i)))
        return tokens
