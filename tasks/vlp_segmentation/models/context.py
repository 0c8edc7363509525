"""Backbone, a head with a context mechanism in its middle, and an auxiliary head on stage 3.

Papers: the attention thesis, §3.5; CCNet (Huang et al. 2019) and Non-local networks (Wang et al. 2018) in the layout
of mmsegmentation's heads. Where we differ: CCNet's own repository uses in-place activated batch norm; we use batch
norm and ReLU, as mmsegmentation does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vlp_segmentation.models.base import Labels, SegmentationModel
from vlp_segmentation.models.layers import Classifier, ConvNormReLU
from vlplatform import attention
from vlplatform.vision.backbone import BackboneSettings


@dataclass(frozen=True)
class ContextSettings(BackboneSettings):
    """Settings of :class:`ContextNet` beside those of its backbone.

    Attributes:
        channels: Width of the head; the papers use 512.
        aux_weight: Share of the auxiliary head's loss; 0 leaves that head out.
        dropout: Of channels before the classifiers.
    """

    channels: int = 512
    aux_weight: float = 0.4
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aux_weight < 0:
            raise ValueError(f"aux_weight={self.aux_weight} must not be negative")


class ContextHead(nn.Module):
    """3×3 conv, context mechanism, 3×3 conv, concatenation with the input, 3×3 conv, classifier.

    (B, in, H, W) → logits (B, classes, H, W).
    """

    def __init__(self, in_dim: int, channels: int, classes: int, attn: Mapping[str, Any], dropout: float = 0.1) -> None:
        super().__init__()
        self.enter = ConvNormReLU(in_dim, channels, 3)
        self.context = attention.build(dim=channels, socket="context", **attn)
        self.leave = ConvNormReLU(channels, channels, 3)
        self.fuse = ConvNormReLU(in_dim + channels, channels, 3)
        self.classifier = Classifier(channels, classes, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) → (B, classes, H, W)."""
        attended = self.leave(self.context(self.enter(x)))
        return self.classifier(self.fuse(torch.cat([x, attended], dim=1)))


class ContextNet(SegmentationModel):
    """Backbone, :class:`ContextHead` on its last map, auxiliary fully convolutional head on the one before."""

    name = "context"
    summary = "backbone with a non-local, criss-cross or bilateral context head and an auxiliary head"
    socket = "context"
    Settings = ContextSettings

    def __init__(self, labels: Labels, attn: Mapping[str, Any], model: ContextSettings) -> None:
        super().__init__(labels, attn, model)
        *_, third, last = self.backbone.channels
        classes = len(labels.names)
        self.head = ContextHead(last, model.channels, classes, attn, model.dropout)
        self.aux_weight = model.aux_weight
        if model.aux_weight:
            width = model.channels // 2
            self.aux = nn.Sequential(ConvNormReLU(third, width, 3), Classifier(width, classes, model.dropout))

    def decode(self, features: list[Tensor]) -> Tensor:
        """Logits at the last map's size."""
        return self.head(features[-1])
