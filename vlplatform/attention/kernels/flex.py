"""Attention with terms said for one query and one key, in one kernel: PyTorch's ``flex_attention`` (torch ≥ 2.6).

Nothing of size queries × keys is held but one bit or so per 128 × 128 pairs: a kernel made for the terms computes each
logit, changes it, and goes on, in the backward pass too. Blocks that no query sees for their places alone, as in causal
calls and windows, are skipped; masks of a call are looked up per logit.

It is taken on CUDA, compiled, from 128 queries and keys on, outside of ``torch.compile``, export, caches and dropout
of weights. On other devices ``using("flex")`` runs it uncompiled and without gradients, for tests. **Not measured**: no
GPU was at hand; that it is quick, and from 128 tokens on, the side of its blocks, is PyTorch's promise, not a finding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlplatform.attention.kernels import path

_BLOCK = 128
_WIDTH = 16  # the least head that its kernels multiply
_TYPES = (torch.float32, torch.bfloat16, torch.float16)

Sight = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Pairwise:
    """A term's points for one query i and one key j of head h and item b, all whole numbers in tensors.

    The functions consist of element-wise operations and of look-ups in tensors made before; one that has a gradient is
    looked up once in a function. They hold tensors and constants but no module, lest each layer be compiled anew.

    Attributes:
        modulate: (logit, b, h, i, j) → logit.
        bias: (b, h, i, j) → what is added to the logit.
        visible: (i, j) → whether the key may be seen, for all items and heads; must take tensors that broadcast.
    """

    modulate: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
    bias: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
    visible: Sight | None = None


def wanted(query: Tensor, keys: int, widths: tuple[int, int]) -> bool:
    """Whether this path is to be taken, as far as the input and the surroundings decide.

    Args:
        query: (B, N, D).
        keys: M.
        widths: Of one head's key and value.
    """
    cuda = query.device.type == "cuda"
    if not (cuda or path() == "flex") or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if not cuda:
        return not torch.is_grad_enabled()
    fits = query.dtype in _TYPES and min(widths) >= _WIDTH
    return fits and (path() == "flex" or (path() == "auto" and min(query.shape[1], keys) >= _BLOCK))


def blocks(queries: int, keys: int, sights: Sequence[Sight], causal: bool, device: torch.device) -> Any:
    """The ``BlockMask`` of what may be seen for its place alone; none where all may."""
    if not (sights or causal):
        return None

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        one = j <= i if causal else j >= 0
        for sight in sights:
            one = one & sight(i, j)
        return one

    from torch.nn.attention.flex_attention import create_block_mask  # here, as it imports more than torch

    return create_block_mask(seen, None, None, queries, keys, device=str(device))


def attend(
    q: Tensor, k: Tensor, v: Tensor, pairs: Sequence[Pairwise], *, mask: Tensor | None, seen: Any, scale: float
) -> tuple[Tensor, Tensor]:
    """The heads' outputs (B, h, N, value width), zeros in rows without keys, and which rows have any, (B, h, N).

    Args:
        q: (B, h, N, d).
        k: (B, h, M, d).
        v: (B, h, M, value width).
        pairs: Of the terms, in their order: all that modulate come before all biases.
        mask: Booleans (B or 1, h or 1, N or 1, M).
        seen: Of :func:`blocks`.
        scale: Factor of the products.
    """
    changes = tuple(pair.modulate for pair in pairs if pair.modulate is not None)
    biases = tuple(pair.bias for pair in pairs if pair.bias is not None)
    wide = None if mask is None else mask.expand(*q.shape[:3], k.shape[2])

    def score(logit: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for change in changes:
            logit = change(logit, b, h, i, j)
        for bias in biases:
            logit = logit + bias(b, h, i, j)
        return logit if wide is None else torch.where(wide[b, h, i, j], logit, float("-inf"))

    out, found = _kernel(q.is_cuda)(q.to(v.dtype), k.to(v.dtype), v, score_mod=score, block_mask=seen, scale=scale)
    alive = getattr(found, "lse", found) > float("-inf")
    return out.masked_fill(~alive[..., None], 0), alive


@functools.cache
def _kernel(compiled: bool) -> Callable[..., Any]:
    """``flex_attention`` that gives its logsumexp too, by the name that this version of PyTorch has for it."""
    from torch.nn.attention import flex_attention as flex

    more = {"return_aux": flex.AuxRequest(lse=True)} if hasattr(flex, "AuxRequest") else {"return_lse": True}
    return functools.partial(torch.compile(flex.flex_attention) if compiled else flex.flex_attention, **more)
