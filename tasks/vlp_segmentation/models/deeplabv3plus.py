"""DeepLabv3+ with one fusion block in the decoder, where a local mechanism replaces the 3×3 convolution.

Papers: Encoder-Decoder with Atrous Separable Convolution (Chen et al. 2018); the attention thesis, §4.4.1, which
keeps a single 3×3 block so that one operator is measured. With ``attn=conv`` this is its baseline (table 4.2, row j:
590 080 parameters, so 256 → 256 channels with bias). Where we differ: the concatenated 256 + 48 channels reach the
block through a 1×1 convolution, as the table's 256 input channels demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlp_segmentation.models.base import Fusion, Labels, SegmentationModel
from vlp_segmentation.models.layers import ASPP, Classifier, ConvNormReLU, resize
from vlplatform.vision.backbone import BackboneSettings


@dataclass(frozen=True)
class DeepLabV3PlusSettings(BackboneSettings):
    """Settings of :class:`DeepLabV3Plus` beside those of its backbone.

    Attributes:
        channels: Width of the pyramid and the decoder.
        low_channels: Width of the low-level branch.
        dilations: Of the pyramid's three separable convolutions; null fits them to the output stride (12, 24, 36 at 8).
        dropout: Of channels before the classifier.
    """

    channels: int = 256
    low_channels: int = 48
    dilations: tuple[int, int, int] | None = None
    dropout: float = 0.1


class DeepLabV3Plus(SegmentationModel):
    """Backbone, spatial pyramid on its last map, fusion with layer1's map at stride 4, classifier."""

    name = "deeplabv3plus"
    summary = "DeepLabv3+ with one fusion block: any local mechanism in place of its 3×3 convolution"
    socket = "local"
    Settings = DeepLabV3PlusSettings

    def __init__(self, labels: Labels, attn: Mapping[str, Any], model: DeepLabV3PlusSettings) -> None:
        super().__init__(labels, attn, model)
        channels, stride = self.backbone.channels, self.backbone.strides[-1]
        dilations = model.dilations or tuple(k * max(1, 96 // stride) for k in (1, 2, 3))
        self.pyramid = ASPP(channels[-1], model.channels, dilations)
        self.low = ConvNormReLU(channels[1], model.low_channels)
        self.reduce = ConvNormReLU(model.channels + model.low_channels, model.channels)
        self.fusion = Fusion(attn, model.channels, model.channels)
        self.classifier = Classifier(model.channels, len(labels.names), model.dropout)

    def decode(self, features: list[Tensor]) -> Tensor:
        """Logits at the low-level map's size (stride 4)."""
        low = self.low(features[1])
        high = resize(self.pyramid(features[-1]), low.shape[-2:])
        return self.classifier(self.fusion(self.reduce(torch.cat([high, low], dim=1))))
