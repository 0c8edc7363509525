"""The exponential moving average of a model's weights, and the mean of several checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


class MovingAverage:
    """A second model whose weights follow the first's; buffers are copied.

    After n updates the decay is ``min(decay, (1 + n) / (10 + n))``, so that a short run is not ruled by its
    random beginning (the rule of TensorFlow's ``ExponentialMovingAverage``).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Follow ``model`` after its update number ``step`` (from 1)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - decay)
        for mine, theirs in zip(self.model.buffers(), model.buffers()):
            mine.copy_(theirs)


def mean_of_states(states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of the floating-point entries, computed in float64; others (counters) from the last state.

    Raises:
        ValueError: There is no state.
    """
    sums: dict[str, Tensor] = {}
    count, last = 0, {}
    for count, last in enumerate(states, start=1):  # noqa: B007 - both are used below
        for key, value in last.items():
            if value.is_floating_point():
                sums[key] = sums[key] + value.double() if key in sums else value.double()
    if not count:
        raise ValueError("there is nothing to average")
    return {k: (sums[k] / count).to(v.dtype) if k in sums else v.clone() for k, v in last.items()}
