"""NG-SAN: normalised and geometry-aware self-attention (Guo et al., CVPR 2020)."""

from __future__ import annotations

from vlp_captioning.models.transformer import TransformerCaptioner


class NgsanCaptioner(TransformerCaptioner):
    """A Transformer whose encoder normalises queries and adds a bias from relative boxes (eq. 5–13).

    The paper's L is ``model.encoder_layers`` and ``model.decoder_layers`` (table 1: 1, 2, 4, 6), the variants of
    normalisation and geometry are settings of ``attn`` (tables 2–4).
    """

    name = "ngsan"
    summary = "Transformer with normalised, geometry-aware encoder attention (NG-SAN)"
    default_attn = "ngsa"
