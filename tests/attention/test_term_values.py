"""Terms by the value of their settings, what layers share because of it, and lists that no call could suit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vlplatform import geometry as places
from vlplatform.attention import build, catalogue, sizes_of
from vlplatform.attention.score_term import Depth, ScoreTerm, Sizes
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry
from vlplatform.layers import Encoder

SIZES = sizes_of(16, 2)
OTHER: dict[str, dict[str, Any]] = {
    "abs_pe": {"every_layer": True},
    "acf1d": {"rate": 2},
    "acf2d": {"height": 3},
    "bilateral_sa": {"hidden": 5},
    "dsa": {"distance": "euclidean"},
    "gsa": {"kinds": ["key", "query"]},
    "halo_window": {"halo": 1},
    "nsa": {"affine": True},
    "rel_pe": {"inclusive": True},
    "rel_pos": {"values": False},
    "swin_window": {"window": 3},
    "talking_heads": {"probabilities": False},
}
TERMS = sorted(name for name, mechanism in catalogue().items() if mechanism.term)


def term(name: str, **settings: Any) -> ScoreTerm:
    made = catalogue()[name].build(SIZES, **settings)
    assert isinstance(made, ScoreTerm)
    return made


@pytest.mark.parametrize("name", TERMS)
def test_settings_are_values(name: str) -> None:
    one, two, other = term(name), term(name), term(name, **OTHER[name])
    with torch.no_grad():
        for parameter in two.parameters():
            parameter.add_(1)
    assert one.settings() == two.settings() == copy.deepcopy(one).settings()
    assert hash(one.settings()) == hash(two.settings())
    assert other.settings() != one.settings()
    assert len({one.settings(), two.settings(), other.settings()}) == 2


def test_terms_of_different_classes_differ() -> None:
    assert len({term(name).settings() for name in TERMS}) == len(TERMS)


def test_equal_terms_are_two_modules() -> None:
    """Modules that compare equal would hide each other's parameters."""
    both = nn.ModuleList([term("dsa"), term("dsa")])
    assert len(list(both.parameters())) == 4


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    calls, plain = [], getattr(places, name)

    def count(*arguments: Any, **named: Any) -> Tensor:
        calls.append(1)
        return plain(*arguments, **named)

    for module in ("geometry", "attention.gsa", "attention.box_relations"):
        monkeypatch.setattr(f"vlplatform.{module}.{name}", count, raising=False)
    return calls


@pytest.mark.parametrize(
    ("attn", "name", "times"),
    [
        ("dsa", "distances", 1),
        ("mdsa", "distances", 1),
        (["dsa", {"name": "dsa", "scaling": "linear"}, "dsa"], "distances", 1),
        (["dsa", {"name": "dsa", "distance": "euclidean"}, "dsa"], "distances", 2),
        ("gsa", "relative_boxes", 1),
        ("rel_pe", "relative_boxes", 1),
        (["rel_pe", {"name": "rel_pe", "inclusive": True}, "rel_pe"], "relative_boxes", 2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_share_geometry(
    attn: Any, name: str, times: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in a forward pass, also where the geometry has another precision than the tokens, and anew in the next."""
    calls, encoder = counted(monkeypatch, name), Encoder(16, 3, attn=attn, heads=2)
    for passes in (1, 2):
        encoder(torch.randn(1, 6, 16), geometry=Geometry.from_grid(2, 3, dtype=dtype))
        assert len(calls) == passes * times


def test_layers_share_windows() -> None:
    encoder, depth = Encoder(16, 4, attn="swin_window", heads=2), Depth()
    x = torch.randn(1, 6, 16)
    geometry = Geometry.from_grid(2, 3)
    for i, layer in enumerate(encoder.layers):
        x = layer(x, geometry=geometry, depth=depth.at(i))
    assert len(depth.kept["places in windows"]) == 2  # even and odd layers


@pytest.mark.parametrize("name", ["dsa", "gsa", "rel_pe", "swin_window", "halo_window"])
def test_two_geometries_in_one_pass_are_not_taken_for_each_other(name: str) -> None:
    torch.manual_seed(0)
    attn, x, depth = build(name, dim=16, heads=2, socket="token").eval(), torch.randn(1, 6, 16), Depth()
    nn.init.normal_(next(attn.terms.parameters()))
    grids = [Geometry.from_grid(*sides) for sides in ((2, 3), (3, 2), (1, 6))]
    alone = [attn(x, geometry=grid) for grid in grids]
    for _ in range(2):
        for grid, expected in zip(grids, alone):
            assert torch.equal(attn(x, geometry=grid, depth=depth), expected)
    if name not in ("swin_window", "halo_window"):
        for seed in range(20):  # the place of one that is gone may be taken by the next
            boxes = torch.rand(1, 6, 4, generator=torch.Generator().manual_seed(seed)).cumsum(-1)
            expected = attn(x, geometry=Geometry.from_boxes(boxes))
            assert torch.equal(attn(x, geometry=Geometry.from_boxes(boxes), depth=depth), expected)


def test_a_copy_of_the_store_is_its_own() -> None:
    depth, thing = Depth(), object()
    depth.once("a", lambda: 1, thing)
    copied = depth.copy()
    assert copied.once("a", lambda: 2, thing) == 1
    assert copied.once("a", lambda: 3, object()) == 3
    assert len(depth.kept["a"]) == 1
    assert depth.child("x").once("a", lambda: 4, thing) == 1


def test_a_term_without_settings_needs_no_constructor() -> None:
    from vlplatform.attention import Block, MultiHeadAttention

    class Decay(ScoreTerm):
        name = "decay"

        def bias(self, block: Block) -> Tensor:
            query = torch.arange(block.start, block.start + block.rows, device=block.device)
            return -0.1 * (query[:, None] - torch.arange(block.keys, device=block.device)).abs()

    assert MultiHeadAttention(16, heads=2, terms=[Decay])(torch.randn(1, 5, 16)).shape == (1, 5, 16)
    assert Decay(SIZES).settings() == (Decay,)
    assert isinstance(SIZES, Sizes)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (
            [{"name": "bilateral", "window": 4}, "nsa"],
            r"bilateral_sa and nsa cannot be combined: .* causal calls alone",
        ),
        (["acf2d", {"name": "bilateral", "window": 4}], "bilateral_sa and acf2d cannot be combined"),
        (
            [{"name": "acf1d", "rate": 2}, {"name": "bilateral", "window": 2}],
            "bilateral_sa and acf1d cannot be combined",
        ),
        ([{"name": "nsa", "norm": "layer"}, {"name": "bilateral", "window": 4}], None),
        (["nsa", {"name": "bilateral", "window": 5}, {"name": "acf1d", "rate": 2}], None),
        (["swin_window", "acf2d", "abs_pe"], None),
        (["rel_pe", "gsa", "dsa", "talking_heads"], None),
    ],
)
def test_lists_that_no_call_suits_are_refused(terms: list[Any], message: str | None) -> None:
    if message is None:
        build("sa", dim=16, heads=2, socket="token", terms=terms)
        return
    with pytest.raises(UserError, match=message) as caught:
        build("sa", dim=16, heads=2, socket="token", terms=terms)
    assert "\n" not in str(caught.value)
