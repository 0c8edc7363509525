"""Realignment: logits over a window around each query, laid out over all the keys (thesis §3.4.2, fig. 3.2).

A position function gives query i the logits of the offsets −(k−1)/2 … (k−1)/2; content attention scores every
key. ``realign`` puts the logit of offset j − i at key j, leaves out what falls off the map, and fills the keys
outside the window with one constant. It is one padded copy and a strided view of it: no index, no loop.

Where we differ: equation 3.12 lets |i − j| reach ⌈(k+1)/2⌉, one more than a window of k has; here (k−1)/2.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def realign(taps: Tensor, fill: float = 0.0) -> Tensor:
    """Window logits of a sequence at its keys.

    Args:
        taps: (..., N, k), k odd; ``taps[..., i, t]`` belongs to the key j = i + t − (k−1)/2. Any N, also N < k.
        fill: Value at keys outside the window.

    Returns:
        (..., N, N), query by key; a view of a padded copy.
    """
    return _Realign.apply(taps, fill)


class _Realign(torch.autograd.Function):
    """The backward pass is written out, for half the copies: it reads the padded copy's place in reverse."""

    @staticmethod
    def forward(ctx: Any, taps: Tensor, fill: float) -> Tensor:
        ctx.window = taps.shape[-1]
        padded = F.pad(taps, (0, taps.shape[-2]), value=fill).flatten(-2)
        return _by_key(padded, taps.shape[-2], ctx.window)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (grad,) = grad_outputs
        length = grad.shape[-1]
        padded = grad.new_zeros(*grad.shape[:-2], length * (length + ctx.window))
        _by_key(padded, length, ctx.window).copy_(grad)
        return padded.unflatten(-1, (length, length + ctx.window))[..., : ctx.window], None


def _by_key(padded: Tensor, length: int, window: int) -> Tensor:
    """Rows of N + k values (..., N·(N + k)) read as rows of one fewer, so that row i moves right by i places."""
    width, start = length + window - 1, window // 2
    return padded[..., : length * width].unflatten(-1, (length, width))[..., start : start + length]


def realign_grid(taps: Tensor, fill: float = 0.0) -> Tensor:
    """Window logits of a map at its keys, for each axis in turn.

    Args:
        taps: (..., H, W, k, k), k odd, the last two axes being the row and the column of the window.
        fill: Value at keys outside the window.

    Returns:
        (..., H, W, H, W), query row and column by key row and column.
    """
    height, window = taps.shape[-4], taps.shape[-1]
    columns = realign(taps.transpose(-3, -2), fill)  # (..., H, k, W, W): columns first, while the rest is small
    rows = F.pad(columns, (0, 0, 0, 0, 0, height), value=fill).flatten(-4, -3)  # the same skew, on an outer axis
    rows = rows[..., : height * (height + window - 1), :, :].unflatten(-3, (height, height + window - 1))
    start = window // 2
    return rows[..., start : start + height, :, :].transpose(-3, -2)


def inside(length: int, window: int, device: torch.device | None = None) -> Tensor:
    """Whether the key of each window place exists: (N, k) booleans, query by window place."""
    key = torch.arange(length, device=device)[:, None] + torch.arange(window, device=device) - window // 2
    return (key >= 0) & (key < length)
