"""The feature files that people hold, one class for each format; ``open_features`` tells which one it is."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from vlp_captioning.readers.features.arrays import ArrayFolder
from vlp_captioning.readers.features.hdf5 import Hdf5Features
from vlp_captioning.readers.features.shards import ShardFeatures
from vlp_captioning.readers.features.tsv import TsvFeatures
from vlp_captioning.readers.records import Visual
from vlplatform.data.shards import INDEX
from vlplatform.errors import UserError

__all__ = ["FeatureFile", "Kind", "open_features"]

Kind = Literal["auto", "regions", "grid"]

_WHAT = (
    "the output of vlp prepare features, a bottom-up or LXMERT TSV (or a folder of them), a folder of .npz or of .npy "
    "files, or an HDF5 file with ID_features or ID_grids"
)


class FeatureFile(Protocol):
    """Features by name.

    Attributes:
        path: The file or folder.
        found: What it turned out to be, for people.
        example: One of the names in it.
    """

    path: Path
    found: str
    example: str

    def __contains__(self, key: str) -> bool: ...

    def __len__(self) -> int: ...

    def features(self, key: str) -> Visual:
        """The features called ``key``, (N, F) float32, with boxes, grid and size where the file has them.

        Raises:
            UserError: There are none, or they are damaged: file, record and remedy.
        """
        ...


def open_features(path: Path, kind: Kind = "auto") -> FeatureFile:
    """The features at ``path``, whose format is told by what is there; nothing is ever unpickled.

    Args:
        path: A file or folder.
        kind: Which features to take from an HDF5 file that has regions and grids.

    Raises:
        UserError: Missing, of no known format, of several at once, or damaged.
    """
    if path.is_dir():
        if (path / INDEX).is_file():
            return ShardFeatures(path)
        return _folder(path)
    if not path.is_file():
        raise UserError(f"the features {path} do not exist: give {_WHAT}.")
    with path.open("rb") as file:
        head = file.read(4096)
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        return Hdf5Features(path, kind)
    if head[:1].isascii() and b"\t" in head and b"\0" not in head:
        return TsvFeatures(path, [path])
    held = "one file is not a data set" if path.suffix in (".npz", ".npy") else "its format is none that is known"
    raise UserError(f"the features {path} cannot be used ({held}): give {_WHAT}; pickled files are never opened.")


def _folder(path: Path) -> FeatureFile:
    kinds = {suffix: sorted(path.rglob(f"*{suffix}")) for suffix in (".npz", ".npy")}
    kinds[".tsv"] = sorted(file for file in path.iterdir() if file.suffix == ".tsv" or ".tsv." in file.name)
    there = [suffix for suffix, files in kinds.items() if files]
    if len(there) != 1:
        held = f"it holds {' and '.join(there)} files" if there else "it holds no features"
        raise UserError(f"the features {path} cannot be used ({held}): give {_WHAT}.")
    files = kinds[there[0]]
    return TsvFeatures(path, files) if there == [".tsv"] else ArrayFolder(path, files)
