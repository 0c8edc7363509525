"""What is seen of items that lie in files: features from a feature file, or pixels from pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from vlp_captioning.readers.features import FeatureFile, Kind, open_features
from vlp_captioning.readers.features.arrays import BoxFolder
from vlp_captioning.readers.features.checked import checked
from vlp_captioning.readers.features.shards import ShardFeatures
from vlp_captioning.readers.files import read_json
from vlp_captioning.readers.records import CaptionData, Item, Visual, check_splits
from vlplatform.errors import UserError
from vlplatform.vision.pictures import read_image, read_rgb

_KEYS: dict[str, Callable[[Item], str]] = {
    "image id": lambda item: item.id,
    "path": lambda item: item.source,
    "file name": lambda item: PurePosixPath(item.source).name,
    "file name without its suffix": lambda item: PurePosixPath(item.source).stem,
    "path without its suffix": lambda item: PurePosixPath(item.source).with_suffix("").as_posix(),
}
_LOOK = 200  # so many items decide which of these the features are called by


@dataclass(frozen=True, kw_only=True)
class VisualSettings:
    """Settings that every reader of files has.

    Attributes:
        features: Feature file or folder: the output of vlp prepare, bottom-up TSV, .npz or .npy files, HDF5 of M2 or
            MD-SAN; null takes the pictures themselves. A relative path counts from here, or else from data.root.
        boxes: Folder of .npy or .npz files with the boxes of features that have none of their own (bottom-up's
            cocobu_box beside cocobu_att), named like pictures or image ids.
        feature_kind: Which features to take from a file that holds both: regions or grid; auto takes what there is.
        attributes: JSON file of detected attribute words: image id or file name to words, the surest first.
        pixels: Height and width to which pictures are resized where the captioner sees pixels; null keeps their own.
        cache: Keep what was read in memory, per process.
        missing: What to do about items without picture or features: stop, or drop them and say how many.
    """

    features: str | None = None
    boxes: str | None = None
    feature_kind: Kind = "auto"
    attributes: str | None = None
    pixels: tuple[int, int] | None = (224, 224)
    cache: bool = False
    missing: Literal["stop", "drop"] = "stop"

    def __post_init__(self) -> None:
        if self.boxes is not None and self.features is None:
            raise ValueError(f"boxes={self.boxes} are the boxes of features: name these, too, with features=PATH")
        if self.pixels is not None and not all(8 <= side <= 4096 for side in self.pixels):
            raise ValueError(
                f"pixels={list(self.pixels)} is outside 8 to 4096; choose a height and width in that range"
            )


class FileVisuals:
    """The visuals of items whose features or pictures lie in files.

    Args:
        settings: The common ones.
        pictures: The folder that ``Item.source`` counts from; None: there are only features.
        found: The features, or None: pixels.
        known_by: What the features are called by, a key of the names above.
        words: Attribute words by image id or file name; None: there are none.
        boxes: Boxes that lie apart from the features, and what they are called by; None: there are none.
    """

    def __init__(
        self,
        settings: VisualSettings,
        pictures: Path | None,
        found: FeatureFile | None,
        known_by: str,
        words: Mapping[str, tuple[str, ...]] | None,
        boxes: tuple[BoxFolder, str] | None = None,
    ) -> None:
        self.settings, self.pictures, self.found, self.known_by, self.words = settings, pictures, found, known_by, words
        self.boxes = boxes
        self.kept: dict[str, Visual] = {}

    @property
    def pixels(self) -> bool:
        """Whether the captioner gets pixels."""
        return self.found is None

    @property
    def extractor(self) -> dict[str, Any] | None:
        """What the features were made with, if ``vlp prepare`` made them."""
        return self.found.extractor if isinstance(self.found, ShardFeatures) else None

    def has(self, item: Item) -> bool:
        """Whether features (and boxes) or picture are there, without reading them."""
        if self.boxes is not None and _KEYS[self.boxes[1]](item) not in self.boxes[0]:
            return False
        if self.found is not None:
            return _KEYS[self.known_by](item) in self.found
        return self.pictures is not None and (self.pictures / item.source).is_file()

    def visual(self, item: Item) -> Visual:
        """Features (N, F), or pixels (3, H, W); with attribute words where there are some.

        Raises:
            UserError: Missing or damaged; boxes that are not those of the features; or no attribute words.
        """
        if item.id in self.kept:
            return self.kept[item.id]
        seen = self._pixels(item) if self.found is None else self.found.features(_KEYS[self.known_by](item))
        if self.boxes is not None:
            seen = self._with_boxes(seen, item)
        if self.words is not None:
            seen = dataclasses.replace(seen, attributes=self._words(item))
        if self.settings.cache:
            self.kept[item.id] = seen
        return seen

    def picture(self, item: Item) -> np.ndarray[Any, Any] | None:
        """The picture for people to look at, (H, W, 3) uint8; None where there is none."""
        if self.pictures is None or not (self.pictures / item.source).is_file():
            return None
        return read_rgb(self.pictures / item.source)

    def _pixels(self, item: Item) -> Visual:
        from torchvision.transforms.v2 import functional

        assert self.pictures is not None
        image = read_image(self.pictures / item.source)
        size = (image.shape[2], image.shape[1])
        if self.settings.pixels is not None:
            image = functional.resize(image, list(self.settings.pixels), antialias=True)
        return Visual(pixels=image, size=size)

    def _with_boxes(self, seen: Visual, item: Item) -> Visual:
        assert self.boxes is not None
        assert seen.features is not None
        folder, known_by = self.boxes
        if seen.boxes is not None or seen.grid is not None:
            own = "boxes of their own" if seen.boxes is not None else "places in a grid"
            raise UserError(f"the features of {item.id} have {own}: leave out data.boxes={self.settings.boxes}.")
        key = _KEYS[known_by](item)
        found = checked(seen.features.numpy(), str(folder.files[key]), boxes=folder.boxes(key), size=seen.size)
        return dataclasses.replace(seen, boxes=found.boxes)

    def _words(self, item: Item) -> tuple[str, ...]:
        assert self.words is not None
        for key in dict.fromkeys(name(item) for name in _KEYS.values()):
            if key in self.words:
                return self.words[key]
        raise UserError(
            f"data.attributes={self.settings.attributes} has no words for {item.id} ({item.source}): add a list, empty "
            "if nothing was detected."
        )


def open_files(
    settings: VisualSettings,
    splits: Mapping[str, Sequence[Item]],
    *,
    name: str,
    root: Path,
    where: str,
    pictures: Path | None = None,
    licence: str = "",
    citation: str = "",
    notes: Iterable[str] = (),
) -> CaptionData:
    """The data set of these splits, after a look that each item's picture or features are there.

    Args:
        settings: The common ones.
        splits: Split → items.
        name: The reader's.
        root: Where a relative ``features`` may lie.
        where: What the data are called in messages.
        pictures: The folder that ``Item.source`` counts from; None: there are only features.
        licence: Of the data.
        citation: Of the data.
        notes: What the reader has to say; what is found here is added.

    Raises:
        UserError: An item twice, no features where the settings say, or items without (unless ``missing=drop``).
    """
    check_splits(splits, where)
    told, found, known_by = list(notes), None, "image id"
    if settings.features is not None:
        found = open_features(_path(settings.features, root), settings.feature_kind)
        known_by = _known_by(found, [item for items in splits.values() for item in items[:_LOOK]])
        told.append(f"features: {found.found}; found by {known_by}")
    elif pictures is None:
        raise UserError(f"{where} has no pictures: name the file or folder of its features with data.features=PATH.")
    words = None if settings.attributes is None else _attributes(_path(settings.attributes, root))
    boxes = None
    if settings.boxes is not None:
        folder = BoxFolder(_path(settings.boxes, root))
        boxes = folder, _known_by(folder, [item for items in splits.values() for item in items[:_LOOK]])
    visuals = FileVisuals(settings, pictures, found, known_by, words, boxes)
    kept: dict[str, Sequence[Item]] = {}
    for split, items in splits.items():
        kept[split] = [item for item in items if visuals.has(item)]
        if len(kept[split]) < len(items):
            told.append(_without(visuals, split, items, kept[split]))
        if silent := sum(not item.captions for item in kept[split]):
            told.append(f"{_some(silent, len(kept[split]), split)} no captions")
    return CaptionData(
        name=name,
        read=kept.__getitem__,
        visuals=visuals,
        splits=tuple(kept),
        licence=licence,
        citation=citation,
        notes=tuple(told),
    )


def _without(visuals: FileVisuals, split: str, items: Sequence[Item], kept: Sequence[Item]) -> str:
    """The note about items that are dropped; :class:`UserError` where they must not be."""
    there = {item.id for item in kept}
    first = next(item for item in items if item.id not in there)
    lack = f"no picture in {visuals.pictures}" if visuals.found is None else f"no features in {visuals.found.path}"
    lack += f" or no boxes in {visuals.boxes[0].path}" if visuals.boxes is not None else ""
    count = f"{_some(len(items) - len(kept), len(items), split)} {lack}"
    if not kept:
        raise UserError(f"{count} (the first is {first.source}): name the right folder or file.")
    if visuals.settings.missing == "stop":
        raise UserError(f"{count} (the first is {first.source}): add them, or drop them with data.missing=drop.")
    return f"{count}: dropped"


def _some(count: int, total: int, split: str) -> str:
    """``the only item of 'val' has``, ``1 of the 3 items of 'val' has``, ``2 of the 3 items of 'val' have``."""
    if total == 1:
        return f"the only item of '{split}' has"
    return f"{count} of the {total} items of '{split}' {'has' if count == 1 else 'have'}"


def _known_by(found: FeatureFile | BoxFolder, items: Sequence[Item]) -> str:
    """Which name of an item the features are called by: that of most of ``items``, the first of equals."""
    counts = {name: sum(key(item) in found for item in items) for name, key in _KEYS.items()}
    best = max(counts, key=lambda name: counts[name])
    if counts[best] == 0:
        tried = ", ".join(dict.fromkeys(repr(key(items[0])) for key in _KEYS.values()))
        raise UserError(
            f"{found.path} has none of the data's pictures (it calls its first one '{found.example}', the data's first "
            f"one would be {tried}): give those of this data set."
        )
    return best


def _path(given: str, root: Path) -> Path:
    path = Path(given).expanduser()
    return root / path if not path.is_absolute() and not path.exists() and (root / path).exists() else path


def _attributes(path: Path) -> dict[str, tuple[str, ...]]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} is no JSON object of image id → words: write one.")
    for name, words in value.items():
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UserError(f"{path} has {words!r:.60} for {name}: write a list of words.")
    return {name: tuple(words) for name, words in value.items()}
