"""What the tests of the local operators share: each by name, random parameters and statistics, both paths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor, nn

from vlplatform.attention import build, kernels
from vlplatform.attention.kernels import layer

NAMES = ("local_content", "local_geometric", "local_bilateral", "local_bilateral_ir")
PATHS: tuple[Literal["fused", "plain"], ...] = ("fused", "plain")


def operator(name: str, dim: int = 8, seed: int = 0, dtype: torch.dtype = torch.float64, **settings: Any) -> nn.Module:
    """The local operator ``name`` with parameters and running statistics drawn anew."""
    module = build(name, dim=dim, socket="local", **({} if name == "conv" else {"heads": 2}) | settings).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    for key, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            drawn = 0.6 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.copy_(0.5 + drawn.abs() if key.endswith("running_var") else drawn)
    return module


@contextmanager
def taking(path: Literal["fused", "plain"], strip_bytes: int = 512 * 1024) -> Iterator[list[bool]]:
    """Take a path; yields a list that grows whenever the fused kernel runs, in strips of that size."""
    runs: list[bool] = []

    def run(*arguments: Any) -> Tensor:
        runs.append(True)
        return real(*arguments)

    real = layer.run
    strips = patch.object(layer, "Window", partial(layer.Window, strip_bytes=strip_bytes))
    with kernels.using(path), strips, patch.object(layer, "run", run):
        yield runs
