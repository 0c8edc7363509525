"""COCO's own caption files, one JSON file per split, official or of the same format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlp_captioning.readers.files import inside, item, need, read_json, rows
from vlp_captioning.readers.records import CaptionData, Item
from vlp_captioning.readers.visuals import VisualSettings, open_files
from vlplatform.data.root import open_root
from vlplatform.errors import UserError

SUMMARY = "COCO captions, or your own files of that format: captions_train.json, captions_val.json"


@dataclass(frozen=True, kw_only=True)
class Settings(VisualSettings):
    """Settings of ``data=coco``.

    Attributes:
        root: Folder that holds the caption files and the pictures.
        train: Caption file of the training split, below root; null if there is none.
        val: Caption file of the validation split; null if there is none.
        test: Caption file of the test split, or the list of its pictures without captions (image_info_test2014.json).
        images: Folder of the pictures below root, for the splits that have none of their own.
        train_images: Folder of the training pictures below root.
        val_images: Folder of the validation pictures below root.
        test_images: Folder of the test pictures below root.
    """

    root: str | None = None
    train: str | None = "captions_train.json"
    val: str | None = "captions_val.json"
    test: str | None = None
    images: str = "images"
    train_images: str | None = None
    val_images: str | None = None
    test_images: str | None = None


def open_data(settings: Settings) -> CaptionData:
    """The splits whose files are given; an item's id is COCO's image id.

    Raises:
        UserError: A file is missing or of another format, or pictures or features are not there.
    """
    root = open_root(settings.root, "captions_train.json and captions_val.json (or name them: data.train, data.val)")
    files = {split: getattr(settings, split) for split in ("train", "val", "test")}
    if not any(files.values()):
        raise UserError("data.train, data.val and data.test are all null: name one caption file at least.")
    splits = {
        split: _items(
            root / name, inside(getattr(settings, f"{split}_images") or settings.images, f"data.{split}_images")
        )
        for split, name in files.items()
        if name is not None
    }
    return open_files(
        settings,
        splits,
        name="coco",
        root=root,
        where=f"data.root={root}",
        pictures=root,
        licence="CC BY 4.0 (captions); pictures as their Flickr authors say",
        citation="Chen et al.: Microsoft COCO captions, arXiv 1504.00325, 2015; Lin et al.: Microsoft COCO, ECCV 2014",
    )


def _items(path: Path, images: str) -> list[Item]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} is not of COCO's format (an object with 'images' and 'annotations').")
    files: dict[Any, str] = {}
    for number, row in enumerate(rows(need(value, "images", str(path)), f"{path}, images")):
        where = f"{path}, images[{number}]"
        id = need(row, "id", where)
        if not isinstance(id, (str, int)) or id in files:
            raise UserError(f"{where} has the id {id!r}, which is no number or there twice: give each picture its own.")
        files[id] = inside(need(row, "file_name", where), where)
    captions: dict[Any, list[str]] = {id: [] for id in files}
    for number, row in enumerate(rows(value.get("annotations", []), f"{path}, annotations")):
        where = f"{path}, annotations[{number}]"
        id = need(row, "image_id", where)
        if not isinstance(id, (str, int)) or id not in captions:
            raise UserError(f"{where} is about the picture {id!r}, which 'images' does not list: add it there.")
        captions[id].append(need(row, "caption", where))
    return [item(id, f"{images}/{name}", captions[id], f"{path}, image {id},") for id, name in files.items()]
