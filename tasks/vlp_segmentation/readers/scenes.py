"""Scenes, the embedded world: nothing to download, made and cached on first use."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from vlp_segmentation.augmentation import Augmentation
from vlp_segmentation.readers.records import Reading, SegmentationData
from vlplatform.data.scenes import CLASSES, PALETTE, Pictures, ScenesSettings, load

SUMMARY = "Scenes, the embedded world of shapes on textured grounds, 9 classes"


@dataclass(frozen=True)
class MirrorAlone(Augmentation):
    """Augmentation of a world that draws as many scenes as one likes: the mirror image alone is left on.

    Attributes:
        scale_range: The picture is scaled by a factor drawn uniformly from here before it is cropped.
        max_class_share: A crop of which one class fills more than this share is drawn anew; 1 switches this off.
        brightness: Strength of the jitter: factor drawn from 1 ± this.
        contrast: Strength of the jitter, as of brightness.
        saturation: Strength of the jitter, as of brightness.
    """

    scale_range: tuple[float, float] = (1.0, 1.0)
    max_class_share: float = 1.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Settings(Reading, ScenesSettings):
    """Settings of ``data=scenes``: those of the world beside those of every reader.

    Attributes:
        augment: The training transforms.
    """

    augment: MirrorAlone = field(default_factory=MirrorAlone)

    def __post_init__(self) -> None:
        Reading.__post_init__(self)
        ScenesSettings.__post_init__(self)


def open_data(settings: Settings) -> SegmentationData:
    """Scenes with the world's settings."""
    world = ScenesSettings(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(ScenesSettings)})
    return SegmentationData(
        name="scenes",
        classes=CLASSES,
        palette=PALETTE,
        source=partial(ScenesSource, world),
        reading=settings,
        licence="Apache-2.0, generated",
    )


class ScenesSource:
    """A split of Scenes as decoded pairs."""

    def __init__(self, world: ScenesSettings, split: str) -> None:
        data = load(split, world)
        self.ids: Sequence[str] = list(data["id"])
        self.pictures = Pictures(data, world)

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """Picture (3, H, W) and mask (H, W), both uint8."""
        image, labels, _ = self.pictures[index]
        return torch.from_numpy(image.copy()).permute(2, 0, 1), torch.from_numpy(labels.copy())
