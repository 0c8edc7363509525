"""Boxes, grids, and how far apart things are. Needs torch alone.

A box is (left, top, right, bottom) in pixels or any one unit, right and bottom exclusive; a point is (x, y).
All functions keep dtype and device, broadcast over leading dimensions, and have gradients.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

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


def relative_boxes(boxes: Tensor) -> Tensor:
    """How each box lies to each other one, free of shift and scale: boxes (…, N, 4) → (…, N, N, 4).

    Entry [m, n] is (log(|x_m − x_n| / w_m), log(|y_m − y_n| / h_m), log(w_n / w_m), log(h_n / h_m)) with centres x, y
    and sides w, h: Hu et al., "Relation Networks for Object Detection" (2018), equation 5. As there, the first two
    ratios are held above 10⁻³. Where we differ: sides are held above 10⁻³ of the unit, so that an empty box gives
    no infinities.
    """
    centres, sizes = box_centres(boxes), box_sizes(boxes).clamp(min=1e-3)
    apart = (centres[..., :, None, :] - centres[..., None, :, :]).abs() / sizes[..., :, None, :]
    ratio = sizes[..., None, :, :] / sizes[..., :, None, :]
    return torch.cat((apart.clamp(min=1e-3).log(), ratio.log()), dim=-1)
