"""Features of many pictures in a folder of shards: memory-mapped, checked, safe against a kill while they are written.

A shard is a safetensors file with the vectors of its records one below the other, and in its header who they belong to;
``index.json`` lists the finished shards with their sizes and SHA-256. A shard appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor

from vlplatform.errors import UserError

INDEX = "index.json"
"""The file that makes a folder one of shards."""

FORMAT = "vlplatform.shards.1"
_DTYPES = {"float16": torch.float16, "float32": torch.float32}
_LARGEST = {"float16": 65504.0}


@dataclass(frozen=True)
class Record:
    """What is kept of one picture.

    Attributes:
        features: (N, F); N may differ from record to record.
        boxes: (N, 4): left, top, right, bottom in pixels of the picture.
        scores: (N,): how sure the detector was, 0 … 1.
        grid: (rows, columns) where the vectors are cells row by row.
        size: (width, height) of the picture.
        words: Detected attribute words, the surest first.
    """

    features: Tensor
    boxes: Tensor | None = None
    scores: Tensor | None = None
    grid: tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    words: tuple[str, ...] = ()


class ShardWriter:
    """Writes records into a folder; after a kill, the same call finds what is whole and goes on from there.

    Use it in a ``with`` block, skip the keys in ``done``, and call :meth:`finish` after the last record.

    Args:
        folder: Made if missing; must be empty, or written by a run of the same settings.
        settings: What the records depend on, JSON-ready; kept in the index, and compared when a run continues.
        records: Records in a shard.
        dtype: Of the features; boxes and scores are float32.
        about: What else is worth knowing, JSON-ready; kept in the index, too, but never compared.

    Raises:
        UserError: The folder holds something else, was written with other settings, or is being written by another run.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        records: int = 512,
        dtype: Literal["float16", "float32"] = "float32",
        about: Mapping[str, Any] | None = None,
    ) -> None:
        from filelock import FileLock, Timeout

        self.folder, self.dtype, self.records = folder, dtype, records
        self.settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        self.about = dict(about or {})
        self.done: set[str] = set()
        """The keys of all records in whole shards."""
        self._waiting: dict[str, Record] = {}
        self._shards: list[dict[str, Any]] = []
        self._width: int | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise UserError(
                f"{folder} is being written by another run: wait for it, or name another folder."
            ) from error
        try:
            self._resume()
        except BaseException:
            self._lock.release()
            raise

    def add(self, key: str, record: Record) -> None:
        """Take a record; it is on the disk once its shard is full.

        Raises:
            ValueError: The key is there already, or the record's shapes do not fit each other or the other records'.
            UserError: A value too large for float16.
        """
        features = record.features
        if key in self.done or key in self._waiting:
            raise ValueError(f"the record {key!r} is there already")
        if features.ndim != 2 or (self._width is not None and features.shape[1] != self._width):
            raise ValueError(f"features of shape {tuple(features.shape)} where (N, {self._width or 'F'}) is expected")
        for name, shape in (("boxes", (len(features), 4)), ("scores", (len(features),))):
            tensor: Tensor | None = getattr(record, name)
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"{name} of shape {tuple(tensor.shape)} where {shape} is expected")
        if record.grid is not None and record.grid[0] * record.grid[1] != len(features):
            raise ValueError(f"{len(features)} vectors for a grid of {record.grid}")
        if self.dtype in _LARGEST and bool((features.abs() > _LARGEST[self.dtype]).any()):
            raise UserError(f"the features of {key} are too large for float16: use dtype=float32.")
        self._width = features.shape[1]
        self._waiting[key] = record
        if len(self._waiting) == self.records:
            self._flush()

    def finish(self) -> None:
        """Write the last shard and say in the index that all are there."""
        self._flush()
        self._write_index(complete=True)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def _flush(self) -> None:
        from safetensors.torch import save

        if not self._waiting:
            return
        given = self._waiting.values()
        tensors = {"features": torch.cat([r.features.detach().cpu().to(_DTYPES[self.dtype]) for r in given])}
        for name, width in (("boxes", (4,)), ("scores", ())):
            parts: list[Tensor | None] = [getattr(r, name) for r in given]
            if any(part is not None for part in parts):
                rows = [torch.empty(0, *width) if p is None else p.detach().cpu().float() for p in parts]
                tensors[name] = torch.cat(rows)
        about = [
            {
                "key": key,
                "count": len(r.features),
                "boxes": r.boxes is not None,
                "scores": r.scores is not None,
                "grid": r.grid,
                "size": r.size,
                "words": r.words,
            }
            for key, r in self._waiting.items()
        ]
        data = save(tensors, {FORMAT: json.dumps(about, ensure_ascii=False)})  # one entry: several have no fixed order
        taken = {shard["file"] for shard in self._shards}
        name = next(n for i in range(len(taken) + 1) if (n := f"shard-{i:05d}.safetensors") not in taken)
        _write_whole(self.folder / name, data)
        self._shards.append(_entry(name, data, len(about)))
        self._shards.sort(key=lambda shard: shard["file"])
        self._write_index(complete=False)
        self.done.update(self._waiting)
        self._waiting.clear()

    def _write_index(self, *, complete: bool) -> None:
        index = {
            "format": FORMAT,
            "complete": complete,
            "dtype": self.dtype,
            "settings": self.settings,
            **({"about": self.about} if self.about else {}),
            "shards": self._shards,
        }
        _write_whole(self.folder / INDEX, (json.dumps(index, indent=1, ensure_ascii=False) + "\n").encode())

    def _resume(self) -> None:
        """Take over whole shards; throw away what is broken, so that its records are made again."""
        others = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
        if not (self.folder / INDEX).is_file():
            if others:
                raise UserError(f"{self.folder} holds other files ({others[0].name}): name a new or empty folder.")
            self._write_index(complete=False)
            return
        index = _read_index(self.folder)
        begun = any(self.folder.glob("shard-*.safetensors"))
        if begun and (index["settings"] != self.settings or index["dtype"] != self.dtype):
            before, now = (
                {**s, "dtype": d} for s, d in ((index["settings"], index["dtype"]), (self.settings, self.dtype))
            )
            key = next(key for key in {**before, **now} if before.get(key) != now.get(key))
            raise UserError(
                f"{self.folder} was written with {key}={before.get(key)}, not {now.get(key)}: "
                "give the same settings to continue, or name another folder."
            )
        known = {shard["file"]: shard for shard in index["shards"]}
        for path in sorted(self.folder.glob("*shard-*.safetensors")):
            try:
                keys, width = _keys_of(path)
                data = path.read_bytes() if path.name not in known else b""
                entry = known.get(path.name) or _entry(path.name, data, len(keys))
                if path.name.startswith(".") or path.stat().st_size != entry["bytes"]:
                    raise ValueError("not whole")
            except (UserError, ValueError):
                path.unlink()
                continue
            self._shards.append(entry)
            self.done.update(keys)
            self._width = width
        self._write_index(complete=False)


class Shards(Mapping[str, Record]):
    """The records of a finished folder by key, read from memory maps when asked for.

    Attributes:
        settings: What the records were made with.
        about: What else the writer was told; empty in most folders.

    Raises:
        UserError: The folder is no such folder, unfinished, or a shard is missing, cut off or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = _read_index(folder)
        if not index["complete"]:
            raise UserError(f"{folder} is unfinished: run the same vlp prepare again, it goes on where it stopped.")
        self.settings: Mapping[str, Any] = index["settings"]
        self.about: Mapping[str, Any] = index.get("about", {})
        self._files: list[dict[str, Any]] = index["shards"]
        self._places: dict[str, tuple[int, int, int, dict[str, Any]]] = {}
        self._open: dict[int, Any] = {}
        for number, shard in enumerate(self._files):
            path = folder / _plain(shard["file"], folder)
            if not path.is_file() or path.stat().st_size != shard["bytes"]:
                raise UserError(f"{path} is missing or cut off: run the same vlp prepare again, it makes it anew.")
            rows = {"features": 0, "boxes": 0, "scores": 0}
            for about in _about(path):
                self._places[about["key"]] = (number, rows["features"], rows["boxes"], {**about, "at": rows["scores"]})
                rows["features"] += about["count"]
                rows["boxes"] += about["count"] * about["boxes"]
                rows["scores"] += about["count"] * about["scores"]

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __getitem__(self, key: str) -> Record:
        """The record, its features in float32.

        Raises:
            UserError: No such record, or one that cannot be read.
        """
        if key not in self._places:
            raise UserError(f"{self.folder} has no record '{key}': run vlp prepare for that picture too.")
        number, row, box, about = self._places[key]
        count, at = about["count"], about["at"]
        file = self._file(number)
        return Record(
            features=_slice(file, "features", row, count).float(),
            boxes=_slice(file, "boxes", box, count) if about["boxes"] else None,
            scores=_slice(file, "scores", at, count) if about["scores"] else None,
            grid=None if about["grid"] is None else (about["grid"][0], about["grid"][1]),
            size=None if about["size"] is None else (about["size"][0], about["size"][1]),
            words=tuple(about["words"]),
        )

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def verify(self) -> list[str]:
        """Read everything and compare checksums; one sentence per damaged shard (empty: all are sound)."""
        faults = []
        for shard in self._files:
            if _sha256(self.folder / shard["file"]) != shard["sha256"]:
                path = self.folder / shard["file"]
                faults.append(f"{path} is damaged: delete it and run the same vlp prepare again, it makes it anew.")
        return faults

    def _file(self, number: int) -> Any:
        if number not in self._open:
            self._open[number] = _opened(self.folder / self._files[number]["file"])
        return self._open[number]


def _write_whole(path: Path, data: bytes) -> None:
    """Write aside, wait for the disk, and rename into place."""
    aside = path.with_name(f".tmp-{path.name}")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _slice(file: Any, name: str, start: int, count: int) -> Tensor:
    return file.get_slice(name)[start : start + count]


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({error}): delete it and run the same vlp prepare again.") from error


def _about(path: Path) -> list[dict[str, Any]]:
    """The records of a shard, as its header tells."""
    metadata = _opened(path).metadata() or {}
    if FORMAT not in metadata:
        raise UserError(f"{path} is no shard of features ({FORMAT}): remove it, and run vlp prepare again.")
    try:
        return json.loads(metadata[FORMAT])
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): delete it and run the same vlp prepare again.") from error


def _keys_of(path: Path) -> tuple[list[str], int]:
    return [about["key"] for about in _about(path)], _opened(path).get_slice("features").get_shape()[1]


def _entry(name: str, data: bytes, records: int) -> dict[str, Any]:
    return {"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "records": records}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**22):
            digest.update(block)
    return digest.hexdigest()


def _plain(name: Any, folder: Path) -> str:
    if not isinstance(name, str) or os.path.basename(name) != name or not name.endswith(".safetensors"):
        raise UserError(f"{folder / INDEX} names the shard {name!r}, which is no plain file name: it is damaged.")
    return name


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        if index["format"] != FORMAT:
            raise UserError(f"{path} has the format {index['format']}, not {FORMAT}: use the version that wrote it.")
        sound = (
            isinstance(index["settings"], dict) and index["dtype"] in _DTYPES and isinstance(index["complete"], bool)
        )
        sound = sound and isinstance(index.get("about", {}), dict)
        if not sound or not all({"file", "bytes", "sha256"} <= set(shard) for shard in index["shards"]):
            raise ValueError("keys are missing")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read as an index of shards ({error}): run vlp prepare anew.") from error
    return index
