"""Attention inside k×k windows by shifted views: three products, and everything else written with them.

Letters: B batch, M heads, D head width, H×W the map. Features are (B, M, D, H, W); keys and values come as ``taps``:
k² views of that shape, row-major, the t-th holding the t-th neighbour of every pixel; logits and weights are
(k², B, M, H, W). Nothing of size HW·k²·C ever exists. The three products are closed under differentiation: the
gradients of ``score`` and ``gather`` are ``gather``, ``scatter`` and ``score`` again. Any device, any floating type.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Taps = Sequence[Tensor]


def taps_of(features: Tensor, kernel: int) -> list[Tensor]:
    """The taps of ``features`` (B, M, D, H, W) with zeros around the map: one padded copy, k² views of it."""
    border = kernel // 2
    return taps_in(F.pad(features, (border,) * 4), kernel)


def taps_in(padded: Tensor, kernel: int) -> list[Tensor]:
    """The taps within a map that has its border already, (B, M, D, H+k-1, W+k-1)."""
    height, width = padded.shape[-2] - kernel + 1, padded.shape[-1] - kernel + 1
    return [
        padded[..., row : row + height, column : column + width] for row in range(kernel) for column in range(kernel)
    ]


def score(query: Tensor, keys: Taps, scratch: Tensor | None = None) -> Tensor:
    """Dot product of every query with each key of its window, (k², B, M, H, W); ``scratch`` is shaped as the query."""
    if scratch is None:
        return torch.stack([(query * key).sum(2) for key in keys])
    batch, heads, _, height, width = query.shape
    out = query.new_empty(len(keys), batch, heads, height, width)
    for logits, key in zip(out, keys):
        torch.sum(torch.mul(query, key, out=scratch), 2, out=logits)
    return out


def gather(weights: Tensor, values: Taps) -> Tensor:
    """The weighted sum of each window, (B, M, D, H, W)."""
    out = weights[0].unsqueeze(2) * values[0]
    for weight, value in zip(weights[1:], values[1:]):
        out.addcmul_(value, weight.unsqueeze(2))
    return out


def scatter(weights: Tensor, features: Tensor, into: Taps) -> None:
    """Add to each pixel's window in ``into`` its ``features`` times the weights: ``gather`` transposed."""
    for weight, target in zip(weights, into):
        target.addcmul_(features, weight.unsqueeze(2))


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
    query: Tensor, keys: Taps, mask: Tensor | None, scale: float, iterations: int, scratch: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Content logits after ``iterations`` - 1 rounds of refinement (algorithm 1), and the weights of those rounds."""
    logits = score(query, keys, scratch)
    logits = logits if scale == 1.0 else logits * scale
    if mask is not None:
        logits = logits + mask
    rounds: list[Tensor] = []
    for _ in range(iterations - 1):
        rounds.append(logits.softmax(0))
        logits = logits + score(squash(gather(rounds[-1], keys)), keys, scratch) * scale
    return logits, rounds


def attend(
    query: Tensor | None,
    keys: Taps,
    values: Taps,
    position: Tensor | None,
    mask: Tensor | None,
    scale: float = 1.0,
    iterations: int = 1,
    scratch: Tensor | None = None,
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
        scratch: Room for a product, shaped as the query; outside autograd only.

    Returns:
        The output (B, M, D, H, W), and the weights of every pass, the last being those applied.
    """
    passes: list[Tensor] = []
    if query is None:
        assert position is not None
        logits = position if mask is None else position + mask
    else:
        logits, passes = content_logits(query, keys, mask, scale, iterations, scratch)
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
