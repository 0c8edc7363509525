"""U-Net over a ResNet, where a local mechanism fuses the maps in every upsampling block.

Paper: the attention thesis, §4.4.2–4.4.3 and table 4.5 (ResNet-18; channels 512, 256, 256, 128; heads 8, 8, 4, 4;
iterative refinement in the first block). ``output_stride=8`` is the thesis' "last two down-samplings removed".
Where we differ: table 4.5 says "upsampled by two times"; we resize to the low-level map's own size, which is the
same where the sizes are even and also right where they are odd or where a stride was removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vlp_segmentation.models.base import Fusion, Labels, SegmentationModel
from vlp_segmentation.models.layers import Classifier, resize
from vlplatform import attention
from vlplatform.vision.backbone import BackboneSettings

WIDTHS = (1, 2, 2, 4)
"""By how much each block is narrower than the first."""
HEADS = (8, 8, 4, 4)


@dataclass(frozen=True)
class UNetSettings(BackboneSettings):
    """Settings of :class:`UNet` beside those of its backbone.

    Attributes:
        channels: Width of the first block; the others have a half, a half and a quarter of it. A multiple of 32.
        refine: With ``attn=local_bilateral``, iterative refinement in the first block.
        refine_iterations: Softmax passes of that block.
        refine_shared: One projection is that block's query, key and value.
        dropout: Of channels before the classifier.
    """

    backbone: Literal["resnet18", "resnet50", "resnet101"] = "resnet18"
    channels: int = 512
    refine: bool = True
    refine_iterations: int = 3
    refine_shared: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels < 32 or self.channels % 32:
            raise ValueError(f"channels={self.channels} must be a multiple of 32: heads split a quarter of it")
        if self.refine_iterations < 1:
            raise ValueError(f"refine_iterations={self.refine_iterations} must be at least 1")


class UNet(SegmentationModel):
    """Backbone, and per residual stage one block that upsamples, concatenates the finer map, and fuses."""

    name = "unet"
    summary = "ResNet U-Net whose upsampling blocks fuse with any local mechanism (thesis, table 4.5)"
    socket = "local"
    Settings = UNetSettings

    def __init__(self, labels: Labels, attn: Mapping[str, Any], model: UNetSettings) -> None:
        super().__init__(labels, attn, model)
        *finer, width = self.backbone.channels
        mechanism = attention.resolve(attn["name"], "local").name
        blocks = []
        # With layer4 left out the first row of the table goes with it.
        for low, narrower, heads in zip(reversed(finer), WIDTHS[-len(finer) :], HEADS[-len(finer) :]):
            out = model.channels // narrower
            refined = mechanism == "local_bilateral" and model.refine and not blocks
            of_first = {"iterations": model.refine_iterations, "shared": model.refine_shared}
            chosen = {**attn, "name": "local_bilateral_ir", **of_first} if refined else attn
            blocks.append(Fusion(chosen, low + width, out, heads=heads))
            width = out
        self.blocks = nn.ModuleList(blocks)
        self.classifier = Classifier(width, len(labels.names), model.dropout)

    def decode(self, features: list[Tensor]) -> Tensor:
        """Logits at the stem's size (stride 2)."""
        x = features[-1]
        for block, low in zip(self.blocks, reversed(features[:-1])):
            x = block(torch.cat([low, resize(x, low.shape[-2:])], dim=1))
        return self.classifier(x)
