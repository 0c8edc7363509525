"""Flickr8k as given out: Flickr8k.token.txt, the lists of the official splits, a folder of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vlp_captioning.readers.files import item, read_text
from vlp_captioning.readers.records import CaptionData, Item
from vlp_captioning.readers.visuals import VisualSettings, open_files
from vlplatform.data.root import open_root
from vlplatform.errors import UserError

SUMMARY = "Flickr8k as given out: Flickr8k.token.txt and Flickr_8k.*Images.txt, five captions each"

_LISTS = {"train": "Flickr_8k.trainImages.txt", "val": "Flickr_8k.devImages.txt", "test": "Flickr_8k.testImages.txt"}


@dataclass(frozen=True, kw_only=True)
class Settings(VisualSettings):
    """Settings of ``data=flickr8k``.

    Attributes:
        root: Folder with Flickr8k.token.txt and the lists Flickr_8k.trainImages.txt, .devImages.txt, .testImages.txt
            (at least one of them), and the folder of the pictures.
        captions: The captions' file, lines of picture#number, a tab, and a caption; may be compressed (.gz).
        images: Folder of the pictures below root; as given out it is called Flicker8k_Dataset.
    """

    root: str | None = None
    captions: str = "Flickr8k.token.txt"
    images: str = "Flicker8k_Dataset"


def open_data(settings: Settings) -> CaptionData:
    """The official splits; an item's id is the picture's name without its suffix.

    Raises:
        UserError: A file is missing or has a faulty line, or pictures or features are not there.
    """
    root = open_root(settings.root, "Flickr8k.token.txt, Flickr_8k.trainImages.txt and the pictures")
    captions = _captions(root / settings.captions)
    lists = {split: root / name for split, name in _LISTS.items() if (root / name).is_file()}
    if not lists:
        raise UserError(f"data.root={root} has none of {', '.join(_LISTS.values())}: put the official lists there.")
    splits = {split: _items(path, captions, root / settings.captions) for split, path in lists.items()}
    return open_files(
        settings,
        splits,
        name="flickr8k",
        root=root,
        where=f"data.root={root}",
        pictures=root / settings.images,
        licence="non-commercial research and education; pictures as their Flickr authors say",
        citation="Hodosh, Young, Hockenmaier: Framing image description as a ranking task, JAIR 47, 2013",
    )


def _captions(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        name, tab, caption = line.partition("\t")
        picture, mark, _ = name.rpartition("#")
        if not tab or not mark:
            raise UserError(f"{path}, line {number}, is '{line:.60}': write picture#number, a tab, and the caption.")
        found.setdefault(picture, []).append(caption.strip())
    return found


def _items(path: Path, captions: dict[str, list[str]], where: Path) -> list[Item]:
    items = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not (name := line.strip()):
            continue
        if name not in captions:
            raise UserError(
                f"{path}, line {number}, names {name}, of which {where} has no caption: add one, or remove it."
            )
        items.append(item(Path(name).stem, name, captions[name], f"{path}, line {number},"))
    return items
