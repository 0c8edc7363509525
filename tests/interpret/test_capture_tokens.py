"""Weights of token attention, captured around a model."""

from __future__ import annotations

import pytest
import torch

from vlplatform.attention.cache import Cache
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry
from vlplatform.interpret.capture import capture
from vlplatform.layers import Decoder, Encoder


def test_an_encoder_shows_its_weights() -> None:
    torch.manual_seed(0)
    encoder = Encoder(16, 2, attn=["mdsa", "acf2d"], heads=2).eval()
    mask = torch.tensor([[True] * 5 + [False]])
    with capture(encoder) as captured:
        encoder(torch.randn(1, 6, 16), mask=mask, geometry=Geometry.from_grid(2, 3))
    assert captured.names("tokens") == [
        "layers.0.attention",
        *(f"layers.0.attention.branches.{i}" for i in range(3)),
        "layers.1.attention",
    ]
    for name, heads in (("layers.0.attention", 6), ("layers.1.attention", 2)):
        weights = captured.weights(name)
        assert weights.shape == (1, heads, 6, 6)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, heads, 6))
        assert not weights[..., 5].any()
    with pytest.raises(UserError, match="no attention of the name 'x'"):
        captured.weights("x")


def test_a_cached_step_shows_all_it_looked_at() -> None:
    torch.manual_seed(0)
    decoder, tokens, memory = Decoder(16, 1, heads=2).eval(), torch.randn(1, 4, 16), torch.randn(1, 3, 16)
    with capture(decoder) as captured:
        decoder(tokens, memory)
    whole = captured.weights("layers.0.attention")
    cache = Cache()
    with capture(decoder) as captured:
        for step in range(4):
            decoder(tokens[:, step : step + 1], memory, cache=cache)
    torch.testing.assert_close(captured.weights("layers.0.attention"), whole[:, :, 3:])
    assert captured.weights("layers.0.cross").shape == (1, 2, 1, 3)
    assert cache.child("0").child("self").length == 4  # looking changed nothing
