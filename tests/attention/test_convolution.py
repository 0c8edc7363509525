"""The k×k convolution of the local socket."""

from __future__ import annotations

import pytest
import torch

from vlplatform.attention import build
from vlplatform.errors import UserError


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_keeps_the_size_and_counts_its_cost(kernel: int):
    operator = build("conv", dim=6, socket="local", out_dim=4, kernel=kernel)
    assert operator(torch.randn(2, 6, 2, 7)).shape == (2, 4, 2, 7)
    assert operator.macs(2, 7) == 14 * 6 * 4 * kernel**2


@pytest.mark.parametrize("kernel", [0, 2, -1])
def test_an_even_kernel_is_refused(kernel: int):
    with pytest.raises(UserError, match="odd"):
        build("conv", dim=6, socket="local", kernel=kernel)
