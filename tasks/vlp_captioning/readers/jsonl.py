"""A user's own captions: JSON lines of {image, captions}."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlp_captioning.readers.files import item, need, read_text
from vlp_captioning.readers.records import SPLITS, CaptionData, Item
from vlp_captioning.readers.visuals import VisualSettings, open_files
from vlplatform.errors import UserError, nearest

SUMMARY = "your own captions: a file of JSON lines, {image, captions} each"

_EXAMPLE = '{"image": "dog.jpg", "captions": ["a dog runs"]}'


@dataclass(frozen=True, kw_only=True)
class Settings(VisualSettings):
    """Settings of ``data=jsonl``.

    Attributes:
        file: File of JSON lines with the keys image (a path) and captions (a list of texts, empty if there are none);
            split (train, val, test) and id (the path without its suffix by default) may be added. All captions of
            a picture belong in one line.
        val_file: The same for the validation split.
        test_file: The same for the test split.
        root: Folder that the paths count from; the folder of the file by default.
        val_fraction: Share of the pictures that an automatic split puts into val, where neither the file nor val_file
            tells; chosen by a hash of seed and id, so that new pictures move none; at least one of two or more.
        seed: Of the automatic split.
        licence: The data's licence, for reports and model cards.
        citation: How the data want to be cited, for reports and model cards.
    """

    file: str | None = None
    val_file: str | None = None
    test_file: str | None = None
    root: str | None = None
    val_fraction: float = 0.1
    seed: int = 0
    licence: str = ""
    citation: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"val_fraction={self.val_fraction} must lie between 0 and 1")


def open_data(settings: Settings) -> CaptionData:
    """The splits that the files or their ``split`` keys tell, else an automatic one, which a note mentions.

    Raises:
        UserError: No file, a faulty line, or pictures or features that are not there.
    """
    if settings.file is None:
        raise UserError(f"data.file must be given: add data.file=FILE, lines such as {_EXAMPLE}.")
    given = {"train": settings.file, "val": settings.val_file, "test": settings.test_file}
    files = {split: Path(name).expanduser() for split, name in given.items() if name is not None}
    splits: dict[str, list[Item]] = {split: [] for split in SPLITS}
    told = len(files) > 1
    for split, path in files.items():
        for said, one in _read(path):
            told |= said is not None
            if said is not None and split != "train" and said != split:
                raise UserError(f"{path} is the {split} file, but {one.id} says split={said}: remove one of the two.")
            splits[said or split].append(one)
    notes = []
    if not told:
        chosen = _for_val((one.id for one in splits["train"] if one.captions), settings)
        splits["val"] = [one for one in splits["train"] if one.id in chosen]
        splits["train"] = [one for one in splits["train"] if one.id not in chosen]
        notes = [
            f"{files['train']} names no splits: {settings.val_fraction:.0%} of the pictures, at least one, are taken "
            f"for validation by a hash of their ids (data.seed={settings.seed})"
        ]
    folder = Path(settings.root).expanduser() if settings.root is not None else files["train"].parent
    if not folder.is_dir():
        raise UserError(f"data.root={settings.root} is not a folder: give the one that the paths count from.")
    return open_files(
        settings,
        {split: items for split, items in splits.items() if items},
        name="jsonl",
        root=folder,
        where=str(files["train"]),
        pictures=folder,
        licence=settings.licence,
        citation=settings.citation,
        notes=notes,
    )


def _read(path: Path) -> list[tuple[str | None, Item]]:
    """Pairs (what the line says about its split, item)."""
    found: list[tuple[str | None, Item]] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number},"
        row = _row(line, where)
        split = row.get("split")
        if split is not None and split not in SPLITS:
            raise UserError(f"{where} has the split {split!r}: {nearest(split, SPLITS)}.")
        one = item(row.get("id", "?"), need(row, "image", where), need(row, "captions", where), where)
        name = one.id if "id" in row else str(Path(one.source).with_suffix("").as_posix())
        found.append((split, Item(name, one.source, one.captions)))
    if not found:
        raise UserError(f"{path} has no lines: write some such as {_EXAMPLE}.")
    return found


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{where} is no JSON ({error}): write {_EXAMPLE}.") from error
    if not isinstance(row, dict):
        raise UserError(f"{where} is no JSON object: write {_EXAMPLE}.")
    if unknown := set(row) - {"image", "captions", "split", "id"}:
        known = nearest(min(unknown), ("image", "captions", "split", "id"))
        raise UserError(f"{where} has the key '{min(unknown)}': {known}.")
    return row


def _for_val(ids: Iterable[str], settings: Settings) -> set[str]:
    """The ids that the automatic split puts into ``val``: those with low hashes, and one at least of two or more."""
    hashes = {name: hashlib.sha256(f"{settings.seed}:{name}".encode()).digest()[:8] for name in ids}
    order = sorted(hashes, key=lambda name: hashes[name])
    limit = settings.val_fraction * 2**64
    chosen = {name for name in order if int.from_bytes(hashes[name], "big") < limit}
    return chosen or set(order[:1] if len(order) > 1 else ())
