"""Attention inside k×k windows by shifted views: three products, and everything else written with them.

Letters: B batch, M heads, D head width, H×W the map. Features are (B, M, D, H, W); logits and weights are
(k², B, M, H, W), windows row by row. Keys and values come as ``Taps``: k² views of the features' shape, each holding
one neighbour of every pixel; or, outside autograd, the same views in one overlapping tensor (k, k, B, M, D, H, W).
Nothing of size HW·k²·C is ever stored. The three products are closed under differentiation: the gradients of ``score``
and ``gather`` are ``gather``, ``scatter`` and ``score`` again. Any device, any floating type.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Taps = Tensor | Sequence[Tensor]


def taps_of(features: Tensor, kernel: int) -> list[Tensor]:
    """The taps of ``features`` (B, M, D, H, W) with zeros around the map: one padded copy, k² views of it."""
    border, (height, width) = kernel // 2, features.shape[3:]
    padded = F.pad(features, (border,) * 4)
    return [padded[..., i : i + height, j : j + width] for i in range(kernel) for j in range(kernel)]


def _views(taps: Taps) -> Sequence[Tensor]:
    return [tap for row in taps.unbind(0) for tap in row.unbind(0)] if isinstance(taps, Tensor) else taps


def score(query: Tensor, keys: Taps) -> Tensor:
    """Dot product of every query with each key of its window, (k², B, M, H, W)."""
    if not isinstance(keys, Tensor):
        return torch.stack([(query * key).sum(2) for key in keys])
    # All taps of one channel at a time: the logits stay in cache, and no product is stored.
    (first, *others), (key, *keys_) = query.unbind(2), keys.unbind(4)
    out = torch.mul(first, key, out=torch.empty(key.shape, dtype=key.dtype, device=key.device))
    for channel, key in zip(others, keys_):
        out.addcmul_(key, channel)
    return out.flatten(0, 1)


def gather(weights: Tensor, values: Taps, out: Tensor | None = None) -> Tensor:
    """The weighted sum of each window, (B, M, D, H, W); into ``out`` where given, outside autograd only."""
    (first, *others), (value, *values_) = weights.unsqueeze(3).unbind(0), _views(values)
    out = torch.mul(value, first, out=out)
    for weight, value in zip(others, values_):
        out.addcmul_(value, weight)
    return out


def scatter(weights: Tensor, features: Tensor, into: Taps) -> None:
    """Add to each pixel's window in ``into`` its ``features`` times the weights: ``gather`` transposed."""
    for weight, target in zip(weights.unsqueeze(3).unbind(0), _views(into)):
        target.addcmul_(features, weight)


def border_mask(height: int, width: int, kernel: int, like: Tensor) -> Tensor:
    """Additive mask (k², 1, 1, H, W): -inf where a neighbour lies outside the map, else 0."""
    reach = torch.arange(kernel, device=like.device) - kernel // 2
    row = torch.arange(height, device=like.device) + reach[:, None]
    column = torch.arange(width, device=like.device) + reach[:, None]
    inside = ((row >= 0) & (row < height))[:, None, :, None] & ((column >= 0) & (column < width))[None, :, None, :]
    mask = torch.zeros((), dtype=like.dtype, device=like.device).masked_fill(~inside, float("-inf"))
    return mask.view(kernel**2, 1, 1, height, width)


def squash(features: Tensor) -> Tensor:
    """x·|x| / (1 + |x|²) per head (algorithm 1): keeps the direction, brings the length below 1; 0 at 0."""
    length2 = features.square().sum(2, keepdim=True)
    length = length2.clamp_min(torch.finfo(features.dtype).tiny).sqrt()
    return features * (length / (1 + length2))


def squash_backward(gradient: Tensor, features: Tensor) -> Tensor:
    """The gradient at the input of :func:`squash`; 0 at 0."""
    length2 = features.square().sum(2, keepdim=True)
    length = length2.clamp_min(torch.finfo(features.dtype).tiny).sqrt()
    along = (gradient * features).sum(2, keepdim=True)
    slope = (1 - length2) / (length * (1 + length2).square())
    return gradient * (length / (1 + length2)) + features * (along * slope)


def content_logits(
    query: Tensor, keys: Taps, mask: Tensor | None, scale: float, iterations: int
) -> tuple[Tensor, list[Tensor]]:
    """Content logits after ``iterations`` - 1 rounds of refinement (algorithm 1), and the weights of those rounds."""
    logits = score(query, keys)
    logits = logits if scale == 1.0 else logits * scale
    if mask is not None:
        logits = logits + mask
    rounds: list[Tensor] = []
    for _ in range(iterations - 1):
        rounds.append(logits.softmax(0))
        logits = logits + score(squash(gather(rounds[-1], keys)), keys) * scale
    return logits, rounds


def attend(
    query: Tensor | None,
    keys: Taps,
    values: Taps,
    position: Tensor | None,
    mask: Tensor | None,
    scale: float = 1.0,
    iterations: int = 1,
) -> tuple[Tensor, list[Tensor]]:
    """Local attention of every pixel over its window.

    Args:
        query: (B, M, D, H, W), or None for no content logits (the keys are not read then).
        keys: Taps of the keys.
        values: Taps of the values.
        position: Position logits (k², B, M, H, W), or None.
        mask: Additive mask (k², 1, 1, H, W), or None where the zeros of the border take part.
        scale: Factor of every content dot product.
        iterations: Softmax passes; each one after the first follows a refinement of the content logits.

    Returns:
        The output (B, M, D, H, W), and the weights of every pass, the last being those applied.
    """
    passes: list[Tensor] = []
    if query is None:
        assert position is not None
        logits = position if mask is None else position + mask
    else:
        logits, passes = content_logits(query, keys, mask, scale, iterations)
        if position is not None:
            logits = logits + position
    passes.append(logits.softmax(0))
    return gather(passes[-1], values), passes


def softmax_backward(gradient: Tensor, weights: Tensor) -> Tensor:
    """The gradient at the logits; overwrites ``gradient``."""
    gradient.mul_(weights)
    return gradient.addcmul_(weights, gradient.sum(0, keepdim=True), value=-1)


def refine_backward(at_logits: Tensor, keys: Taps, into: Taps, rounds: Sequence[Tensor], scale: float) -> Tensor:
    """From the gradient at refined content logits to that at the first ones; the keys' is added to ``into``."""
    for weights in reversed(rounds):
        gathered = gather(weights, keys)
        scatter(at_logits * scale, squash(gathered), into)
        at_gathered = squash_backward(gather(at_logits * scale, keys), gathered)
        scatter(weights, at_gathered, into)
        at_logits = at_logits + softmax_backward(score(at_gathered, keys), weights)
    return at_logits
