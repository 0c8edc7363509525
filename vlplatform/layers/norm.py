"""The layer norm of MCAN, the Object Relation Transformer and AoANet, which is not PyTorch's."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Norm = Literal["layer", "unbiased"]


class UnbiasedNorm(nn.Module):
    """``weight · (x − mean) / (s + ε) + bias`` over channels, s the deviation with n − 1, ε outside the root.

    Args:
        dim: Channels D, at least 2.
        eps: ε.
    """

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        deviation, mean = torch.std_mean(x, -1, keepdim=True)
        return self.weight * ((x - mean) / (deviation + self.eps)) + self.bias


def make(norm: Norm, dim: int) -> nn.Module:
    """The norm of that name (``ValueError`` for an unknown one)."""
    if norm not in ("layer", "unbiased"):
        raise ValueError(f"norm={norm} is not one of layer, unbiased")
    return nn.LayerNorm(dim) if norm == "layer" else UnbiasedNorm(dim)
