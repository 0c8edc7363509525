"""Folders with one numpy file per picture: .npz (features, perhaps with boxes) or .npy (features alone)."""

from __future__ import annotations

import dataclasses
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from vlp_captioning.readers.features.checked import checked
from vlp_captioning.readers.records import Visual
from vlplatform.errors import UserError

_FEATURES = ("feat", "x", "features")
_BOXES = ("bbox", "boxes")


class ArrayFolder:
    """Numpy files by name: the path below the folder without its suffix, or the bare name where only one has it.

    An .npz has its features under ``feat``, ``x`` or ``features`` and its boxes under ``bbox`` or ``boxes``; the size
    of the picture under ``image_w`` and ``image_h``; detected attribute words, the surest first, as an array of texts
    under ``attributes``. Features are (N, F), (rows, columns, F), with or without a
    leading 1, or (F, N) if the boxes say so (files of openvqa).
    """

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self.path = path
        self.files, self.example = _by_name(path, files)
        self.count = len(files)
        self.found = f"folder of {self.count} {files[0].suffix} file{'s' * (self.count != 1)}"

    def __contains__(self, key: str) -> bool:
        return key in self.files

    def __len__(self) -> int:
        return self.count

    def features(self, key: str) -> Visual:
        """Regions with boxes, or a grid, or vectors without places.

        Raises:
            UserError: No such file, or a damaged one.
        """
        if key not in self.files:
            raise UserError(f"{self.path} has no features of '{key}': add the file, or leave out that picture.")
        file = self.files[key]
        with _open(file) as loaded:
            if isinstance(loaded, np.ndarray):
                return checked(loaded, str(file))
            return _of_archive(loaded, str(file))


class BoxFolder:
    """Boxes kept apart from the features (``cocobu_box``): a numpy file (N, 4) per picture, named as in ArrayFolder.

    An .npz has them under ``bbox`` or ``boxes``.

    Raises:
        UserError: No folder, or one without .npy and .npz files.
    """

    def __init__(self, path: Path) -> None:
        files = sorted(file for suffix in ("*.npy", "*.npz") for file in path.rglob(suffix)) if path.is_dir() else []
        if not files:
            raise UserError(
                f"data.boxes={path} is no folder with .npy or .npz files: give one with a file per picture."
            )
        self.path = path
        self.files, self.example = _by_name(path, files)

    def __contains__(self, key: str) -> bool:
        return key in self.files

    def boxes(self, key: str) -> np.ndarray[Any, Any]:
        """The boxes (N, 4).

        Raises:
            UserError: No such file, a damaged one, or none of boxes.
        """
        if key not in self.files:
            raise UserError(f"{self.path} has no boxes of '{key}': add the file, or leave out that picture.")
        with _open(self.files[key]) as loaded:
            found = loaded if isinstance(loaded, np.ndarray) else _first(loaded, _BOXES)
        if found is None or found.ndim != 2 or found.shape[1] != 4:
            shape = "no array called " + " or ".join(_BOXES) if found is None else f"an array of shape {found.shape}"
            raise UserError(
                f"{self.files[key]} holds {shape} where boxes (N, 4) are expected: give the folder of boxes."
            )
        return found


def _by_name(path: Path, files: Sequence[Path]) -> tuple[dict[str, Path], str]:
    """Files by their paths below the folder without suffix, and by their bare names where these are told apart."""
    found = {file.relative_to(path).with_suffix("").as_posix(): file for file in files}
    example, names = next(iter(found)), dict[str, list[Path]]()
    for file in files:
        names.setdefault(file.stem, []).append(file)
    for name, same in names.items():
        if len(same) == 1:
            found.setdefault(name, same[0])
    return found, example


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    """What numpy reads of a file, an array or an archive; every fault, in it and in what is done with it, is named."""
    try:
        with file.open("rb") as source:
            yield np.load(source, allow_pickle=False)
    except (OSError, ValueError, TypeError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{file} cannot be read ({error}): it is damaged; copy or compute it again.") from error


def _first(archive: Any, names: Sequence[str]) -> np.ndarray[Any, Any] | None:
    return next((archive[name] for name in names if name in archive.files), None)


def _of_archive(archive: Any, where: str) -> Visual:
    features, boxes = _first(archive, _FEATURES), _first(archive, _BOXES)
    if features is None:
        held = ", ".join(archive.files) or "nothing"
        raise UserError(f"{where} holds {held}: its features must be called {' or '.join(_FEATURES)}.")
    if boxes is not None and features.ndim == 2 and features.shape[0] != len(boxes) == features.shape[1]:
        features = features.T
    size = None
    if {"image_w", "image_h"} <= set(archive.files):
        size = int(archive["image_w"]), int(archive["image_h"])
    return dataclasses.replace(checked(features, where, boxes=boxes, size=size), attributes=_words(archive))


def _words(archive: Any) -> tuple[str, ...]:
    """The texts under ``attributes``; numbers or objects of that name are something else, and nobody's words."""
    if "attributes" in archive.files:
        with suppress(ValueError):  # objects, which are never unpickled
            words = archive["attributes"]
            if words.dtype.kind == "U" and words.ndim == 1:
                return tuple(words.tolist())
    return ()
