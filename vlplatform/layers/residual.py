"""The residual connection and norm around a sublayer, before it or after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform.layers import norm as norms

Order = Literal["post", "pre"]


class Residual(nn.Module):
    """``norm(x + dropout(f(x)))`` (post) or ``x + dropout(f(norm(x)))`` (pre).

    Args:
        dim: Channels D.
        dropout: Rate at which the sublayer's output is dropped.
        order: Where the norm stands.
        norm: ``layer``, or ``unbiased`` as in MCAN.

    Raises:
        ValueError: Unknown order or norm, or a rate outside [0, 1).
    """

    def __init__(self, dim: int, *, dropout: float = 0.1, order: Order = "post", norm: norms.Norm = "layer") -> None:
        super().__init__()
        if order not in get_args(Order):
            raise ValueError(f"order={order} is not one of {', '.join(get_args(Order))}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must be at least 0 and below 1")
        self.order, self.dropout = order, dropout
        self.norm = norms.make(norm, dim)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(B, N, D) → (B, N, D)."""
        out = sublayer(self.norm(x) if self.order == "pre" else x)
        out = x + (F.dropout(out, self.dropout) if self.training else out)
        return out if self.order == "pre" else self.norm(out)
