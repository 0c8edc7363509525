"""Cityscapes, fine annotations, the 19 evaluated classes (Cordts et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from vlp_segmentation.augmentation import IGNORE
from vlp_segmentation.readers.files import Files, IdMask, Pair, open_pairs, plain_ids
from vlp_segmentation.readers.records import Reading, SegmentationData
from vlplatform.data.root import open_root

SUMMARY = "Cityscapes street scenes, fine annotations, 19 classes"

# Name, id in the labelIds files, colour.
_CLASSES = (
    ("road", 7, (128, 64, 128)),
    ("sidewalk", 8, (244, 35, 232)),
    ("building", 11, (70, 70, 70)),
    ("wall", 12, (102, 102, 156)),
    ("fence", 13, (190, 153, 153)),
    ("pole", 17, (153, 153, 153)),
    ("traffic light", 19, (250, 170, 30)),
    ("traffic sign", 20, (220, 220, 0)),
    ("vegetation", 21, (107, 142, 35)),
    ("terrain", 22, (152, 251, 152)),
    ("sky", 23, (70, 130, 180)),
    ("person", 24, (220, 20, 60)),
    ("rider", 25, (255, 0, 0)),
    ("car", 26, (0, 0, 142)),
    ("truck", 27, (0, 0, 70)),
    ("bus", 28, (0, 60, 100)),
    ("train", 31, (0, 80, 100)),
    ("motorcycle", 32, (0, 0, 230)),
    ("bicycle", 33, (119, 11, 32)),
)
_LABEL_IDS = (*range(34), 255)  # 255 is the licence plate, −1 in a byte
_IMAGE, _TRAIN_IDS, _LABELS = "_leftImg8bit.png", "_gtFine_labelTrainIds.png", "_gtFine_labelIds.png"


@dataclass(frozen=True, kw_only=True)
class Settings(Reading):
    """Settings of ``data=cityscapes``.

    Attributes:
        root: Folder with leftImg8bit/SPLIT/CITY/ and gtFine/SPLIT/CITY/.
    """

    root: str | None = None


class _Labels:
    """Reads either of the published label files; which one it is, the name says."""

    def __init__(self) -> None:
        evaluated = {label: i for i, (_, label, _) in enumerate(_CLASSES)}
        self.label_ids = IdMask({i: evaluated.get(i, IGNORE) for i in _LABEL_IDS}, "0 … 33 and 255")
        self.train_ids = plain_ids(len(_CLASSES))

    def __call__(self, path: Path) -> torch.Tensor:
        return (self.train_ids if path.name.endswith(_TRAIN_IDS) else self.label_ids)(path)


def open_data(settings: Settings) -> SegmentationData:
    """Cityscapes below ``settings.root``; labelTrainIds files are taken where they exist, else labelIds."""
    root = open_root(settings.root, "Cityscapes' leftImg8bit/ and gtFine/")
    return SegmentationData(
        name="cityscapes",
        classes=tuple(name for name, _, _ in _CLASSES),
        palette=tuple(colour for _, _, colour in _CLASSES),
        source=partial(_source, root),
        reading=settings,
        licence="Cityscapes terms: non-commercial, no redistribution",
        citation="Cordts et al.: The Cityscapes dataset for semantic urban scene understanding, CVPR 2016",
    )


def _source(root: Path, split: str) -> Files:
    images, pairs = root / "leftImg8bit" / split, []
    for image in sorted(images.glob(f"*/*{_IMAGE}")):
        name = image.name.removesuffix(_IMAGE)
        labels = root / "gtFine" / split / image.parent.name
        train_ids = labels / f"{name}{_TRAIN_IDS}"
        pairs.append(Pair(name, image, train_ids if train_ids.is_file() else labels / f"{name}{_LABELS}"))
    return open_pairs(pairs, _Labels(), str(images))
