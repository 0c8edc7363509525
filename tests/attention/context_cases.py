"""What the tests of the context operators share: each operator by name, and random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vlplatform.attention import build

NAMES = ("nonlocal", "crisscross", "bilateral_nl", "bilateral_cc", "nonlocal_rpe", "crisscross_rpe")
BILATERAL = ("bilateral_nl", "bilateral_cc")
CRISS_CROSS = ("crisscross", "bilateral_cc", "crisscross_rpe")


def operator(name: str, dim: int = 8, seed: int = 0, dtype: torch.dtype = torch.float64, **settings: Any) -> nn.Module:
    """The context operator ``name`` with every parameter drawn anew, so that none is 0."""
    module = build(name, dim=dim, socket="context", **settings).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(drawn * 0.6)
    return module


def feature_map(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """A random map (B, C, H, W)."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
