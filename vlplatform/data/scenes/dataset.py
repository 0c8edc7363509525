"""Scenes on disk: each split a memory-mapped ``datasets`` folder, made once and then only read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vlplatform.data import cache_folder
from vlplatform.data.scenes.scene import Scene, scene
from vlplatform.data.scenes.world import ScenesSettings
from vlplatform.errors import UserError, nearest

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS: tuple[str, ...] = ("train", "val", "test")
VERSION = 1
"""To be raised whenever a scene of the same seed comes out different, so that no old cache is taken for new."""


def split_seed(settings: ScenesSettings, split: str) -> int:
    """The world seed of a split: no two of (``settings.seed``, split) share one.

    Raises:
        UserError: Unknown split.
    """
    if split not in SPLITS:
        raise UserError(f"Scenes has no split '{split}': {nearest(split, SPLITS)}.")
    return settings.seed * len(SPLITS) + SPLITS.index(split)


def load(split: str, settings: ScenesSettings | None = None, cache: Path | None = None) -> Dataset:
    """The records of a split, memory-mapped; generated on first use.

    A record holds ``id``; ``image``, ``labels`` and ``instances`` as raw bytes of ``size`` × ``size`` pixels (see
    :class:`Pictures`); ``grounds``; ``things`` with ``shape``, ``colour``, ``texture``, ``size`` and ``box``;
    ``features`` (N, D); ``captions``; ``questions``; ``expressions``; and ``pairs`` with ``vela`` and ``toru``.

    Processes that ask for the same split at once wait for the first to finish it.

    Args:
        split: ``train``, ``val`` or ``test``.
        settings: The defaults if None.
        cache: Folder of the cached splits; else ``scenes`` in :func:`vlplatform.data.cache_folder`.

    Raises:
        UserError: Unknown split; the cache cannot be written, or is damaged.
    """
    from datasets import load_from_disk
    from datasets.exceptions import DatasetGenerationError
    from filelock import FileLock

    settings = settings or ScenesSettings()
    seed = split_seed(settings, split)
    folder = (cache or cache_folder() / "scenes") / _folder_name(split, settings)
    try:
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not folder.exists():
                    _build(folder, seed, getattr(settings, split), settings)
    except (OSError, DatasetGenerationError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise UserError(
            f"the Scenes data cannot be written to {folder.parent} ({cause.strerror or cause}): "
            "make room there, or name another folder with VLP_CACHE."
        ) from error
    try:
        with _quiet():
            data: Any = load_from_disk(str(folder))
    except Exception as error:  # whatever a damaged file makes pyarrow or datasets raise
        raise UserError(f"the cached Scenes data in {folder} is damaged ({error}): delete that folder.") from error
    if len(data) != getattr(settings, split):
        raise UserError(f"the cached Scenes data in {folder} is incomplete: delete that folder.")
    return data


class Pictures:
    """A loaded split as pictures and label maps alone, read straight from the memory map.

    ``len`` and ``[i]`` → (image (H, W, 3) uint8, labels (H, W) uint8, id). The arrays are read-only views of the
    file: copy before writing into them.
    """

    def __init__(self, data: Dataset, settings: ScenesSettings | None = None) -> None:
        self._size = (settings or ScenesSettings()).size
        self._rows = data.select_columns(["image", "labels", "id"]).with_format("arrow")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> tuple[np.ndarray, np.ndarray, str]:
        row: Any = self._rows[index]
        size = self._size
        image = np.frombuffer(row["image"][0].as_buffer(), np.uint8).reshape(size, size, 3)
        labels = np.frombuffer(row["labels"][0].as_buffer(), np.uint8).reshape(size, size)
        return image, labels, row["id"][0].as_py()


def _folder_name(split: str, settings: ScenesSettings) -> str:
    """Named by what decides the split's contents: all settings but the other splits' counts, and the version."""
    key = {k: v for k, v in dataclasses.asdict(settings).items() if k not in SPLITS}
    key |= {"version": VERSION, "split": split, "count": getattr(settings, split)}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    return f"{split}-{key['count']}-{digest}"


def _build(folder: Path, seed: int, count: int, settings: ScenesSettings) -> None:
    """Generate a split beside ``folder`` and move it there when whole; the caller holds the lock."""
    from datasets import Dataset

    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)  # what a killed build left
    try:
        with _quiet():
            made: Any = Dataset.from_generator(
                _records,
                features=_columns(),
                cache_dir=str(aside / "work"),
                gen_kwargs={"seed": seed, "count": count, "settings": settings},
            )
            made.save_to_disk(str(aside / "whole"))
        os.replace(aside / "whole", folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _records(seed: int, count: int, settings: ScenesSettings) -> Iterator[dict[str, Any]]:
    for index in range(count):
        yield record(scene(seed, index, settings))


def record(s: Scene) -> dict[str, Any]:
    """A scene as a row of the data set."""
    return {
        "id": s.id,
        "image": s.image.tobytes(),
        "labels": s.labels.tobytes(),
        "instances": s.instances.tobytes(),
        "grounds": list(s.grounds),
        "things": [
            {"shape": t.shape, "colour": t.colour, "texture": t.texture, "size": t.size, "box": list(box)}
            for t, box in zip(s.things, s.boxes)
        ],
        "features": s.features,
        "captions": list(s.captions),
        "questions": [vars(q) | {"answers": list(q.answers)} for q in s.questions],
        "expressions": [vars(e) for e in s.expressions],
        "pairs": [{"vela": vela, "toru": toru} for vela, toru in s.pairs],
    }


def _columns() -> Any:
    from datasets import Features, Value

    text, number = Value("string"), Value("int32")
    return Features(
        {
            "id": text,
            "image": Value("binary"),
            "labels": Value("binary"),
            "instances": Value("binary"),
            "grounds": [text],
            "things": [{"shape": text, "colour": text, "texture": text, "size": text, "box": [number]}],
            "features": [[Value("float32")]],
            "captions": [text],
            "questions": [{"kind": text, "text": text, "answer": text, "answers": [text]}],
            "expressions": [{"text": text, "target": number, "kind": text}],
            "pairs": [{"vela": text, "toru": text}],
        }
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars of ``datasets``."""
    from datasets import disable_progress_bars, enable_progress_bars
    from datasets.utils import are_progress_bars_disabled

    before = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not before:
            enable_progress_bars()
