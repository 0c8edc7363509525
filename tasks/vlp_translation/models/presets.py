"""Sizes of Transformers that papers and fairseq know by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """Sizes of an encoder–decoder, both sides alike.

    Attributes:
        dim: Model width D.
        hidden: Width of the feed-forward networks.
        heads: Heads.
        encoder_layers: Layers over the source.
        decoder_layers: Layers over the target.
        dropout: Rate that is trained with.
    """

    dim: int
    hidden: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    dropout: float


@dataclass(frozen=True)
class Sizes(Preset):
    """Sizes of an encoder–decoder whose sides may differ.

    Attributes:
        decoder_heads: Heads of the decoder.
        decoder_hidden: Width of the decoder's feed-forward networks.
    """

    decoder_heads: int
    decoder_hidden: int


PRESETS: dict[str, Preset] = {
    "tiny": Preset(64, 64, 2, 2, 2, 0.1),  # fairseq's transformer_tiny
    "multi30k": Preset(128, 256, 4, 4, 4, 0.3),  # "tiny" in Wu et al. 2021, "Good for Misconceived Reasons", §4
    "iwslt": Preset(512, 1024, 4, 6, 6, 0.3),  # transformer_iwslt_de_en, with the dropout of its recipe
    "base": Preset(512, 2048, 8, 6, 6, 0.1),  # Vaswani et al. 2017, table 3; transformer_wmt_en_de
    "big": Preset(1024, 4096, 16, 6, 6, 0.3),  # likewise; transformer_vaswani_wmt_en_de_big
}
"""Name → sizes. fairseq's dynamic convolutions have the same with 7 encoder layers."""
