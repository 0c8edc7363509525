"""HELEN with the 11 face labels of Smith et al. (CVPR 2013), as in the thesis' table 4.3."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vlp_segmentation.readers.files import Files, Pair, below, decode, open_pairs, plain_ids, read_list
from vlp_segmentation.readers.palette import palette
from vlp_segmentation.readers.records import Reading, SegmentationData
from vlplatform.data.root import open_root
from vlplatform.errors import UserError

SUMMARY = "HELEN faces, 11 parts (thesis table 4.3)"

_CLASSES = (
    "background",
    "skin",
    "left brow",
    "right brow",
    "left eye",
    "right eye",
    "nose",
    "upper lip",
    "inner mouth",
    "lower lip",
    "hair",
)
_PARTS = {
    "brows": ("left brow", "right brow"),
    "eyes": ("left eye", "right eye"),
    "nose": ("nose",),
    "mouth": ("upper lip", "inner mouth", "lower lip"),
}
_LISTS = {"train": "exemplars.txt", "val": "tuning.txt", "test": "testing.txt"}


@dataclass(frozen=True, kw_only=True)
class Settings(Reading):
    """Settings of ``data=helen``.

    Attributes:
        root: Folder with images/, labels/, exemplars.txt, tuning.txt and testing.txt.
    """

    root: str | None = None


def open_data(settings: Settings) -> SegmentationData:
    """HELEN below ``settings.root``: labels/ID/ID_lblNN.png (one soft map per class) or labels/ID.png (ids)."""
    root = open_root(settings.root, "HELEN's images/, labels/ and exemplars.txt")
    return SegmentationData(
        name="helen",
        classes=_CLASSES,
        palette=palette(len(_CLASSES)),
        source=partial(_source, root),
        reading=settings,
        flip_pairs=((2, 3), (4, 5)),
        parts=_PARTS,
        licence="research use only",
        citation="Smith, Zhang, Brandt, Lin, Yang: Exemplar-based face parsing, CVPR 2013",
    )


def _source(root: Path, split: str) -> Files:
    listed, pairs = root / _LISTS[split], []
    for line in read_list(listed):
        name = line.split(",")[-1].strip()  # "17 , 100466187_1"
        image, maps = below(root / "images", f"{name}.jpg", listed), below(root / "labels", name, listed)
        pairs.append(Pair(name, image, maps if maps.is_dir() else maps.with_name(f"{name}.png")))
    return open_pairs(pairs, _read_mask, str(listed))


def _read_mask(path: Path) -> Tensor:
    """Class ids (H, W) uint8: of soft maps the strongest, the first of equal ones (so 0 where all are 0)."""
    if not path.is_dir():
        return plain_ids(len(_CLASSES))(path)
    files = [path / f"{path.name}_lbl{i:02d}.png" for i in range(len(_CLASSES))]
    maps = [decode(file) for file in files]
    for file, soft in zip(files, maps):
        if soft.shape != maps[0].shape:
            raise UserError(f"{file} differs in size from {files[0].name}: restore the original file.")
    return torch.from_numpy(np.stack(maps).argmax(0).astype(np.uint8))
