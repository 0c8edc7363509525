"""Weights of token attention, captured around a model."""

from __future__ import annotations

import itertools

import pytest
import torch

from vlplatform.attention import MultiHeadAttention, build
from vlplatform.attention.bilateral_sa import Bilateral
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


@pytest.mark.parametrize("padding", ["zero", "inf", "min", "learned"])
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_parts_of_bilateral_attention(padding: str, causal: bool) -> None:
    """Each summand's own softmax, entry by entry (attention thesis, eq. 3.11 and 3.12); the whole is their product."""
    torch.manual_seed(0)
    attention = build("bilateral", dim=8, socket="token", heads=2, window=3, padding=padding).double().eval()
    assert isinstance(attention, MultiHeadAttention)
    (term,) = attention.terms
    assert isinstance(term, Bilateral)
    x, real = torch.randn(2, 6, 8, dtype=torch.double), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    with capture(attention) as captured:
        attention(x, mask=real, causal=causal)
    (name,) = captured.names("tokens")
    parts, whole = captured.parts(name), captured.weights(name)
    assert list(parts) == ["content", "bilateral_sa"]
    q, k = (linear(x).unflatten(-1, (2, 4)) for linear in (attention.query, attention.key))
    taps = term.logits(term.embedding(x)).unflatten(-1, (2, -1)) / 2  # √d of a head 4 wide
    for b, h, i in itertools.product(range(2), range(2), range(6)):
        window = taps[b, i, h, :3]
        outside = {"zero": 0.0, "inf": -torch.inf, "min": window.min(), "learned": taps[b, i, h, -1]}[padding]
        content, position = torch.full((6,), -torch.inf).double(), torch.full((6,), -torch.inf).double()
        for j in range(6):
            place = j - i + (2 if causal else 1)
            logit = window[place] if 0 <= place < 3 else torch.as_tensor(outside)
            if real[b, j] and (j <= i or not causal) and logit > -torch.inf:
                content[j], position[j] = q[b, i, h] @ k[b, j, h] / 2, logit
        expected = [torch.zeros(6)] * 3
        if bool((position > -torch.inf).any()):  # else a row of padding sees nobody
            expected = [logits.softmax(0).float() for logits in (content, position, content + position)]
        for found, wanted in zip((parts["content"], parts["bilateral_sa"], whole), expected):
            torch.testing.assert_close(found[b, h, i], wanted, atol=1e-6, rtol=0)


def test_parts_of_what_is_no_sum() -> None:
    """One part where nothing adds to the logits, none where they are no dot products; names are checked."""
    torch.manual_seed(0)
    encoder = Encoder(16, 2, attn=["sa", {"name": "dynamic_conv", "kernel": 3}], heads=2).eval()
    with capture(encoder) as captured:
        encoder(torch.randn(1, 5, 16))
    plain, convolution = captured.names("tokens")
    (only,) = captured.parts(plain).items()
    assert only[0] == "content"
    torch.testing.assert_close(only[1], captured.weights(plain))
    assert captured.parts(convolution) == {}
    assert captured.weights(convolution).shape[-2:] == (5, 5)
    with pytest.raises(UserError, match="no attention of the name 'x'"):
        captured.parts("x")
