"""Scenes, the embedded world: nothing to download, made and cached on first use."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vlp_segmentation.readers.records import Reading, SegmentationData
from vlplatform.data.scenes import CLASSES, PALETTE, Pictures, ScenesSettings, load

SUMMARY = "Scenes, the embedded world of shapes on textured grounds, 9 classes"


@dataclass(frozen=True, kw_only=True)
class Settings(Reading, ScenesSettings):
    """Settings of ``data=scenes``: those of the world beside those of every reader."""

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
