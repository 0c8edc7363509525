"""Scenes, the embedded world: nothing to download, made and cached on first use."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from vlp_captioning.readers.records import CaptionData, Item, Visual
from vlplatform.data.scenes import COLOURS, GROUNDS, SHAPES, Pictures, ScenesSettings, load
from vlplatform.data.scenes.dice import Dice
from vlplatform.data.scenes.relations import Facts
from vlplatform.data.scenes.world import SIZES, TEXTURES, Thing

SUMMARY = "Scenes, the embedded world of shapes, with five captions each; regions, attributes, or pixels"

WORDS: tuple[str, ...] = (*SIZES, *COLOURS, *TEXTURES[1:], *SHAPES, *GROUNDS)
"""The words that the attribute detector of Scenes knows."""

_KEY = 20_03  # of the draws of the attribute detector


@dataclass(frozen=True, kw_only=True)
class Settings(ScenesSettings):
    """Settings of ``data=scenes``: those of the world beside how a captioner sees it.

    Attributes:
        visual: regions gives a noisy vector and a box for each thing, as from a detector; pixels gives the picture.
        attribute_noise: Errors of the attribute detector in per cent: so often it misses a word that is true, and so
            often it reports one of the others.
    """

    visual: Literal["regions", "pixels"] = "regions"
    attribute_noise: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.attribute_noise <= 100:
            raise ValueError(
                f"attribute_noise={self.attribute_noise} is outside 0 to 100; choose a value in that range"
            )


def open_data(settings: Settings) -> CaptionData:
    """Scenes with the world's settings; a split is made when it is asked for."""
    visuals = ScenesVisuals(settings)
    return CaptionData(
        name="scenes",
        read=visuals.items,
        visuals=visuals,
        licence="Apache-2.0, generated",
        notes=("Scenes is generated: a yardstick for code, never a published result",),
    )


class ScenesVisuals:
    """Items and visuals of Scenes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.splits: dict[str, _Split] = {}
        self.places: dict[str, tuple[str, int]] = {}

    @property
    def pixels(self) -> bool:
        """Whether the captioner gets pixels."""
        return self.settings.visual == "pixels"

    def items(self, split: str) -> Sequence[Item]:
        """The scenes of a split and their captions."""
        self.splits[split] = opened = _Split(split, self.settings)
        columns = opened.data.select_columns(["id", "captions"])[:]
        items = [Item(i, i, tuple(captions)) for i, captions in zip(columns["id"], columns["captions"])]
        self.places.update({item.id: (split, index) for index, item in enumerate(items)})
        return items

    def visual(self, item: Item) -> Visual:
        """Vectors (N, D) with boxes (N, 4), or pixels (3, H, W); attribute words either way."""
        split, index = self.places[item.id]
        size = (self.settings.size, self.settings.size)
        row = self.splits[split].seen[index]
        words = attributes(item.id, row["things"], row["grounds"], self.settings.attribute_noise)
        if self.settings.visual == "pixels":
            pixels = torch.from_numpy(self.picture(item).copy()).permute(2, 0, 1).contiguous()
            return Visual(pixels=pixels, size=size, attributes=words)
        return Visual(
            features=torch.tensor(row["features"], dtype=torch.float32),
            boxes=torch.tensor([thing["box"] for thing in row["things"]], dtype=torch.float32),
            size=size,
            attributes=words,
        )

    def picture(self, item: Item) -> np.ndarray[Any, Any]:
        """The scene, (H, W, 3) uint8, read-only."""
        split, index = self.places[item.id]
        return self.splits[split].pictures[index][0]

    def facts(self, item: str) -> Facts:
        """What is true of a scene, by its id: which thing lies left of which."""
        split, index = self.places[item]
        things = self.splits[split].seen[index]["things"]
        boxes = [tuple(thing["box"]) for thing in things]
        looks = [Thing(t["shape"], t["colour"], t["texture"], t["size"], 0, 0, 0, 0, 0) for t in things]
        return Facts(looks, boxes, self.settings.size)


class _Split:
    """The columns of a split, each read only when it is wanted."""

    def __init__(self, split: str, settings: Settings) -> None:
        self.world = ScenesSettings(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(ScenesSettings)})
        self.data = load(split, self.world)

    @cached_property
    def seen(self) -> Any:
        return self.data.select_columns(["features", "things", "grounds"])

    @cached_property
    def pictures(self) -> Pictures:
        return Pictures(self.data, self.world)


def attributes(scene: str, things: Sequence[dict[str, Any]], grounds: Sequence[str], noise: int = 0) -> tuple[str, ...]:
    """The words that a detector of :data:`WORDS` finds in a scene, the surest first.

    Its errors depend on the scene's id alone: a word that is true of a thing or ground is missed, and one that is not
    is reported, with ``noise`` per cent each. Its confidence is drawn from 50 … 99 for true words and from 30 … 69 for
    others; without noise, things are named from the largest to the smallest, then the grounds.

    Args:
        scene: The id, ``<seed>-<index>``.
        things: Shape, colour, texture, size and box of each.
        grounds: Their names.
        noise: Per cent.
    """
    area = [(box[2] - box[0]) * (box[3] - box[1]) for box in (thing["box"] for thing in things)]
    order = sorted(range(len(things)), key=lambda k: (-area[k], k))
    spoken = [things[k][kind] for k in order for kind in ("shape", "colour", "texture", "size")]
    true = [word for word in dict.fromkeys([*spoken, *grounds]) if word in WORDS]
    if noise == 0:
        return tuple(true)
    dice = Dice(_KEY, *map(int, scene.split("-")))
    found: dict[str, int] = {}
    for word in WORDS:
        wrong, high, low = dice.chance(noise), dice.between(50, 99), dice.between(30, 69)
        if (word in true) != wrong:
            found[word] = high if word in true else low
    return tuple(sorted(found, key=lambda word: (-found[word], word)))
