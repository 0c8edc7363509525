"""ACF: a Transformer whose attention clusters neighbours, in two dimensions over the image, in one over words."""

from __future__ import annotations

from dataclasses import dataclass

from vlp_captioning.models.transformer import Attn, TransformerCaptioner, TransformerSettings


@dataclass(frozen=True)
class AcfSettings(TransformerSettings):
    """As a Transformer's; 6 + 6 layers (ACF, §4.1), causal clusters of words in the decoder.

    Attributes:
        encoder_layers: Layers over the image.
        decoder_layers: Layers over the words.
        decoder_attn: Attention of the words to each other; one for all layers or a list.
    """

    encoder_layers: int = 6
    decoder_layers: int = 6
    decoder_attn: Attn = "acf1d"


class AcfCaptioner(TransformerCaptioner):
    """Ada-ClustFormer (Wang et al. 2023, eq. 2–8): ``acf2d`` over grid or regions in rows, ``acf1d`` over words."""

    name = "acf"
    summary = "2-D clusters over the image, 1-D clusters over the words (Ada-ClustFormer)"
    Settings = AcfSettings
    default_attn = "acf2d"
