"""Small reckonings with scores (I, K) and histories (I, K, T) of hypotheses."""

from __future__ import annotations

import torch
from torch import Tensor


def sum_type(like: Tensor) -> torch.dtype:
    """The type that sums are taken in: double of double precision, else single."""
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def normalised(sums: Tensor, lengths: Tensor, alpha: float) -> Tensor:
    """Σ log p / L^α."""
    return sums / lengths.clamp_min(1).to(sums.dtype) ** alpha if alpha else sums


def taken(rows: Tensor, parent: Tensor) -> Tensor:
    """Of rows (I, K, T) those of the parents (I, K')."""
    return rows.gather(1, parent[..., None].expand(-1, -1, rows.shape[2]))


def least_of_best(scores: Tensor, count: int) -> Tensor:
    """The least of the best ``count`` scores (I, K) of each item."""
    return scores.amax(1) if count == 1 else scores.topk(count, dim=1)[0][:, -1]
