"""A split as numbers on disk, memory-mapped: built once by streaming, then only read.

Source and target lie one behind the other as 32-bit numbers, without begin and end; so does the text of the ids and, of
splits that are not trained on, of the lines. Offsets tell where each pair begins.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vlp_translation.cache import built_once, digest_of
from vlp_translation.texts import Texts
from vlplatform.errors import UserError

if TYPE_CHECKING:
    from vlp_translation.batches import BatchSettings
    from vlp_translation.readers import Pair, ParallelData

VERSION = 2
"""To be raised whenever the files come out different, so that no old cache is taken for new."""

_COLUMNS = ("source", "target", "id", "source_line", "target_line")
_BYTES = {"source": 4, "target": 4, "id": 1, "source_line": 1, "target_line": 1}

Numbers = NDArray[np.int32]


class Corpus:
    """The pairs of a split: ``len``, and ``[i]`` → (id, source, target) with arrays of numbers.

    Args:
        folder: As :meth:`open` has built it.

    Raises:
        UserError: It is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
            self.split: str = about["split"]
            self.notes: tuple[str, ...] = tuple(about["notes"])
            """What was left out or is empty, to be shown."""
            count: int = about["pairs"]
            self._offsets = {name: _mapped(folder / f"{name}.offsets", np.int64, count + 1) for name in _COLUMNS}
            self._values = {
                name: _mapped(folder / name, np.int32 if size == 4 else np.uint8, int(self._offsets[name][-1]))
                for name, size in _BYTES.items()
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"the cached corpus in {folder} is damaged ({error}): delete that folder.") from error

    def __reduce__(self) -> tuple[type[Corpus], tuple[Path]]:
        return Corpus, (self.folder,)  # a worker maps the files itself

    @classmethod
    def open(cls, data: ParallelData, split: str, texts: Texts, settings: BatchSettings, cache: Path) -> Corpus:
        """The numbers of a split, built on first use; processes that ask at once wait for the first.

        Pairs of ``train`` are left out that are empty, too long or of too unequal lengths; :attr:`notes` counts them.
        Other splits are kept whole, with their lines; the notes count their empty pairs.

        Args:
            data: Where the pairs come from.
            split: Its name.
            texts: From lines to numbers.
            settings: What is too long and too unequal.
            cache: Folder of the cached corpora.

        Raises:
            UserError: Damaged data, no pair left, or a cache that cannot be written or read.
        """
        data.need(split)
        limits = (settings.max_length, settings.max_ratio) if split == "train" else None
        key = digest_of(data.name, data.languages, split, data.fingerprint(split), texts.digest, limits, VERSION)

        def build(folder: Path) -> None:
            _write(folder, split, data, texts, settings if split == "train" else None)

        what = f"preparing data={data.name}, {split}: lines become numbers, once"
        return cls(built_once(cache / f"corpus-{split}-{key}", build, what))

    def __len__(self) -> int:
        return len(self._offsets["id"]) - 1

    def __getitem__(self, index: int, /) -> tuple[str, Numbers, Numbers]:
        return self._text("id", index), self._cut("source", index), self._cut("target", index)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """(n, 2): numbers of the source and of the target, without begin and end."""
        return np.stack([np.diff(self._offsets[name]) for name in ("source", "target")], axis=1)

    def line(self, index: int) -> str:
        """The source as it was read; empty in ``train``."""
        return self._text("source_line", index)

    def reference(self, index: int) -> str | None:
        """The target as it was read, None if there is none; empty in ``train``."""
        text = self._text("target_line", index)
        return text[1:] if text else None

    def _cut(self, name: str, index: int) -> NDArray[Any]:
        offsets = self._offsets[name]
        if not -len(self) <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        index %= len(self)
        return self._values[name][offsets[index] : offsets[index + 1]]

    def _text(self, name: str, index: int) -> str:
        return self._cut(name, index).tobytes().decode("utf-8")


@dataclass
class _Tally:
    """Counts the pairs that something is said of."""

    heading: str
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, pair: Pair) -> None:
        """One more."""
        self.counts[what] = self.counts.get(what, 0) + 1
        self.first.setdefault(what, pair.where.rstrip(","))

    def notes(self) -> list[str]:
        """A sentence for each kind."""
        return [
            f"{self.heading}: {count} {what} (the first: {self.first[what]})"
            for what, count in sorted(self.counts.items())
        ]


def _unfit(m: int, n: int, settings: BatchSettings) -> str | None:
    """Why a pair of ``m`` and ``n`` pieces is not trained on; None where it is."""
    if not m or not n:
        return "empty"
    if max(m, n) > settings.max_length:
        return f"longer than max_length={settings.max_length}"
    if settings.max_ratio is not None and max(m, n) > settings.max_ratio * min(m, n):
        return f"more unequal than max_ratio={settings.max_ratio:g}"
    return None


class _Column:
    """A column that is being written: values one behind the other, and where each pair's begin."""

    def __init__(self, folder: Path, name: str, files: ExitStack) -> None:
        self.values = files.enter_context((folder / name).open("wb"))
        self.offsets = files.enter_context((folder / f"{name}.offsets").open("wb"))
        self.size = _BYTES[name]
        self.end = 0
        self._mark()

    def add(self, values: bytes) -> None:
        """The next pair's."""
        self.values.write(values)
        self.end += len(values) // self.size
        self._mark()

    def _mark(self) -> None:
        self.offsets.write(np.int64(self.end).tobytes())


def _write(folder: Path, split: str, data: ParallelData, texts: Texts, limits: BatchSettings | None) -> None:
    """Write a split's pairs: of training, whose ``limits`` are given, those that fit; else all, with their lines."""
    count = read = 0
    ids: set[str] = set()
    tally = _Tally("training pairs left out" if limits is not None else f"pairs of {split} that are kept")
    with ExitStack() as files:
        columns = {name: _Column(folder, name, files) for name in _COLUMNS}
        for pair in data.pairs(split):
            read += 1
            source = texts.source.encode(pair.source)
            target = [] if pair.target is None else texts.target.encode(pair.target)
            if limits is not None:
                if (why := _unfit(len(source), len(target), limits)) is not None:
                    tally.add(why, pair)
                    continue
            else:  # predictions are told apart by their ids
                if pair.id in ids:
                    raise UserError(f"{pair.where} has the id {pair.id} of an earlier line: give each its own.")
                ids.add(pair.id)
                if not source or (pair.target is not None and not target):
                    tally.add("empty", pair)
            count += 1
            columns["source"].add(np.asarray(source, np.int32).tobytes())
            columns["target"].add(np.asarray(target, np.int32).tobytes())
            columns["id"].add(pair.id.encode())
            lines = ("", "") if limits is not None else (pair.source, "" if pair.target is None else f"={pair.target}")
            for name, line in zip(("source_line", "target_line"), lines):
                columns[name].add(line.encode())
    if not count:
        told = "; ".join(tally.notes()) if read else "it has no lines"
        raise UserError(f"data={data.name} has no sentence pair for its split '{split}': {told}.")
    about = {"split": split, "pairs": count, "notes": [*tally.notes(), *data.passed_over(split)]}
    (folder / "about.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")


def _mapped(path: Path, kind: type[np.generic], count: int) -> NDArray[Any]:
    """A file as an array, not read into memory.

    Raises:
        ValueError: It has another size.
    """
    expected = count * np.dtype(kind).itemsize
    if path.stat().st_size != expected:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {expected}")
    # A plain view of the map: slices of a memmap object cost ten times as much.
    return np.memmap(path, kind, "r", shape=(count,)).view(np.ndarray) if count else np.zeros(0, kind)
