"""What every reader makes: ``CaptionData``, items with their captions, and what is seen of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from vlplatform.errors import UserError, nearest

SPLITS: tuple[str, ...] = ("train", "val", "test")


@dataclass(frozen=True)
class Item:
    """A picture (or video) and what people said about it.

    Attributes:
        id: Unique in the whole data set, and what scores and submissions call it (COCO's image id).
        source: The picture's file, relative to the folder of the pictures, or else the name of its features.
        captions: As people wrote them; may be empty (test sets).
        tokens: The data set's own tokenisation of the captions, one list for each, if it has one.
    """

    id: str
    source: str
    captions: tuple[str, ...] = ()
    tokens: tuple[tuple[str, ...], ...] | None = None


@dataclass(frozen=True)
class Visual:
    """What a captioner may see of one item: N vectors, or pixels.

    Attributes:
        features: (N, F) float32.
        boxes: (N, 4) float32: left, top, right, bottom in pixels of the picture.
        grid: (rows, columns) where the vectors are cells row by row; N = rows · columns.
        size: (width, height) of the picture that the boxes belong to.
        pixels: RGB picture, (3, H, W) uint8.
        attributes: Detected attribute words, the surest first.
    """

    features: Tensor | None = None
    boxes: Tensor | None = None
    grid: tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    pixels: Tensor | None = None
    attributes: tuple[str, ...] = ()


class VisualSource(Protocol):
    """Where the visuals of a data set come from."""

    def visual(self, item: Item) -> Visual:
        """What the captioner gets.

        Raises:
            UserError: It is missing or damaged.
        """
        ...

    def picture(self, item: Item) -> np.ndarray[Any, Any] | None:
        """The picture for people to look at, (H, W, 3) uint8; None where there is none."""
        ...


@dataclass(frozen=True, kw_only=True)
class CaptionData:
    """An opened data set.

    Attributes:
        name: The reader's name.
        read: Split → its items; called once for each split.
        visuals: What is seen of an item.
        splits: The names that ``items`` takes.
        licence: In a few words.
        citation: In a few words.
        notes: Choices made on the user's behalf, to be shown.
    """

    name: str
    read: Callable[[str], Sequence[Item]]
    visuals: VisualSource
    splits: tuple[str, ...] = SPLITS
    licence: str = ""
    citation: str = ""
    notes: tuple[str, ...] = ()
    _opened: dict[str, Sequence[Item]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def items(self, split: str) -> Sequence[Item]:
        """The items of a split.

        Raises:
            UserError: No such split, or one that is empty, damaged, or shares an item with another one read so far.
        """
        if split not in self.splits:
            raise UserError(f"data={self.name} has no split '{split}': {nearest(split, self.splits)}.")
        if split not in self._opened:
            items = self.read(split)
            check_splits({**self._opened, split: items}, f"data={self.name}")
            self._opened[split] = items
        return self._opened[split]

    def visual(self, item: Item) -> Visual:
        """What the captioner gets of an item.

        Raises:
            UserError: It is missing or damaged.
        """
        return self.visuals.visual(item)

    def picture(self, item: Item) -> np.ndarray[Any, Any] | None:
        """The picture of an item for people to look at, (H, W, 3) uint8; None where there is none.

        Raises:
            UserError: The file is there but cannot be read.
        """
        return self.visuals.picture(item)

    def check(self, split: str) -> list[str]:
        """Look at every item of a split; one sentence per faulty one (empty: all are sound)."""
        faults = []
        for item in self.items(split):
            try:
                self.visual(item)
            except UserError as error:
                faults.append(str(error))
        return faults


def check_splits(splits: Mapping[str, Sequence[Item]], where: str) -> None:
    """Make sure that no id and no picture is there twice, in one split or in two.

    Args:
        splits: Split → items.
        where: What the data are called in messages.

    Raises:
        UserError: Naming the first item found twice, or a split without any.
    """
    for split, items in splits.items():
        if not items:
            raise UserError(f"{where} has nothing in its split '{split}': add some, or do without that split.")
    for what, of in (("image id", attrgetter("id")), ("picture", attrgetter("source"))):
        places: dict[str, str] = {}
        for split, items in splits.items():
            for name in map(of, items):
                if name in places:
                    both = f"'{split}' twice" if places[name] == split else f"'{places[name]}' and in '{split}'"
                    raise UserError(f"{where} has the {what} {name} in {both}: leave it in one place.")
                places[name] = split
