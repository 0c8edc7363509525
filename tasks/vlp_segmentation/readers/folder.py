"""A user's own pictures: images/, masks/ of class ids, and a list of class names."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from vlp_segmentation.augmentation import IGNORE
from vlp_segmentation.readers.files import (
    MOST_CLASSES,
    Files,
    IdMask,
    Pair,
    below,
    open_pairs,
    plain_ids,
    read_list,
)
from vlp_segmentation.readers.palette import palette
from vlp_segmentation.readers.records import Reading, SegmentationData
from vlplatform.data.root import open_root
from vlplatform.errors import UserError, nearest
from vlplatform.vision.pictures import SUFFIXES

SUMMARY = "your own pictures: images/, masks/ of class ids, classes.txt"

_SPLITS = ("train", "val", "test")
_MASKS = (".png", ".bmp", ".tif", ".tiff", ".gif")  # lossless ones

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Settings(Reading):
    """Settings of ``data=folder``.

    Attributes:
        root: Folder with images/, masks/ and classes.txt. A mask has its picture's name and stores one class id
            per pixel (8-bit grey or palette). Splits: train.txt, val.txt, test.txt with one name a line; or
            images/train/ … and masks/train/ …; or else an automatic one.
        classes: Class names in the order of their ids, where there is no classes.txt (one a line, ``name`` or
            ``name r g b``).
        ignore_index: The id of unlabelled pixels in the masks; 255 always is one (so a black-and-white mask of 0
            and 255 has to be saved with the ids 0 and 1).
        flip_pairs: Pairs of class names that swap in a mirror image.
        parts: Inner face parts → class names merged into each, for face parsing scores.
        val_fraction: Share of the pictures that an automatic split puts into ``val``, chosen by a hash of seed
            and name, so that new pictures move none. Where it would choose none of two or more, the one with the
            lowest hash is taken.
        seed: Of the automatic split.
        licence: The data's licence, for reports and model cards.
        citation: How the data want to be cited, for reports and model cards.
    """

    root: str | None = None
    classes: tuple[str, ...] | None = None
    ignore_index: int = IGNORE
    flip_pairs: tuple[tuple[str, str], ...] = ()
    parts: dict[str, tuple[str, ...]] | None = None
    val_fraction: float = 0.1
    seed: int = 0
    licence: str = ""
    citation: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ignore_index <= 255:
            raise ValueError(f"ignore_index={self.ignore_index} must lie in 0 … 255")
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"val_fraction={self.val_fraction} must lie between 0 and 1")


def open_data(settings: Settings) -> SegmentationData:
    """The user's data below ``settings.root``.

    Raises:
        UserError: A folder or the class list is missing, or names in it do not match the settings.
    """
    root = open_root(settings.root, "images/, masks/ and classes.txt")
    for name in ("images", "masks"):
        if not (root / name).is_dir():
            raise UserError(f"{root / name} is missing: data.root must hold images/, masks/ and classes.txt.")
    classes, colours = _classes(root, settings.classes)
    _check_names("flip_pairs", settings.flip_pairs, classes)
    _check_names("parts", (settings.parts or {}).values(), classes)
    kind, splits = _splits(root)
    notes: tuple[str, ...] = ()
    if kind == "hash":
        notes = (
            f"{root} has no train.txt and no images/train/: {settings.val_fraction:.0%} of the pictures, at least "
            f"one, are taken for validation by a hash of their names (data.seed={settings.seed})",
        )
        _log.warning(notes[0])
    return SegmentationData(
        name="folder",
        classes=classes,
        palette=colours,
        source=partial(_source, root, settings, kind, plain_ids(len(classes), settings.ignore_index)),
        reading=settings,
        splits=splits,
        flip_pairs=tuple((classes.index(left), classes.index(right)) for left, right in settings.flip_pairs),
        parts=settings.parts,
        licence=settings.licence,
        citation=settings.citation,
        notes=notes,
    )


def _classes(root: Path, given: tuple[str, ...] | None) -> tuple[tuple[str, ...], tuple[tuple[int, int, int], ...]]:
    """Names and colours, from classes.txt or the setting; where both exist they must agree."""
    listed = root / "classes.txt"
    if not listed.is_file() and given is None:
        raise UserError(f"{listed} is missing: write one class name a line, or give data.classes=[…].")
    lines = read_list(listed) if listed.is_file() else list(given or ())
    names: list[str] = []
    colours = list(palette(len(lines)))
    for i, line in enumerate(lines):
        *name, red, green, blue = line.split() if len(line.split()) > 3 else (line, "", "", "")
        if all(value.isdecimal() and int(value) < 256 for value in (red, green, blue)):
            names.append(" ".join(name))
            colours[i] = int(red), int(green), int(blue)
        else:
            names.append(line)
    if given is not None and tuple(names) != given:
        raise UserError(
            f"data.classes={list(given)} differs from {listed} ({names}): drop the setting or mend the file."
        )
    where = str(listed) if listed.is_file() else "data.classes"
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{where} has the class '{twice}' twice: give every class its own name.")
    if not 2 <= len(names) <= MOST_CLASSES:
        raise UserError(f"{where} has {len(names)} classes: 2 to {MOST_CLASSES} are possible.")
    return tuple(names), tuple(colours)


def _check_names(key: str, groups: Iterable[tuple[str, ...]], classes: tuple[str, ...]) -> None:
    """Every name of the groups is a class, and none stands twice."""
    names = [name for group in groups for name in group]
    for name in names:
        if name not in classes:
            raise UserError(f"data.{key} names '{name}', which is no class: {nearest(name, classes)}.")
        if names.count(name) > 1:
            raise UserError(f"data.{key} names the class '{name}' twice: leave it in one place.")


def _splits(root: Path) -> tuple[Literal["lists", "folders", "hash"], tuple[str, ...]]:
    """How the pictures are split, and the names of the splits."""
    if lists := tuple(split for split in _SPLITS if (root / f"{split}.txt").is_file()):
        return "lists", lists
    if folders := tuple(split for split in _SPLITS if (root / "images" / split).is_dir()):
        return "folders", folders
    return "hash", ("train", "val")


def _source(root: Path, settings: Settings, kind: str, read_mask: IdMask, split: str) -> Files:
    images, masks = _index(root / "images", SUFFIXES), _index(root / "masks", _MASKS)
    where = root / "images"
    if kind == "lists":
        where = root / f"{split}.txt"
        names = [_listed(root, line, images, where) for line in read_list(where)]
    elif kind == "folders":
        where = where / split
        names = [name for name in images if name.startswith(f"{split}/")]
    else:
        chosen = _for_val(images, settings)
        names = [name for name in images if (name in chosen) == (split == "val")]
        if images and not names:
            raise UserError(
                f"{where} has {len(images)} pictures, of which data.val_fraction={settings.val_fraction} puts none "
                f"into {split}: change it or data.seed, or write {split}.txt."
            )
    pairs = [Pair(name, images[name], masks.get(name) or _expected_mask(root, name)) for name in names]
    return open_pairs(pairs, read_mask, str(where))


def _expected_mask(root: Path, name: str) -> Path:
    """Where the mask that is not there belongs; a JPEG there is refused, for its compression changes ids."""
    for suffix in (".jpg", ".jpeg"):
        if (lossy := root / "masks" / f"{name}{suffix}").is_file():
            raise UserError(f"{lossy} is a JPEG, whose compression changes label ids: save it as PNG from the source.")
    return root / "masks" / f"{name}.png"


def _listed(root: Path, line: str, images: Mapping[str, Path], where: Path) -> str:
    """The record's name for a line of a list, which may carry the picture's suffix."""
    path = below(root, line, where).relative_to(root)
    for name in (path.as_posix(), path.with_suffix("").as_posix()):
        if name in images:
            return name
    raise UserError(f"{root / 'images' / line} (named by {where}) is missing: restore the picture or drop the line.")


def _index(folder: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Name relative to ``folder`` without suffix → file, in order of names."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("[!.]*")):
        if path.suffix.lower() in suffixes:
            name = path.relative_to(folder).with_suffix("").as_posix()
            if name in found:
                raise UserError(f"{found[name]} and {path.name} have the same name: remove or rename one.")
            found[name] = path
    return found


def _for_val(names: Iterable[str], settings: Settings) -> set[str]:
    """The names that the automatic split puts into ``val``: those with low hashes, and one at least of two or more."""
    hashes = {name: _hash(name, settings.seed) for name in names}
    chosen = {name for name, value in hashes.items() if value < settings.val_fraction * 2**64}
    if not chosen and len(hashes) > 1:
        chosen = {min(hashes, key=lambda name: hashes[name])}
    return chosen


def _hash(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big")
