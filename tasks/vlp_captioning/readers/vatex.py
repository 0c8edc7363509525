"""VATEX: videos as features of their frames, ten captions each in English and in Chinese."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlp_captioning.readers.files import item, need, read_json, rows
from vlp_captioning.readers.records import CaptionData, Item, Visual, VisualSource
from vlp_captioning.readers.visuals import VisualSettings, open_files
from vlplatform.data.root import open_root

SUMMARY = "VATEX videos: captions in English or Chinese, one .npy of frame features (I3D) per video"


@dataclass(frozen=True, kw_only=True)
class Settings(VisualSettings):
    """Settings of ``data=vatex``.

    Attributes:
        root: Folder with the caption files and the features.
        features: Folder of the videos' features below root, with or without folders of its own: VIDEO.npy, frames by
            values (32 x 1024 for I3D), with or without a leading 1.
        train: Caption file of the training split; null if there is none.
        val: Caption file of the validation split; null if there is none.
        test: Caption file of the test split.
        language: Which captions to read.
    """

    root: str | None = None
    features: str | None = "features"
    train: str | None = "vatex_training_v1.0.json"
    val: str | None = "vatex_validation_v1.0.json"
    test: str | None = None
    language: Literal["en", "zh"] = "en"


def open_data(settings: Settings) -> CaptionData:
    """The splits whose files are given; an item's id is the video's, its features a row of frames.

    Raises:
        UserError: A file is missing or of another format, or features are not there.
    """
    root = open_root(settings.root, "vatex_training_v1.0.json, vatex_validation_v1.0.json and features/")
    files = {"train": settings.train, "val": settings.val, "test": settings.test}
    splits = {split: _items(root / name, settings.language) for split, name in files.items() if name is not None}
    data = open_files(
        settings,
        splits,
        name="vatex",
        root=root,
        where=f"data.root={root}",
        licence="CC BY 4.0 (captions); videos as YouTube's terms say",
        citation="Wang et al.: VATEX, a large-scale, high-quality multilingual dataset for video-and-language "
        "research, ICCV 2019",
    )
    return dataclasses.replace(data, visuals=Frames(data.visuals))


class Frames:
    """Features of frames, as a grid of one row."""

    def __init__(self, files: VisualSource) -> None:
        self.files = files

    def visual(self, item: Item) -> Visual:
        """Features (T, F) of T frames; the grid is (1, T)."""
        seen = self.files.visual(item)
        assert seen.features is not None
        return dataclasses.replace(seen, grid=(1, len(seen.features)))

    def picture(self, item: Item) -> Any:
        """There is none."""
        return None


def _items(path: Path, language: str) -> list[Item]:
    key = {"en": "enCap", "zh": "chCap"}[language]
    items = []
    for number, row in enumerate(rows(read_json(path), str(path))):
        where = f"{path}, record {number},"
        video = need(row, "videoID", where)
        items.append(item(video, video, row.get(key, []), where, file=False))
    return items
