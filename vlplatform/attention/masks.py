"""Masks of token attention: true = may be attended to, as in ``scaled_dot_product_attention``."""

from __future__ import annotations

import torch
from torch import Tensor

from vlplatform.errors import UserError

SHAPES = "(batch, keys), (batch, queries, keys) or (batch, heads or 1, queries or 1, keys)"


def check(mask: Tensor, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    """The mask as (B or 1, h or 1, N or 1, M) booleans.

    Raises:
        UserError: Another type or shape; what came and what was expected are named.
    """
    if not isinstance(mask, Tensor):
        raise UserError(f"mask is a {type(mask).__name__}; expected a tensor of booleans.")
    if mask.dtype != torch.bool:
        raise UserError(f"mask has type {mask.dtype}; expected booleans, true where a key may be attended to.")
    wide = mask
    if mask.ndim == 2:
        wide = mask[:, None, None]
    elif mask.ndim == 3:
        wide = mask[:, None]
    fits = wide.ndim == 4 and all(
        have in (1, want) for have, want in zip(wide.shape[:3], (batch, heads, queries), strict=True)
    )
    if not fits or wide.shape[3] != keys:
        raise UserError(
            f"mask has shape {tuple(mask.shape)}; expected {SHAPES} with batch={batch}, heads={heads}, "
            f"queries={queries}, keys={keys}."
        )
    return wide


def causal(queries: int, keys: int, first: int, device: torch.device) -> Tensor:
    """(N, M) booleans: the key is not later than the query, the first of which stands at ``first``."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(first)


def alive(rows: Tensor, allowed: Tensor | None) -> Tensor:
    """``rows`` (B, h, N, ·) with zeros in those that may attend to nothing."""
    return rows if allowed is None else rows.masked_fill(~allowed.any(-1, keepdim=True), 0)


def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """What both allow; none where nothing is forbidden."""
    if a is None or b is None:
        return b if a is None else a
    return a & b
