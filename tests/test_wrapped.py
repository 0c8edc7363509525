"""The model inside its wrappers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vlplatform.wrapped import bare


def test_wrappers_are_taken_off() -> None:
    model = nn.Linear(2, 2)
    assert bare(model, nn.Linear) is model
    assert bare(torch.compile(model), nn.Linear) is model  # pyright: ignore[reportArgumentType]
    assert bare(nn.DataParallel(model), nn.Linear, nn.Conv2d) is model


def test_what_is_something_else_is_told() -> None:
    with pytest.raises(TypeError, match="Sequential is no Linear or Conv2d"):
        bare(nn.Sequential(nn.Linear(2, 2)), nn.Linear, nn.Conv2d)
