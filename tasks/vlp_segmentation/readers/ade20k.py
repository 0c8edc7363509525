"""ADE20K scene parsing, 150 classes (Zhou et al. 2017), in the layout of ADEChallengeData2016."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vlp_segmentation.augmentation import IGNORE
from vlp_segmentation.readers.files import Files, IdMask, Pair, open_pairs
from vlp_segmentation.readers.palette import palette
from vlp_segmentation.readers.records import Reading, SegmentationData
from vlplatform.data.root import open_root

SUMMARY = "ADE20K scene parsing, 150 classes"

_CLASSES = 150
_FOLDERS = {"train": "training", "val": "validation"}


@dataclass(frozen=True, kw_only=True)
class Settings(Reading):
    """Settings of ``data=ade20k``.

    Attributes:
        root: Folder with images/{training,validation}/*.jpg and annotations/{training,validation}/*.png.
    """

    root: str | None = None


def open_data(settings: Settings) -> SegmentationData:
    """ADE20K below ``settings.root``: label 0 ("other") is ignored, label k is class k − 1.

    The colours are ours (Pascal VOC's sequence), not those of the benchmark's pictures.
    """
    root = open_root(settings.root, "ADE20K's images/ and annotations/")
    names = Path(__file__).with_name("ade20k_classes.txt").read_text(encoding="utf-8").splitlines()
    return SegmentationData(
        name="ade20k",
        classes=tuple(names),
        palette=palette(_CLASSES + 1)[1:],
        source=partial(_source, root),
        reading=settings,
        splits=tuple(_FOLDERS),
        licence="pictures: non-commercial research and education",
        citation="Zhou et al.: Scene parsing through ADE20K dataset, CVPR 2017",
    )


def _source(root: Path, split: str) -> Files:
    images, labels = root / "images" / _FOLDERS[split], root / "annotations" / _FOLDERS[split]
    pairs = [Pair(image.stem, image, labels / f"{image.stem}.png") for image in sorted(images.glob("[!.]*.jpg"))]
    ids = {0: IGNORE, **{k: k - 1 for k in range(1, _CLASSES + 1)}}
    return open_pairs(pairs, IdMask(ids, f"0 (ignore) … {_CLASSES}"), str(images))
