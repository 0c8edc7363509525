"""Score terms joined at will: by a plus, by a list, in pairs and triples; and what is refused."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from vlplatform.attention import build, catalogue
from vlplatform.attention.kernels import using
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry

TERMS = sorted(name for name, m in catalogue().items() if m.term)
SMALL = {
    "bilateral_sa": {"window": 3},
    "rel_pos": {"clip": 2},
    "swin_window": {"window": 2},
    "halo_window": {"block": 2},
}
EXCLUSIVE = ({"acf1d", "acf2d"}, {"swin_window", "halo_window"})


def entries(names: tuple[str, ...]) -> list[object]:
    return [{"name": name, **SMALL[name]} if name in SMALL else name for name in names]


def excluded(names: tuple[str, ...]) -> bool:
    return len(set(names)) < len(names) or any(group <= set(names) for group in EXCLUSIVE)


def trains(names: tuple[str, ...]) -> None:
    """One step of gradient descent on the squared output lowers it."""
    torch.manual_seed(0)
    module = build("sa", dim=16, heads=2, socket="token", terms=entries(names)).train()
    x, geometry = torch.randn(2, 8, 16), Geometry.from_grid(2, 4)
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[1, 6:] = False
    losses = []
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    for _ in range(2):
        loss = module(x, geometry=geometry, mask=mask).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(torch.isfinite(p).all() for p in module.parameters())
    assert losses[1] < losses[0]
    with using("plain"), torch.no_grad():
        plain = module.eval()(x, geometry=geometry, mask=mask)
    torch.testing.assert_close(module(x, geometry=geometry, mask=mask), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", TERMS)
def test_ordered_pairs(first: str) -> None:
    for second in TERMS:
        if excluded((first, second)):
            with pytest.raises(UserError, match=r"cannot be combined|stands twice"):
                build("sa", dim=16, heads=2, socket="token", terms=entries((first, second)))
        else:
            trains((first, second))


def test_a_hundred_triples() -> None:
    triples = [names for names in itertools.permutations(TERMS, 3) if not excluded(names)]
    for names in random.Random(0).sample(triples, 100):
        trains(names)


def test_a_plus_and_a_preset_are_the_list() -> None:
    modules = []
    for name, settings in (("nsa+gsa", {}), ("ngsa", {}), ("sa", {"terms": ["nsa", "gsa"]})):
        torch.manual_seed(0)
        modules.append(build(name, dim=16, heads=2, socket="token", **settings))
    assert len({tuple(module.state_dict()) for module in modules}) == 1
    x, geometry = torch.randn(1, 6, 16), Geometry.from_grid(2, 3)
    for other in modules[1:]:
        other.load_state_dict(modules[0].state_dict())
        assert torch.equal(other(x, geometry=geometry), modules[0](x, geometry=geometry))


def test_settings_of_a_sum_go_to_the_term_that_has_them() -> None:
    module = build("dsa+bilateral", dim=16, heads=2, socket="token", distance="euclidean", window=7, dropout=0.1)
    assert module.terms[0].distance == "euclidean"
    assert module.terms[1].window == 7
    assert module.dropout == 0.1


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("nsa+msa", {}, "msa is a module of its own"),
        ("nsa+nope", {}, "attn=nope is not a known mechanism"),
        ("dsa", {"distance": "taxi"}, r"attn.distance=taxi is not valid.*manhattan"),
        ("dsa", {"distanc": "manhattan"}, "attn.distanc is not a setting.*did you mean 'distance'"),
        ("sa", {"heads": 3}, "dim=16 is not divisible by heads=3"),
        ("sa", {"dropout": 1.0}, "dropout=1.0 must be at least 0 and below 1"),
        ("sa", {"terms": ["nso"]}, r"attn.terms\[0\]=nso is not a known term: did you mean 'nsa'"),
        ("sa", {"terms": [{"distance": "euclidean"}]}, r"attn.terms\[0\].* names no term"),
        ("sa", {"terms": [{"name": "dsa", "scalin": "linear"}]}, r"attn.terms\[0\].scalin is not a setting"),
        ("sa", {"terms": ["mdsa"]}, r"attn.terms\[0\]=mdsa is a module of its own"),
        ("gsa", {"kinds": ["query", "query"]}, "must be one or more of content_independent, query, key, each once"),
        ("bilateral", {"window": 0}, "window=0"),
        ("acf1d", {"rate": 2, "window": 1}, "rate=2 has no meaning with window=1"),
        ("msa", {"branches": 0}, "branches=0 must be at least 1"),
        ("msa", {"of": "eta"}, "attn=eta does not fit the token socket"),
        ("msa", {"drop": 1.0}, "drop=1.0"),
        ("abs_pe", {"heads": 2}, None),
        ("talking_heads", {"logits": False, "probabilities": False}, "leave nothing to mix"),
    ],
)
def test_settings_refused(name: str, settings: dict[str, object], message: str | None) -> None:
    settings = {"heads": 2, **settings}
    if message is None:
        build(name, dim=16, socket="token", **settings)
        return
    with pytest.raises(UserError, match=message) as caught:
        build(name, dim=16, socket="token", **settings)
    assert "\n" not in str(caught.value)


X = torch.zeros(2, 6, 16)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("sa", {"query": torch.zeros(2, 6, 15)}, r"query has shape \(2, 6, 15\); expected \(batch, tokens, 16\)"),
        ("sa", {"key": torch.zeros(2, 6, 15)}, r"key has shape \(2, 6, 15\)"),
        ("sa", {"key": torch.zeros(3, 6, 16)}, "query has a batch of 2, key of 3; expected a divisor"),
        ("sa", {"value": X}, "value was given without key"),
        ("sa", {"key": X, "value": torch.zeros(2, 5, 16)}, r"value has shape \(2, 5, 16\)"),
        ("sa", {"mask": torch.ones(2, 6)}, "mask has type torch.float32; expected booleans"),
        ("sa", {"mask": torch.ones(2, 5, dtype=torch.bool)}, r"mask has shape \(2, 5\).*keys=6"),
        ("sa", {"mask": torch.ones(6, dtype=torch.bool)}, r"mask has shape \(6,\)"),
        ("sa", {"query_mask": torch.ones(2, 5, dtype=torch.bool)}, r"query_mask has shape \(2, 5\)"),
        ("dsa", {}, "attn=dsa needs geometry"),
        ("dsa", {"geometry": Geometry.from_grid(2, 2)}, "geometry has 4 tokens; expected the 6 queries"),
        ("gsa", {"geometry": Geometry.from_points(torch.zeros(6, 2))}, "attn=gsa needs boxes"),
        ("abs_pe", {"geometry": Geometry.from_points(torch.zeros(6, 2))}, "needs the picture's size"),
        ("swin_window", {"geometry": Geometry.from_boxes(torch.rand(6, 4).cumsum(-1))}, "needs the tokens of a grid"),
        ("acf2d", {"geometry": Geometry.from_grid(2, 3), "causal": True}, "cannot be causal"),
        ("nsa", {"causal": True}, "cannot be causal"),
        ("bilateral", {"key": X}, "is self-attention: call it without key"),
        ("bilateral", {"settings": {"window": 4}}, "attn.window=4 is even"),
        ("acf1d", {"key": X}, "is self-attention"),
        ("rel_pos", {"key": X}, "is self-attention"),
        ("msa", {"settings": {"of": "sa"}, "train": True, "draws": torch.zeros(2)}, r"draws has shape \(2,\)"),
    ],
)
def test_calls_refused(name: str, arguments: dict[str, object], message: str) -> None:
    arguments = dict(arguments)
    settings = arguments.pop("settings", {})
    module = build(name, dim=16, heads=2, socket="token", **settings).train(bool(arguments.pop("train", False)))
    query = arguments.pop("query", X)
    with pytest.raises(UserError, match=message) as caught:
        module(query, **arguments)
    assert "\n" not in str(caught.value)


def test_geometry_refused() -> None:
    boxes = torch.rand(2, 6, 4).cumsum(-1)
    boxes[1, 3, 2] = float("nan")
    with pytest.raises(UserError, match=r"boxes\[1, 3\] = .*nan.* is not finite"):
        Geometry.from_boxes(boxes)
    with pytest.raises(UserError, match=r"boxes of shape \(6, 3\)"):
        Geometry.from_boxes(torch.rand(6, 3))
    with pytest.raises(UserError, match=r"type torch\.int64"):
        Geometry.from_points(torch.zeros(6, 2, dtype=torch.int64))
    with pytest.raises(UserError, match="empty"):
        Geometry.from_grid(0, 3)
    with pytest.raises(UserError, match="both positive"):
        Geometry.from_boxes(torch.rand(6, 4).cumsum(-1), size=(0.0, 1.0))


def test_several_queries_share_a_memory() -> None:
    torch.manual_seed(0)
    memory, mask = torch.randn(2, 5, 16), torch.tensor([[True] * 5, [True, True, False, False, False]])
    query = torch.randn(6, 3, 16)
    for name, given in (("sa", {}), ("dsa", {"geometry": (Geometry.from_grid(1, 3), Geometry.from_grid(1, 5))})):
        module = build(name, dim=16, heads=2, socket="token").eval()
        shared = module(query, memory, mask=mask, **given)
        repeated = module(query, memory.repeat_interleave(3, 0), mask=mask.repeat_interleave(3, 0), **given)
        torch.testing.assert_close(shared, repeated, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sa", "dsa"])
def test_dropout_is_the_same_in_both_passes(name: str) -> None:
    """The blocks' second pass drops what the first dropped: finite differences agree."""
    module = build(name, dim=8, heads=2, socket="token", dropout=0.5).double().train()
    x = torch.randn(2, 6, 8, dtype=torch.float64, requires_grad=True)

    def call(tokens: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return module(tokens, geometry=Geometry.from_grid(2, 3))

    assert torch.autograd.gradcheck(call, (x,), fast_mode=True)
    assert not torch.equal(call(x), module(x, geometry=Geometry.from_grid(2, 3)))


def test_published_parameter_counts() -> None:
    """Per encoder layer, as derived from the papers' tables."""

    def count(name: str, **settings: object) -> int:
        return sum(p.numel() for p in build(name, dim=512, socket="token", **settings).parameters())

    assert count("sa") == 1_050_624
    assert count("nsa") == 1_050_624  # NG-SAN, table 1: no parameters of its own
    assert count("msa", form="paper") == 3 * 1_050_624
    assert count("mdsa") == 3 * 1_051_664  # with w, v and the norm of each branch
    assert count("mh_heads") == count("large") == 3 * 1_050_624 - 2 * 512  # MD-SAN, table X: 39.9 M
    assert count("extend_qk") - count("sa") == 2 * 7 * 262_656  # 44.6 M
    query_dependent, independent = (count("gsa", kinds=[kind]) for kind in ("query", "content_independent"))
    assert query_dependent - 1_050_624 == 262_656 + 5 * 64
    assert independent - 1_050_624 == 5 * 64 + 8 * 64  # 40.2 M, as plain attention


def test_published_stacks() -> None:
    """NG-SAN's SAN of table 1 per layer, and MCAN's three-branch encoder of MD-SAN's table XIV."""
    from vlplatform.layers import Decoder, Encoder

    def count(module: torch.nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    layers = count(Encoder(512, 1)) + count(Decoder(512, 1))
    assert layers == 25_486_095 - 18_129_679
    assert 2 * layers == 54_911_759 - 40_198_927
    assert count(Encoder(512, 4)) + count(Decoder(512, 4)) == 4 * layers
    several = count(Encoder(512, 6, attn={"name": "msa", "form": "paper"}))
    assert several - count(Encoder(512, 6)) == 6 * 2 * 1_050_624  # 70.42 − 57.81 = 12.61 M
    placed = count(Encoder(512, 3, attn=[{"name": "msa", "form": "paper"}, "sa", "sa"]))
    assert placed - count(Encoder(512, 3)) == 2 * 1_050_624  # table XII: one layer of three
