"""HDF5 files of the captioners: ``ID_features`` with ``ID_boxes`` (M², DLCT), ``ID_grids`` (MD-SAN, DLCT).

M²: Cornia et al., Meshed-Memory Transformer, CVPR 2020, github.com/aimagelab/meshed-memory-transformer. DLCT: Luo et
al. 2021, github.com/luo3300612/image-captioning-DLCT, whose files also have ``ID_size`` (width, height).
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from vlp_captioning.readers.features.checked import checked, pair
from vlp_captioning.readers.records import Visual
from vlplatform.errors import UserError

_KINDS = {"regions": "features", "grid": "grids"}


class Hdf5Features:
    """Regions or grids of an HDF5 file, which is opened anew in every process.

    Args:
        path: The file.
        kind: ``regions`` reads ``ID_features``, ``grid`` reads ``ID_grids``, ``auto`` what there is.

    Raises:
        UserError: h5py is not installed, the file is damaged or has other contents, or it has both kinds and ``auto``
            cannot choose.
    """

    def __init__(self, path: Path, kind: str = "auto") -> None:
        self.path = path
        self._handle: tuple[int, Any] | None = None
        names = list(_file(self))
        kinds = {k: [n[: -len(e) - 1] for n in names if n.endswith(f"_{e}")] for k, e in _KINDS.items()}
        there = [name for name, found in kinds.items() if found]
        if not there:
            held = ", ".join(names[:3]) or "nothing"
            raise UserError(
                f"{path} holds {held} where ID_features or ID_grids is expected: give a file of M2 or MD-SAN."
            )
        if kind == "auto" and len(there) > 1:
            raise UserError(f"{path} has regions and grids: choose with data.feature_kind=regions or grid.")
        chosen = there[0] if kind == "auto" else kind
        if chosen not in there:
            raise UserError(f"{path} has no {chosen}: set data.feature_kind={there[0]}.")
        self.kind, self.keys = chosen, set(kinds[chosen])
        self.example = min(self.keys)
        self.found = f"HDF5, {'regions' if chosen == 'regions' else 'grids'} of {len(self.keys)} pictures"

    def __contains__(self, key: str) -> bool:
        return key in self.keys

    def __len__(self) -> int:
        return len(self.keys)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}

    def features(self, key: str) -> Visual:
        """Regions (N, F) with their boxes, or a square grid.

        Raises:
            UserError: No such record, or a damaged one.
        """
        if key not in self.keys:
            raise UserError(f"{self.path} has no {self.kind} of '{key}': add them, or leave out that picture.")
        file, name = _file(self), f"{key}_{_KINDS[self.kind]}"
        where = f"{self.path}, {name},"
        try:
            vectors = np.asarray(file[name])
            boxes = np.asarray(file[f"{key}_boxes"]) if self.kind == "regions" and f"{key}_boxes" in file else None
            size = pair(file[f"{key}_size"]) if f"{key}_size" in file else None
        except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise UserError(f"{where} cannot be read ({error}): the file is damaged; copy it again.") from error
        if self.kind == "regions":
            return checked(vectors, where, boxes=boxes, size=size)
        if vectors.ndim == 2:
            side = math.isqrt(len(vectors))
            return checked(vectors, where, grid=(side, side), size=size)
        return checked(vectors, where, size=size)


def _file(features: Hdf5Features) -> Any:
    """The open file; HDF5 handles must not be carried into a forked process."""
    if features._handle is not None and features._handle[0] == os.getpid():
        return features._handle[1]
    try:
        import h5py
    except ImportError as error:
        raise UserError(f"{features.path} is HDF5, which needs h5py: pip install h5py.") from error
    try:
        file = h5py.File(features.path, "r")
    except OSError as error:
        raise UserError(
            f"{features.path} cannot be opened ({error}): it is cut off or damaged; copy it again."
        ) from error
    features._handle = os.getpid(), file
    return file
