"""The segmentation models by name."""

from __future__ import annotations

from vlp_segmentation.models.base import Labels, Outputs, SegmentationModel
from vlp_segmentation.models.context import ContextNet
from vlp_segmentation.models.deeplabv3plus import DeepLabV3Plus
from vlp_segmentation.models.unet import UNet

__all__ = ["MODELS", "ContextNet", "DeepLabV3Plus", "Labels", "Outputs", "SegmentationModel", "UNet"]

MODELS: dict[str, type[SegmentationModel]] = {model.name: model for model in (DeepLabV3Plus, UNet, ContextNet)}
