"""Settings of the section ``model``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from vlp_translation.models.presets import PRESETS, Sizes
from vlplatform.layers.feed_forward import Activation

Spec = str | dict[str, Any]
Attn = str | dict[str, Any] | list[str | dict[str, Any]]


@dataclass(frozen=True)
class TransformerSettings:
    """Settings of a Transformer for translation; what is null becomes the preset's.

    Attributes:
        preset: Sizes by name: tiny, multi30k, iwslt, base, big.
        dim: Model width D.
        heads: Heads.
        hidden: Width of the feed-forward networks.
        encoder_layers: Layers over the source.
        decoder_layers: Layers over the target.
        decoder_heads: Heads of the decoder where they are not the encoder's.
        decoder_hidden: Width of the decoder's feed-forward networks where it is not the encoder's.
        encoder_attn: Attention of each encoder layer where they differ, as a list; else ``attn``.
        decoder_attn: Attention of the written words to each other, one for all layers or a list; ``auto``: ``attn``
            where that can be causal and is meant for both sides (bilateral, rel_pos, dynamic_conv, light_conv, acf1d),
            else ``sa``. A bilateral window k becomes (k + 1) / 2, which reaches as far back.
        cross_attn: Attention of the written words to the source, one for all layers or a list.
        dropout: Rate of sublayers' outputs and embeddings.
        attention_dropout: Of attention weights and of convolutions' filters.
        hidden_dropout: Of the feed-forward networks' hidden units.
        order: Norms after the sublayers or before them.
        activation: Of the feed-forward networks.
        positions: Sines, learnt vectors, or none.
        max_length: Tokens of the longest sentence where positions are learnt; sines know no limit.
        decoder_max_length: Tokens of the longest translation, its end counted, whatever the positions; null:
            ``max_length`` where these are learnt, else any number.
        scale_embeddings: Embeddings are multiplied by √D.
        embedding_norm: A layer norm after the embedding.
        share_embeddings: Source, target and output share their vectors, or target and output, or none; ``auto``: all
            where both languages share a vocabulary, else target and output.
    """

    preset: Literal["tiny", "multi30k", "iwslt", "base", "big"] = "iwslt"
    dim: int | None = None
    heads: int | None = None
    hidden: int | None = None
    encoder_layers: int | None = None
    decoder_layers: int | None = None
    decoder_heads: int | None = None
    decoder_hidden: int | None = None
    encoder_attn: list[str | dict[str, Any]] | None = None
    decoder_attn: Attn = "auto"
    cross_attn: Attn = "sa"
    dropout: float | None = None
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    order: Literal["post", "pre"] = "post"
    activation: Activation = "relu"
    positions: Literal["sinusoid", "learned", "none"] = "sinusoid"
    max_length: int = 1024
    decoder_max_length: int | None = None
    scale_embeddings: bool = True
    embedding_norm: bool = False
    share_embeddings: Literal["auto", "all", "decoder", "none"] = "auto"

    def __post_init__(self) -> None:
        sizes = ("dim", "heads", "hidden", "decoder_heads", "decoder_hidden", "max_length", "decoder_layers")
        for name in (*sizes, "decoder_max_length", "encoder_layers"):
            value, least = getattr(self, name), int(name != "encoder_layers")
            if value is not None and value < least:
                raise ValueError(f"{name}={value} must be at least {least}")
        for name in ("dropout", "attention_dropout", "hidden_dropout"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise ValueError(f"{name}={rate} must be at least 0 and below 1")

    @property
    def sizes(self) -> Sizes:
        """The numbers, those of the preset where the settings have none."""
        preset = vars(PRESETS[self.preset])
        own = {name: value if getattr(self, name) is None else getattr(self, name) for name, value in preset.items()}
        heads = own["heads"] if self.decoder_heads is None else self.decoder_heads
        hidden = own["hidden"] if self.decoder_hidden is None else self.decoder_hidden
        return Sizes(**own, decoder_heads=heads, decoder_hidden=hidden)

    @property
    def longest_target(self) -> int | None:
        """Tokens that a translation can have, its end counted; None: any number."""
        learnt = self.max_length if self.positions == "learned" else None
        return learnt if self.decoder_max_length is None else self.decoder_max_length

    @property
    def places(self) -> tuple[float, float]:
        """Positions of source and target, the end symbol's among them; infinitely many where none are learnt."""
        if self.positions != "learned":
            return math.inf, math.inf
        return self.max_length, self.longest_target or self.max_length

    def resolved(self, shared: bool | None = None) -> TransformerSettings:
        """The same with numbers for all that the preset decides.

        Args:
            shared: Whether both languages share a vocabulary; ``share_embeddings=auto`` is then decided too.
        """
        made = replace(self, **vars(self.sizes))
        if made.share_embeddings == "auto" and shared is not None:
            made = replace(made, share_embeddings="all" if shared else "decoder")
        return made
