"""Logits that a query has for the keys around it, added to its logits for all keys; and the way back.

R queries with T taps each, the tap t of query r belonging to key r + t − left for some ``left``: beside each other
they fill a band of R + T − 1 columns. Padding each row by R and reading the numbers in rows one shorter moves row r
right by r places, so a band is a view of a padded copy; nothing outside the band is touched.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def skew(taps: Tensor) -> Tensor:
    """(…, R, T) → (…, R, R + T − 1), the tap t of row r in column r + t, zeros elsewhere."""
    rows, places = taps.shape[-2:]
    padded = F.pad(taps, (0, rows)).flatten(-2)
    return padded[..., : rows * (rows + places - 1)].unflatten(-1, (rows, rows + places - 1))


def straighten(band: Tensor, places: int) -> Tensor:
    """The inverse: (…, R, R + T − 1) → (…, R, T)."""
    rows = band.shape[-2]
    return F.pad(band.flatten(-2), (0, rows)).unflatten(-1, (rows, rows + places))[..., :places]


def columns(first: int, rows: int, places: int, left: int, keys: int) -> tuple[slice, slice]:
    """Where a band meets the keys: its own columns, and the keys that they are.

    Args:
        first: Position of the first query among the keys.
        rows: R.
        places: T.
        left: Taps before the query's own place.
        keys: Number of keys.
    """
    start = first - left
    low = min(max(0, -start), rows + places - 1)
    high = max(low, min(rows + places - 1, keys - start))
    return slice(low, high), slice(start + low, start + high)


class _AddBand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, taps: Tensor, first: int, left: int) -> Tensor:
        ctx.taps, ctx.place = taps.shape, columns(first, taps.shape[-2], taps.shape[-1], left, logits.shape[-1])
        own, keys = ctx.place
        logits[..., keys] += skew(taps)[..., own]
        ctx.mark_dirty(logits)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,), (own, keys), (rows, places) = grad_outputs, ctx.place, ctx.taps[-2:]
        band = grad.new_zeros(*grad.shape[:-1], rows + places - 1)
        band[..., own] = grad[..., keys]
        at_taps = straighten(band, places)
        wide = [axis for axis, size in enumerate(ctx.taps) if size == 1 and at_taps.shape[axis] > 1]
        return grad, at_taps.sum(wide, keepdim=True) if wide else at_taps, None, None


class _Band(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, places: int, first: int, left: int) -> Tensor:
        rows, keys = whole.shape[-2:]
        ctx.keys, ctx.place = keys, columns(first, rows, places, left, keys)
        own, of_keys = ctx.place
        band = whole.new_zeros(*whole.shape[:-1], rows + places - 1)
        band[..., own] = whole[..., of_keys]
        return straighten(band, places).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,), (own, keys) = grad_outputs, ctx.place
        whole = grad.new_zeros(*grad.shape[:-1], ctx.keys)
        whole[..., keys] = skew(grad)[..., own]
        return whole, None, None, None


def add_band(logits: Tensor, taps: Tensor, first: int, left: int) -> Tensor:
    """``logits`` (…, R, M) with ``taps`` (…, R, T) added **in place**: tap t of row r to key first + r + t − left."""
    return _AddBand.apply(logits, taps, first, left)


def dense(taps: Tensor, first: int, left: int, keys: int) -> Tensor:
    """(…, R, T) → (…, R, M), each tap at its key, zeros elsewhere; by plain operations."""
    own, there = columns(first, taps.shape[-2], taps.shape[-1], left, keys)
    return F.pad(skew(taps)[..., own], (there.start, keys - there.stop))


def band(whole: Tensor, places: int, first: int, left: int) -> Tensor:
    """What ``whole`` (…, R, M) has at the keys of each row's taps, zeros where there is no key: (…, R, T)."""
    return _Band.apply(whole, places, first, left)


def inside(rows: int, keys: int, places: int, first: int, left: int, device: torch.device) -> Tensor:
    """(R, M) booleans: the key is one of the row's taps."""
    offset = torch.arange(keys, device=device) - torch.arange(first, first + rows, device=device)[:, None] + left
    return (offset >= 0) & (offset < places)
