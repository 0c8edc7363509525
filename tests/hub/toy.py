"""The smallest model that has all a saved one can have, and its task plugin."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vlplatform.hub import SaveMixin


class Toy(SaveMixin, nn.Module):
    """(B, 3) to (B, width), with tied weights, a buffer and dropout."""

    task = "toy"

    def __init__(self, width: int = 4, bias: bool = True) -> None:
        super().__init__()
        self.width, self.bias = width, bias
        self.first = nn.Linear(3, width, bias=bias)
        self.second = nn.Linear(3, width, bias=bias)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.5)

    def settings(self) -> dict[str, Any]:
        return {"width": self.width, "bias": self.bias}

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.drop(self.first(x) + 2 * self.second(x)))


class ToyPlugin:
    name = "toy"

    def rebuild(self, model_settings: dict[str, Any]) -> nn.Module:
        return Toy(**model_settings)
