"""Arrays out of feature files become visuals only after a check of type, shape and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vlp_captioning.readers.records import Visual
from vlplatform.errors import UserError

_RESTORE = "copy or compute the file again"


def checked(
    features: np.ndarray[Any, Any],
    where: str,
    *,
    boxes: np.ndarray[Any, Any] | None = None,
    grid: tuple[int, int] | None = None,
    size: tuple[int, int] | None = None,
) -> Visual:
    """A visual of these arrays.

    Args:
        features: (N, F), (rows, columns, F) for a grid, either with a leading axis of length 1.
        where: File and record, for messages.
        boxes: (N, 4), or None.
        grid: (rows, columns), for features that come as (N, F).
        size: (width, height), or None.

    Raises:
        UserError: Another shape, another type, or values that are not finite.
    """
    if features.dtype.kind not in "fiu":
        raise UserError(f"{where} holds {features.dtype}, not numbers: {_RESTORE}.")
    if features.ndim in (3, 4) and features.shape[0] == 1:
        features = features[0]
    if features.ndim == 3:
        rows, columns, width = features.shape
        if columns == width < rows:
            raise UserError(
                f"{where} has shape {features.shape}, channels first: save it as (rows, columns, channels)."
            )
        grid, features = (rows, columns), features.reshape(rows * columns, width)
    if features.ndim != 2 or features.shape[1] == 0:
        raise UserError(f"{where} has shape {features.shape} where (N, F) is expected: {_RESTORE}.")
    vectors = torch.from_numpy(np.require(features, np.float32, ["C", "W"]))
    if not bool(torch.isfinite(vectors).all()):
        raise UserError(f"{where} has values that are no finite numbers: {_RESTORE}.")
    if grid is not None and grid[0] * grid[1] != len(vectors):
        raise UserError(f"{where} has {len(vectors)} vectors for a grid of {grid[0]} × {grid[1]}: {_RESTORE}.")
    places = None
    if boxes is not None:
        if boxes.dtype.kind not in "fiu" or boxes.shape != (len(vectors), 4):
            shown = f"boxes of shape {boxes.shape} and type {boxes.dtype} for {len(vectors)} vectors"
            raise UserError(f"{where} has {shown}: {_RESTORE}.")
        places = torch.from_numpy(np.require(boxes, np.float32, ["C", "W"]))
        if not bool(torch.isfinite(places).all()):
            raise UserError(f"{where} has boxes that are no finite numbers: {_RESTORE}.")
    return Visual(features=vectors, boxes=places, grid=grid, size=size)


def pair(value: Any) -> tuple[int, int] | None:
    """(width, height) from an array of two positive numbers, whatever its shape; None from anything else."""
    flat = np.asarray(value).reshape(-1)
    if flat.size != 2 or flat.dtype.kind not in "fiu" or not (flat > 0).all():
        return None
    return int(flat[0]), int(flat[1])
