"""Settings of the training transforms, which :mod:`vlp_segmentation.transforms` makes; they need no torchvision."""

from __future__ import annotations

from dataclasses import dataclass

IGNORE = 255
"""The class id of unlabelled pixels, everywhere in this task."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Settings of the training transforms (``data.augment``).

    Attributes:
        crop: Height and width of the training crop, in pixels; null: those of each picture.
        scale_range: The picture is scaled by a factor drawn uniformly from here before it is cropped.
        max_class_share: A crop of which one class fills more than this share of the labelled pixels is drawn
            anew, up to ten times; 1 switches this off.
        flip: Probability of the horizontal mirror image (left and right classes swap).
        brightness: Strength of the jitter: factor drawn from 1 ± this.
        contrast: Strength of the jitter, as of brightness.
        saturation: Strength of the jitter, as of brightness.
        hue: Shift drawn from ± this part of the colour circle, at most 0.5; slow (about 10 ms for 352 × 352).
        fill: Colour of the padding beyond the picture; its mask is "ignore". Default: ImageNet's mean.
    """

    crop: tuple[int, int] | None = None
    scale_range: tuple[float, float] = (0.5, 2.0)
    max_class_share: float = 0.75
    flip: float = 0.5
    brightness: float = 0.3
    contrast: float = 0.3
    saturation: float = 0.3
    hue: float = 0.0
    fill: tuple[int, int, int] = (124, 116, 104)

    def __post_init__(self) -> None:
        if self.crop and min(self.crop) < 2:  # torch cannot resize bytes to 1 × 1
            raise ValueError(f"crop={list(self.crop)} must be two sizes of at least 2")
        if not 0 < self.scale_range[0] <= self.scale_range[1]:
            raise ValueError(f"scale_range={list(self.scale_range)} must be two factors above 0, the smaller first")
        if not 0 < self.max_class_share <= 1:
            raise ValueError(f"max_class_share={self.max_class_share} must lie in 0 … 1, above 0")
        if not 0 <= self.flip <= 1:
            raise ValueError(f"flip={self.flip} is a probability and must lie in 0 … 1")
        if min(self.brightness, self.contrast, self.saturation, self.hue) < 0 or self.hue > 0.5:
            raise ValueError("brightness, contrast, saturation and hue must be at least 0, and hue at most 0.5")
        if not 0 <= min(self.fill) <= max(self.fill) <= 255:
            raise ValueError(f"fill={list(self.fill)} must be three values in 0 … 255")
