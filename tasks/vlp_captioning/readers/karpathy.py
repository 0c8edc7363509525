"""Karpathy's files: dataset_coco.json, dataset_flickr8k.json, dataset_flickr30k.json, and others of that format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vlp_captioning.readers.files import item, need, read_json, rows
from vlp_captioning.readers.records import SPLITS, CaptionData, Item
from vlp_captioning.readers.visuals import VisualSettings, open_files
from vlplatform.data.root import open_root
from vlplatform.errors import UserError, nearest

SUMMARY = "Karpathy's splits of COCO, Flickr8k and Flickr30k: dataset_*.json beside the pictures or features"

_CITATION = "Karpathy, Fei-Fei: Deep visual-semantic alignments for generating image descriptions, CVPR 2015"
_DATA_SETS = {  # dataset → licence, citation
    "coco": ("CC BY 4.0 (captions); pictures as their Flickr authors say", "Lin et al.: Microsoft COCO, ECCV 2014"),
    "flickr8k": (
        "non-commercial research and education",
        "Hodosh, Young, Hockenmaier: Framing image description as a ranking task, JAIR 47, 2013",
    ),
    "flickr30k": (
        "non-commercial research and education",
        "Young, Lai, Hodosh, Hockenmaier: From image descriptions to visual denotations, TACL 2, 2014",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Settings(VisualSettings):
    """Settings of ``data=karpathy``.

    Attributes:
        root: Folder with dataset_coco.json, dataset_flickr8k.json, dataset_flickr30k.json or the like.
        file: Its name, where the folder has several.
        images: Folder of the pictures below root; COCO's are in train2014/ and val2014/ in it.
        restval: Add the pictures marked restval to the training split, as all papers do.
    """

    root: str | None = None
    file: str | None = None
    images: str = "images"
    restval: bool = True


def open_data(settings: Settings) -> CaptionData:
    """The splits as the file has them; an item's id is COCO's image id, else the file's own ``imgid``.

    Raises:
        UserError: No such file, one of another format, or pictures or features that are not there.
    """
    root = open_root(settings.root, "dataset_coco.json, dataset_flickr8k.json or dataset_flickr30k.json")
    path = _file(root, settings.file)
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} is not of Karpathy's format (an object with 'images'): name another with data.file.")
    splits: dict[str, list[Item]] = {split: [] for split in SPLITS}
    rest = 0
    for number, row in enumerate(rows(need(value, "images", str(path)), f"{path}, images")):
        where = f"{path}, images[{number}]"
        split = need(row, "split", where)
        if split == "restval":
            rest += 1
            if not settings.restval:
                continue
            split = "train"
        if split not in splits:
            raise UserError(f"{where} has the split {split!r}: {nearest(split, [*SPLITS, 'restval'])}.")
        sentences = rows(row.get("sentences", []), f"{where}, sentences")
        source = need(row, "filename", where)
        if row.get("filepath"):
            source = f"{row['filepath']}/{source}"
        raw = [need(sentence, "raw", where) for sentence in sentences]
        tokens = [sentence["tokens"] for sentence in sentences] if all("tokens" in s for s in sentences) else None
        name = row["cocoid"] if "cocoid" in row else row.get("imgid", number)
        splits[split].append(item(name, source, raw, where, tokens))
    licence, citation = _DATA_SETS.get(str(value.get("dataset")), ("", ""))
    notes = (
        [f"pictures marked restval {'count as training' if settings.restval else 'are left out'}: {rest}"]
        if rest
        else []
    )
    return open_files(
        settings,
        {split: items for split, items in splits.items() if items},
        name="karpathy",
        root=root,
        where=str(path),
        pictures=root / settings.images,
        licence=licence,
        citation=f"{citation}; splits: {_CITATION}" if citation else _CITATION,
        notes=notes,
    )


def _file(root: Path, name: str | None) -> Path:
    if name is not None:
        return root / name
    found = sorted(path.name for path in root.glob("dataset*.json"))
    if len(found) != 1:
        held = f"holds {', '.join(found)}" if found else "holds no dataset_*.json"
        raise UserError(f"data.root={root} {held}: name the file with data.file=NAME.")
    return root / found[0]
