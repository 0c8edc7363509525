"""CamVid with the 11 classes and the split of SegNet (Brostow et al. 2008; Badrinarayanan et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vlp_segmentation.readers.files import Files, Pair, below, open_pairs, plain_ids, read_list
from vlp_segmentation.readers.records import Reading, SegmentationData
from vlplatform.data.root import open_root
from vlplatform.errors import UserError

SUMMARY = "CamVid street scenes, 11 classes, SegNet's split"

# Name, colour, and SegNet's median-frequency weight.
_CLASSES = (
    ("Sky", (128, 128, 128), 0.2595),
    ("Building", (128, 0, 0), 0.1826),
    ("Pole", (192, 192, 128), 4.5640),
    ("Road", (128, 64, 128), 0.1417),
    ("Pavement", (60, 40, 222), 0.9051),
    ("Tree", (128, 128, 0), 0.3826),
    ("SignSymbol", (192, 128, 128), 9.6446),
    ("Fence", (64, 64, 128), 1.8418),
    ("Car", (64, 0, 128), 0.6823),
    ("Pedestrian", (64, 64, 0), 6.2478),
    ("Bicyclist", (0, 128, 192), 7.3614),
)
_UNLABELLED = 11
_PUBLISHED_PREFIX = "/SegNet/CamVid/"  # the published lists carry their author's absolute paths


@dataclass(frozen=True, kw_only=True)
class Settings(Reading):
    """Settings of ``data=camvid``.

    Attributes:
        root: Folder with train.txt, val.txt, test.txt (lines ``image label``) and the files they name.
    """

    root: str | None = None


def open_data(settings: Settings) -> SegmentationData:
    """CamVid below ``settings.root``."""
    root = open_root(settings.root, "CamVid's train.txt, val.txt and the pictures they list")
    names, palette, weights = zip(*_CLASSES)
    return SegmentationData(
        name="camvid",
        classes=names,
        palette=palette,
        source=partial(_source, root),
        reading=settings,
        class_weights=weights,
        licence="research use only",
        citation="Brostow, Fauqueur, Cipolla: Semantic object classes in video, PRL 2009; split of SegNet",
    )


def _source(root: Path, split: str) -> Files:
    listed, pairs = root / f"{split}.txt", []
    for line in read_list(listed):
        fields = [field.removeprefix(_PUBLISHED_PREFIX) for field in line.split()]
        if len(fields) != 2:
            raise UserError(f"{listed} has the line '{line}': write the picture and its label file, one blank between.")
        image, mask = (below(root, field, listed) for field in fields)
        pairs.append(Pair(image.stem, image, mask))
    return open_pairs(pairs, plain_ids(len(_CLASSES), _UNLABELLED), str(listed))
