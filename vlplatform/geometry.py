"""Boxes, grids, and how far apart things are. Needs torch alone.

A box is (left, top, right, bottom) in pixels or any one unit, right and bottom exclusive; a point is (x, y).
All functions keep dtype and device, broadcast over leading dimensions, and have gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vlplatform.errors import UserError

Metric = Literal["manhattan", "euclidean", "chebyshev"]

_POWERS = {"manhattan": 1.0, "euclidean": 2.0, "chebyshev": float("inf")}


def box_centres(boxes: Tensor) -> Tensor:
    """Centres (…, 2) of boxes (…, 4)."""
    return (boxes[..., :2] + boxes[..., 2:]) / 2


def box_sizes(boxes: Tensor) -> Tensor:
    """Widths and heights (…, 2) of boxes (…, 4); negative where a box is turned inside out."""
    return boxes[..., 2:] - boxes[..., :2]


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of every box of ``a`` (…, N, 4) with every one of ``b`` (…, M, 4): (…, N, M).

    Empty boxes have an IoU of 0 with everything, themselves included. Unlike torchvision's function of the same
    name it takes batches, and the result is never NaN.
    """
    low = torch.maximum(a[..., :, None, :2], b[..., None, :, :2])
    high = torch.minimum(a[..., :, None, 2:], b[..., None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=-1)
    area_a, area_b = (box_sizes(x).clamp(min=0).prod(dim=-1) for x in (a, b))
    union = area_a[..., :, None] + area_b[..., None, :] - shared
    return torch.where(union > 0, shared / torch.where(union > 0, union, 1), 0)


def grid(height: int, width: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """The cells' (x, y) indices of a grid, row by row: (height · width, 2)."""
    y, x = torch.meshgrid(
        torch.arange(height, device=device, dtype=dtype), torch.arange(width, device=device, dtype=dtype), indexing="ij"
    )
    return torch.stack((x, y), dim=-1).reshape(-1, 2)


def distances(a: Tensor, b: Tensor, metric: Metric = "euclidean") -> Tensor:
    """Distances (…, N, M) of every point of ``a`` (…, N, D) to every one of ``b`` (…, M, D), by differences.

    The usual shortcut through a matrix product loses a grid's exact distances to rounding, hence is not taken.
    """
    return torch.cdist(a, b, p=_POWERS[metric], compute_mode="donot_use_mm_for_euclid_dist")


def length(x: Tensor, y: Tensor, metric: Metric) -> Tensor:
    """Length of vectors (x, y), given by their two parts of any one shape: what :func:`distances` has for one pair."""
    x, y = x.abs(), y.abs()
    if metric == "manhattan":
        return x + y
    return torch.maximum(x, y) if metric == "chebyshev" else (x * x + y * y).sqrt()


def relative_boxes(queries: Tensor, keys: Tensor | None = None, *, inclusive: bool = False) -> Tensor:
    """How each key's box lies to each query's, free of shift and scale: (…, N, 4), (…, M, 4) → (…, N, M, 4).

    Entry [i, j] is (log(|x_i − x_j| / w_i), log(|y_i − y_j| / h_i), log(w_i / w_j), log(h_i / h_j)) with centres x, y
    and sides w, h: NG-SAN, equation 8, after Hu et al., "Relation Networks for Object Detection" (2018), equation 5.
    The first two ratios are held above 10⁻³, as there and in the public code of the Object Relation Transformer;
    NG-SAN's text does not say how it avoids log 0. Where we differ: sides are held above 10⁻³ of the unit, so that
    an empty box gives no infinities.

    Args:
        queries: The queries' boxes.
        keys: The keys' boxes; the queries' own if absent.
        inclusive: Right and bottom belong to the box, as in that public code: a side is one unit longer.
    """
    at, size = box_centres(queries), (box_sizes(queries) + inclusive).clamp(min=1e-3)
    others, sizes = (at, size) if keys is None else (box_centres(keys), (box_sizes(keys) + inclusive).clamp(min=1e-3))
    apart = (at[..., :, None, :] - others[..., None, :, :]).abs() / size[..., :, None, :]
    ratio = size.log()[..., :, None, :] - sizes.log()[..., None, :, :]
    return torch.cat((apart.clamp(min=1e-3).log(), ratio), dim=-1)


@dataclass(frozen=True)
class Geometry:
    """Where the tokens of a set lie: the boxes of regions, bare points, or the cells of a grid, row by row.

    Make one with :meth:`from_boxes`, :meth:`from_points` or :meth:`from_grid`, which check their input; the attention
    modules then trust it.

    Attributes:
        points: (x, y) of each token, (B or 1, N, 2): centres of boxes, or column and row of a cell.
        boxes: (B or 1, N, 4), a unit square per cell for a grid; none for bare points.
        grid: Height and width where the tokens are the cells of a grid.
        extent: Width and height of the picture, (B or 1, 1, 2), in the units of points and boxes, where known.
    """

    points: Tensor
    boxes: Tensor | None = None
    grid: tuple[int, int] | None = None
    extent: Tensor | None = None

    @classmethod
    def from_boxes(
        cls,
        boxes: Tensor,
        size: Tensor | tuple[float, float] | None = None,
        *,
        mask: Tensor | None = None,
    ) -> Geometry:
        """Of boxes (B, N, 4) or (N, 4), (left, top, right, bottom).

        Boxes without width or height, and outside the picture, are boxes.

        Args:
            boxes: The boxes; without ``mask``, what stands in places of padding must be a finite box too, as zeros are.
            size: Width and height of the picture, or of each (B, 2), for mechanisms that know absolute places.
            mask: (B, N) or (N,) booleans, true for real boxes; the others may hold anything and become zeros.

        Raises:
            UserError: A wrong shape or type, a number that is not finite, or a box that is inside out (left > right or
                top > bottom); the first such box is named.
        """
        boxes = _checked(boxes, "boxes", 4, mask)
        return cls(box_centres(boxes), boxes, extent=_extent(size, boxes))

    @classmethod
    def from_points(cls, points: Tensor, size: Tensor | tuple[float, float] | None = None) -> Geometry:
        """Of points (B, N, 2) or (N, 2), (x, y); else as :meth:`from_boxes`."""
        points = _checked(points, "points", 2)
        return cls(points, extent=_extent(size, points))

    @classmethod
    def from_grid(
        cls, height: int, width: int, *, device: torch.device | None = None, dtype: torch.dtype = torch.float32
    ) -> Geometry:
        """Of a grid's cells, row by row; a point is (column, row).

        Raises:
            UserError: A side below 1.
        """
        if height < 1 or width < 1:
            raise UserError(f"a grid of {height} × {width} cells is empty: both sides must be at least 1.")
        corner = grid(height, width, device=device, dtype=dtype)[None]
        extent = torch.tensor([[[width, height]]], device=device, dtype=dtype)
        return cls(corner, torch.cat((corner, corner + 1), -1), (height, width), extent)

    def __len__(self) -> int:
        """Number of tokens N."""
        return self.points.shape[-2]

    def to(self, like: Tensor) -> Geometry:
        """The same on the device of ``like``; coordinates keep their precision, at least float32."""
        move = {"device": like.device, "dtype": torch.promote_types(like.dtype, torch.float32)}
        boxes, extent = (None if part is None else part.to(**move) for part in (self.boxes, self.extent))
        return Geometry(self.points.to(**move), boxes, self.grid, extent)


def _extent(size: Tensor | tuple[float, float] | None, like: Tensor) -> Tensor | None:
    if size is None:
        return None
    extent = torch.as_tensor(size, dtype=like.dtype, device=like.device)
    if extent.ndim not in (1, 2) or extent.shape[-1] != 2 or not (extent > 0).all():
        raise UserError(f"size={size} must be the picture's width and height, both positive, or one pair per item.")
    return extent.view(-1, 1, 2)


def _checked(values: Tensor, name: str, columns: int, mask: Tensor | None = None) -> Tensor:
    if not isinstance(values, Tensor):
        raise UserError(f"{name} is a {type(values).__name__}; expected a tensor of real numbers.")
    if values.ndim not in (2, 3) or values.shape[-1] != columns or not values.dtype.is_floating_point:
        raise UserError(
            f"{name} of shape {tuple(values.shape)} and type {values.dtype} cannot be used: give real numbers of shape "
            f"(batch, tokens, {columns})."
        )
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != values.shape[:-1]:
            raise UserError(f"mask of {name} must be booleans of shape {tuple(values.shape[:-1])}, true for real ones.")
        values = values.masked_fill(~mask[..., None], 0)
    values = values if values.ndim == 3 else values[None]
    sound = torch.isfinite(values).all(-1)
    if columns == 4:
        sound = sound & (values[..., :2] <= values[..., 2:]).all(-1)
    if not sound.all():  # the one wait for a GPU
        batch, token = (~sound).nonzero()[0].tolist()
        numbers = values[batch, token].tolist()
        if not all(map(math.isfinite, numbers)):
            raise UserError(f"{name}[{batch}, {token}] = {numbers} is not finite: mend or drop that token.")
        raise UserError(
            f"{name}[{batch}, {token}] = {numbers} is inside out: a box is (left, top, right, bottom) with "
            "left ≤ right and top ≤ bottom."
        )
    return values


torch.export.register_dataclass(Geometry)
