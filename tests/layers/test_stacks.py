"""Encoders and decoders built from specs."""

from __future__ import annotations

import pytest
import torch

from vlplatform.attention.cache import Cache
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry
from vlplatform.layers import Decoder, Encoder, UnbiasedNorm, sinusoids


@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("attn", ["sa", "bilateral", "acf1d", "dynamic_conv", ["rel_pos", {"name": "msa", "of": "sa"}]])
def test_decoding_step_by_step_equals_the_parallel_pass(order: str, attn: object) -> None:
    torch.manual_seed(0)
    decoder = Decoder(16, 2, attn=attn, heads=2, order=order, memory_dim=12).double().eval()
    tokens, memory = torch.randn(4, 6, 16).double(), torch.randn(2, 5, 12).double()
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    whole, cache = decoder(tokens, memory, memory_mask=mask), Cache()
    steps = [decoder(tokens[:, i : i + 1], memory, memory_mask=mask, cache=cache) for i in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-9, atol=1e-9)


def test_beams_are_reordered_with_their_caches() -> None:
    torch.manual_seed(0)
    decoder = Decoder(16, 1, heads=2).double().eval()
    tokens, memory, cache = torch.randn(4, 3, 16).double(), torch.randn(2, 5, 16).double(), Cache()
    decoder(tokens[:, :2], memory, cache=cache)
    order = torch.tensor([1, 1, 2, 3])  # two beams per image, each staying with its image
    cache.reorder(order)
    last = decoder(tokens[order, 2:], memory, cache=cache)
    torch.testing.assert_close(last, decoder(tokens[order], memory)[:, 2:], rtol=1e-9, atol=1e-9)


def test_fusion_in_a_decoder() -> None:
    torch.manual_seed(0)
    decoder = Decoder(16, 2, cross="eta", heads=2, fusion=True).double().eval()
    tokens, memories = torch.randn(2, 4, 16).double(), [torch.randn(2, m, 16).double() for m in (5, 3)]
    masks = [torch.ones(2, 5, dtype=torch.bool), None]
    whole, cache = decoder(tokens, memories, memory_mask=masks), Cache()
    steps = [decoder(tokens[:, i : i + 1], memories, memory_mask=masks, cache=cache) for i in range(4)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-9, atol=1e-9)


def test_clusters_grow_over_the_layers_of_one_pass() -> None:
    torch.manual_seed(0)
    encoder = Encoder(16, 2, attn="acf2d", heads=2).eval()
    tokens = torch.randn(1, 6, 16)
    first, _ = encoder(tokens, geometry=Geometry.from_grid(2, 3))
    again, every = encoder(tokens, geometry=Geometry.from_grid(2, 3))
    assert torch.equal(first, again)  # nothing is left over from the first pass
    assert len(every) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attn": ["sa"]}, "attn has 1 specs for 2 layers"),
        ({"attn": {"heads": 2}}, "names no mechanism"),
        ({"attn": "conv"}, "attn=conv does not fit the token socket"),
        ({"order": "middle"}, "order=middle is not one of post, pre"),
        ({"norm": "group"}, "norm=group is not one of"),
        ({"activation": "tanh"}, "activation=tanh is not one of"),
    ],
)
def test_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises((UserError, ValueError), match=message):
        Encoder(16, 2, heads=2, **arguments)


def test_the_unbiased_norm_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0, 6.0]], dtype=torch.float64)
    torch.testing.assert_close(UnbiasedNorm(3).double()(x), (x - 3) / (7**0.5 + 1e-6))


def test_sinusoids() -> None:
    table = sinusoids(3, 6, first=1)
    torch.testing.assert_close(
        table[0, :2], torch.tensor([1.0, 1.0]).sin() * torch.tensor([1.0, 0]) + torch.tensor([0, 0.5403023])
    )
    halves = sinusoids(4, 6, "halves", first=2)
    torch.testing.assert_close(halves[:, 0], torch.arange(2.0, 6).sin())
    torch.testing.assert_close(halves[:, 2], (torch.arange(2.0, 6) * 1e-4).sin())
    assert sinusoids(2, 5).shape == sinusoids(2, 5, "halves").shape == (2, 5)
