"""Window logits at their keys, place by place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlplatform.attention.realign import inside, realign, realign_grid

lengths = st.integers(1, 9)
windows = st.sampled_from([1, 3, 5, 9, 21])
fills = st.sampled_from([0.0, float("-inf"), 2.5])


@settings(max_examples=60, deadline=None)
@given(lengths, windows, fills)
def test_realign(length, window, fill):
    taps = torch.randn(2, length, window)
    expected = torch.full((2, length, length), fill)
    for query in range(length):
        for place in range(window):
            key = query + place - window // 2
            assert inside(length, window)[query, place] == (0 <= key < length)
            if 0 <= key < length:
                expected[:, query, key] = taps[:, query, place]
    torch.testing.assert_close(realign(taps, fill), expected, rtol=0, atol=0)


@settings(max_examples=40, deadline=None)
@given(lengths, lengths, windows, fills)
def test_realign_grid(height, width, window, fill):
    taps = torch.randn(2, height, width, window, window)
    expected = torch.full((2, height, width, height, width), fill)
    half = window // 2
    for y in range(height):
        for x in range(width):
            for key_y in range(max(0, y - half), min(height, y + half + 1)):
                for key_x in range(max(0, x - half), min(width, x + half + 1)):
                    place = (key_y - y + half, key_x - x + half)
                    expected[:, y, x, key_y, key_x] = taps[(slice(None), y, x, *place)]
    torch.testing.assert_close(realign_grid(taps, fill), expected, rtol=0, atol=0)


@pytest.mark.parametrize("window", [1, 3, 7])
def test_gradients_reach_exactly_the_taps_whose_keys_exist(window):
    taps = torch.randn(4, window, requires_grad=True)
    realign(taps, float("-inf")).sum().backward()
    assert torch.equal(taps.grad, inside(4, window).float())
