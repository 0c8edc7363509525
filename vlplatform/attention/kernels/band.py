"""Logits that a query has for the keys around it, added to its logits for all keys; and the way back.

R queries with T taps each, the tap t of query r belonging to key r + t − left for some ``left``: beside each other
they fill a band of R + T − 1 columns. Padding each row by R and reading the numbers in rows one shorter moves row r
right by r places, so a band is a view of a padded copy; nothing outside the band is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_ROWS = 32  # rows whose taps share a band


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


@dataclass(frozen=True)
class _Strip:
    """Some rows of logits (…, R, M) with the band of their taps: so few that the band is narrow."""

    rows: slice
    own: slice
    keys: slice
    later: Tensor | None

    @staticmethod
    def all(rows: int, places: int, first: int, left: int, like: Tensor, ends: bool) -> Iterator[_Strip]:
        """The strips of R rows; ``later`` (r, columns) has ones where a key of the band lies right of the window."""
        for start in range(0, rows, _ROWS):
            count = min(_ROWS, rows - start)
            own, keys = columns(first + start, count, places, left, like.shape[-1])
            later = None
            if ends:
                later = torch.ones(count, own.stop, dtype=like.dtype, device=like.device).triu(places)[:, own]
            yield _Strip(slice(start, start + count), own, keys, later)


class _AddBand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, taps: Tensor, first: int, left: int, right: bool) -> Tensor:
        ctx.taps, ctx.first, ctx.left, ctx.right = taps.shape, first, left, right
        for strip in _Strip.all(taps.shape[-2], taps.shape[-1], first, left, logits, right):
            part, own = logits[..., strip.rows, :], taps[..., strip.rows, :]
            part[..., strip.keys] += skew(own)[..., strip.own]
            if strip.later is not None:
                part[..., strip.keys].addcmul_(own[..., -1:], strip.later)
                part[..., strip.keys.stop :] += own[..., -1:]
        ctx.mark_dirty(logits)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,), (rows, places) = grad_outputs, ctx.taps[-2:]
        at_taps = grad.new_empty(*grad.shape[:-1], places)
        for strip in _Strip.all(rows, places, ctx.first, ctx.left, grad, ctx.right):
            part = grad[..., strip.rows, :]
            here = part[..., strip.keys]
            at_taps[..., strip.rows, :] = _unskew(here, strip.own, places)
            if strip.later is not None:
                at_taps[..., strip.rows, -1] += (here * strip.later).sum(-1) + part[..., strip.keys.stop :].sum(-1)
        wide = [axis for axis, size in enumerate(ctx.taps) if size == 1 and at_taps.shape[axis] > 1]
        return grad, at_taps.sum(wide, keepdim=True) if wide else at_taps, None, None, None


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, places: int, first: int, left: int) -> Tensor:
        ctx.whole, ctx.first, ctx.left = whole.shape, first, left
        taps = whole.new_empty(*whole.shape[:-1], places)
        for strip in _Strip.all(whole.shape[-2], places, first, left, whole, ends=True):
            part, own = whole[..., strip.rows, :], taps[..., strip.rows, :]
            here = part[..., strip.keys]
            assert strip.later is not None
            own.copy_(_unskew(here, strip.own, places))
            right = (here * strip.later).sum(-1)
            before = here.sum(-1) - own.sum(-1) - right  # what else the band's columns hold lies to the left
            own[..., 0] += before + part[..., : strip.keys.start].sum(-1)
            own[..., -1] += right + part[..., strip.keys.stop :].sum(-1)
        return taps

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,) = grad_outputs
        whole = grad.new_empty(ctx.whole)
        for strip in _Strip.all(grad.shape[-2], grad.shape[-1], ctx.first, ctx.left, whole, ends=True):
            part, own = whole[..., strip.rows, :], grad[..., strip.rows, :]
            part[..., : strip.keys.start] = own[..., :1]
            part[..., strip.keys.stop :] = own[..., -1:]
            assert strip.later is not None
            here = skew(own - own[..., :1])[..., strip.own] + own[..., :1]
            part[..., strip.keys] = here.addcmul_(own[..., -1:] - own[..., :1], strip.later)
        return whole, None, None, None


def _unskew(here: Tensor, own: slice, places: int) -> Tensor:
    """The taps (…, R, T) of the band's columns ``own``, zeros where there is no key."""
    rows = here.shape[-2]
    return straighten(F.pad(here, (own.start, rows + places - 1 - own.stop)), places)


def add_band(logits: Tensor, taps: Tensor, first: int, left: int, *, right: bool = False) -> Tensor:
    """``logits`` (…, R, M) with ``taps`` (…, R, T) added **in place**: tap t of row r to key first + r + t − left.

    Args:
        logits: Changed.
        taps: Their axes before R may be 1.
        first: Position of the first query among the keys.
        left: Taps before the query's own place.
        right: The last tap goes to all keys right of the window too.
    """
    return _AddBand.apply(logits, taps, first, left, right)


def dense(taps: Tensor, first: int, left: int, keys: int) -> Tensor:
    """(…, R, T) → (…, R, M), each tap at its key, zeros elsewhere; by plain operations."""
    rows, places = taps.shape[-2:]
    if _exporting():
        place = _offsets(rows, keys, first, taps.device) + left
        index = place.clamp(0, places - 1).expand(*taps.shape[:-2], -1, -1)
        return taps.gather(-1, index).masked_fill((place < 0) | (place >= places), 0)
    own, there = columns(first, rows, places, left, keys)
    return F.pad((taps if rows == 1 else skew(taps))[..., own], (there.start, keys - there.stop))


def clipped(whole: Tensor, places: int, first: int, left: int) -> Tensor:
    """Sums of ``whole`` (…, R, M) per clipped offset: (…, R, T), the ends holding all that lies beyond them too."""
    if _exporting():
        place = (_offsets(whole.shape[-2], whole.shape[-1], first, whole.device) + left).clamp(0, places - 1)
        return whole.new_zeros(*whole.shape[:-1], places).scatter_add(-1, place.expand(whole.shape), whole)
    return _Clipped.apply(whole, places, first, left)


def _exporting() -> bool:
    """Under ``torch.export`` sizes may be symbols, of which no strips can be cut: indices are slower and take any."""
    return torch.compiler.is_compiling() and getattr(torch.compiler, "is_exporting", lambda: False)()


def _offsets(rows: int, keys: int, first: int, device: torch.device) -> Tensor:
    """(R, M): places from the query to the key."""
    return torch.arange(keys, device=device) - torch.arange(first, first + rows, device=device)[:, None]


def inside(rows: int, keys: int, places: int, first: int, left: int, device: torch.device) -> Tensor:
    """(R, M) booleans: the key is one of the row's taps."""
    offset = _offsets(rows, keys, first, device) + left
    return (offset >= 0) & (offset < places)
