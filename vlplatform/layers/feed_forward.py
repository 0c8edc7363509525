"""The position-wise feed-forward network (Vaswani et al. 2017, eq. 2)."""

from __future__ import annotations

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

Activation = Literal["relu", "gelu", "gelu_tanh"]


class FeedForward(nn.Module):
    """``W₂ dropout(act(W₁ x))``.

    Args:
        dim: Channels D.
        hidden: Width between the two maps.
        dropout: Rate at which the hidden units are dropped.
        activation: ``relu``, ``gelu``, or ``gelu_tanh``, its approximation by a hyperbolic tangent (Hendrycks & Gimpel
            2016, §2).

    Raises:
        ValueError: Unknown activation.
    """

    def __init__(self, dim: int, hidden: int, *, dropout: float = 0.1, activation: Activation = "relu") -> None:
        super().__init__()
        if activation not in get_args(Activation):
            raise ValueError(f"activation={activation} is not one of {', '.join(get_args(Activation))}")
        self.activation, self.dropout = activation, dropout
        self.first, self.second = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        hidden = self.first(x)
        if self.activation == "relu":
            hidden = F.relu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="none" if self.activation == "gelu" else "tanh")
        return self.second(F.dropout(hidden, self.dropout, self.training))
