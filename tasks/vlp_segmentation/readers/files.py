"""Pictures, masks and lists on disk, read with every fault named: the file, what is wrong with it, the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlp_segmentation.augmentation import IGNORE
from vlplatform.errors import UserError
from vlplatform.vision.pictures import opened, read_image, read_rgb

_INVALID = 254  # marks raw ids without a class; hence at most 254 classes
MOST_CLASSES = _INVALID


@dataclass(frozen=True)
class Pair:
    """A record's id and files; ``mask`` may be a folder where a data set has one file per class."""

    id: str
    image: Path
    mask: Path


@dataclass(frozen=True)
class Files:
    """A split that lies on disk as pairs; ``read_mask`` maps a path to class ids (H, W) uint8."""

    pairs: tuple[Pair, ...]
    read_mask: Callable[[Path], Tensor]

    @property
    def ids(self) -> Sequence[str]:
        """The pairs' ids."""
        return [pair.id for pair in self.pairs]

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """Picture (3, H, W) and mask (H, W), both uint8.

        Raises:
            UserError: A file is unreadable, the sizes differ, or the mask has an invalid label.
        """
        pair = self.pairs[index]
        image, mask = read_image(pair.image), self.read_mask(pair.mask)
        if image.shape[1:] != mask.shape:
            (h, w), (rows, columns) = image.shape[1:], mask.shape
            raise UserError(
                f"{pair.mask} is {columns} × {rows} but its picture {pair.image} is {w} × {h}: "
                "save both at the same size."
            )
        return image, mask


def open_pairs(pairs: Iterable[Pair], read_mask: Callable[[Path], Tensor], where: str) -> Files:
    """The pairs as a source, after a look (without decoding) that each id is new and each file is there.

    Raises:
        UserError: No pair at all (``where`` says where they were looked for), a missing file, an id twice.
    """
    checked: dict[str, Pair] = {}
    for pair in pairs:
        if pair.id in checked:
            raise UserError(f"{where} has the record '{pair.id}' twice: remove one.")
        if not pair.image.is_file():
            raise UserError(f"{pair.image} (named by {where}) is missing: restore it or drop it from the split.")
        if not pair.mask.exists():
            raise UserError(f"{pair.image} has no mask: {pair.mask} is missing; add it or drop the picture.")
        checked[pair.id] = pair
    if not checked:
        raise UserError(f"{where} has no pictures: put them there, or correct data.root.")
    return Files(tuple(checked.values()), read_mask)


def read_list(path: Path) -> list[str]:
    """The non-empty lines of a list of records.

    Raises:
        UserError: The file is missing, is no text, or lists nothing.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing: put the list of the split's records there, or choose another split.")
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text ({error}): save it as UTF-8, one record a line.") from error
    if not any(lines):
        raise UserError(f"{path} lists no records: write one a line.")
    return [line for line in lines if line]


def below(root: Path, relative: str, where: Path) -> Path:
    """``root / relative`` for a path out of the list ``where``.

    Raises:
        UserError: The path leaves ``root``.
    """
    plain = PurePosixPath(relative.replace("\\", "/"))
    if plain.is_absolute() or ".." in plain.parts or ":" in plain.parts[0]:
        raise UserError(f"{where} names '{relative}', which lies outside {root}: list paths relative to that folder.")
    return root / plain


def decode(path: Path) -> np.ndarray[Any, Any]:
    """A mask's pixels as they are stored, (H, W), writable.

    Raises:
        UserError: The file is missing, truncated, no picture, or one in colour.
    """
    with opened(path) as picture:
        if picture.mode not in ("1", "L", "P", "I", "I;16", "I;16B"):
            raise UserError(
                f"{path} is a colour picture ({picture.mode}), not a mask: save class ids as an 8-bit grey or "
                "palette PNG."
            )
        return np.array(picture)


class IdMask:
    """Reads masks that store one id per pixel, and maps the ids to classes.

    Args:
        ids: Raw id → class, or 255 for "ignore".
        valid: The raw ids in words, for messages.
    """

    def __init__(self, ids: Mapping[int, int], valid: str) -> None:
        self.valid = valid
        self.table = np.full(256, _INVALID, dtype=np.uint8)
        self.table[list(ids)] = list(ids.values())

    def __call__(self, path: Path) -> Tensor:
        """The mask (H, W) uint8.

        Raises:
            UserError: Unreadable, in colour, or with an id that has no class.
        """
        raw = decode(path)
        if raw.dtype != np.uint8:  # black and white, or 16 bits and more
            if raw.max() > 255:
                raise self._refusal(path, int(raw.max()))
            raw = raw.astype(np.uint8)
        classes = np.take(self.table, raw)
        if (wrong := classes == _INVALID).any():
            raise self._refusal(path, int(raw[wrong][0]))
        return torch.from_numpy(classes)

    def _refusal(self, path: Path, label: int) -> UserError:
        return UserError(f"{path} has the label id {label}, valid are {self.valid}: correct the mask or the classes.")


class ColourMask:
    """Reads masks that paint each class in one colour.

    Args:
        colours: RGB colour → class.
    """

    def __init__(self, colours: Mapping[tuple[int, int, int], int]) -> None:
        self.colours = dict(colours)

    def __call__(self, path: Path) -> Tensor:
        """The mask (H, W) uint8.

        Raises:
            UserError: Unreadable, or with a colour that has no class.
        """
        pixels = read_rgb(path)
        classes = np.full(pixels.shape[:2], _INVALID, dtype=np.uint8)
        for colour, class_id in self.colours.items():
            classes[(pixels == colour).all(-1)] = class_id
        if (wrong := classes == _INVALID).any():
            colour, known = tuple(pixels[wrong][0].tolist()), ", ".join(map(str, self.colours))
            raise UserError(f"{path} has the colour {colour}, valid are {known}: use the original lossless masks.")
        return torch.from_numpy(classes)


def plain_ids(count: int, ignore: int = IGNORE) -> IdMask:
    """Masks whose ids are the classes 0 … ``count`` − 1, with ``ignore`` and 255 for unlabelled pixels."""
    ids = {**{i: i for i in range(count)}, IGNORE: IGNORE, ignore: IGNORE}
    return IdMask(ids, f"0 … {count - 1} and {ignore} (ignore)")
