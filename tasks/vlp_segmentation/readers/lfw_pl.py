"""LFW part labels: skin, hair, background (Kae et al. 2013), as in the thesis' table 4.4."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from vlp_segmentation.readers.files import ColourMask, Files, Pair, below, open_pairs, read_list
from vlp_segmentation.readers.records import Reading, SegmentationData
from vlplatform.data.root import open_root
from vlplatform.errors import UserError

SUMMARY = "LFW-PL faces: skin, hair, background (thesis table 4.4)"

_CLASSES = ("background", "skin", "hair")
_PALETTE = ((0, 0, 255), (0, 255, 0), (255, 0, 0))
_LISTS = {
    "train": "parts_train.txt",
    "train_val": "parts_train_val.txt",
    "val": "parts_validation.txt",
    "test": "parts_test.txt",
}


@dataclass(frozen=True, kw_only=True)
class Settings(Reading):
    """Settings of ``data=lfw_pl``.

    Attributes:
        root: Folder with lfw_funneled/, parts_lfw_funneled_gt_images/ and the lists parts_*.txt.
        train_on: What ``train`` means: the 1 500 of parts_train.txt (as in the thesis), or the 2 000 of
            parts_train_val.txt (for a last run before testing; they contain the validation split).
    """

    root: str | None = None
    train_on: Literal["train", "train_val"] = "train"


def open_data(settings: Settings) -> SegmentationData:
    """LFW-PL below ``settings.root``: lines ``NAME NUMBER``, masks painted red, green and blue."""
    root = open_root(settings.root, "LFW-PL's lfw_funneled/, parts_lfw_funneled_gt_images/ and parts_train.txt")
    return SegmentationData(
        name="lfw_pl",
        classes=_CLASSES,
        palette=_PALETTE,
        source=partial(_source, root, settings.train_on),
        reading=settings,
        licence="research use only",
        citation="Kae, Sohn, Lee, Learned-Miller: Augmenting CRFs with Boltzmann machine shape priors, CVPR 2013",
    )


def _source(root: Path, train_on: str, split: str) -> Files:
    listed = root / _LISTS[train_on if split == "train" else split]
    pairs = []
    for line in read_list(listed):
        fields = line.split()
        if len(fields) != 2 or not fields[1].isdecimal():
            raise UserError(f"{listed} has the line '{line}': write a person's name and the picture's number.")
        person, name = fields[0], f"{fields[0]}_{int(fields[1]):04d}"
        image = below(root / "lfw_funneled", f"{person}/{name}.jpg", listed)
        mask = below(root / "parts_lfw_funneled_gt_images", f"{name}.ppm", listed)
        pairs.append(Pair(name, image, mask))
    colours = {colour: i for i, colour in enumerate(_PALETTE)}
    return open_pairs(pairs, ColourMask(colours), str(listed))
