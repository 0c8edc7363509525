"""One kernel for terms said pair by pair: equal to the plain path, and taken only where it is."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vlplatform.attention import MultiHeadAttention, build
from vlplatform.attention.cache import Cache
from vlplatform.attention.dsa import DistanceSensitive
from vlplatform.attention.kernels import Path, flex, using
from vlplatform.attention.score_term import Block, Depth
from vlplatform.geometry import Geometry, distances, length

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),  # read by torch.compile
]

DIM, HEADS, GRID = 32, 2, (5, 6)
CASES: list[tuple[str, dict[str, Any]]] = [
    ("dsa", {"distance": "manhattan"}),
    ("dsa", {"distance": "euclidean", "scaling": "linear"}),
    ("dsa", {"distance": "chebyshev", "scaling": "quadratic"}),
    ("dsa", {"scaling": "scalar", "key_dim": 20}),
    ("swin_window", {"window": 2}),
    ("swin_window", {"window": 4}),
    ("halo_window", {"block": 2, "halo": 1}),
    ("halo_window", {"block": 3, "halo": 0}),
    ("dsa+swin_window", {"window": 3}),
    ("nsa+dsa", {}),
]
ALL = pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda x: str(x))


def made(name: str, settings: dict[str, Any], dtype: torch.dtype = torch.float64, dim: int = DIM) -> nn.Module:
    torch.manual_seed(0)
    module = build(name, dim=dim, heads=HEADS, socket="token", **settings).to(dtype).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def masks(batch: int, tokens: int) -> dict[str, Tensor | None]:
    """Padding, and pairs per head; some rows and one whole item have no key."""
    generator = torch.Generator().manual_seed(1)
    padding = torch.rand(batch, tokens, generator=generator) > 0.3
    padding[-1] = False
    heads = torch.rand(batch, HEADS, tokens, tokens, generator=generator) > 0.5
    heads[0, :, 4] = heads[0, 0, 5] = False
    return {"none": None, "padding": padding, "heads": heads}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As many entries as calls of the kernel."""
    found, attend = [], flex.attend

    def counted(*args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        found.append(1)
        return attend(*args, **named)

    monkeypatch.setattr(flex, "attend", counted)
    return found


def both(module: nn.Module, *tokens: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        with using("flex"):
            fast = module(*tokens, **given)
        with using("plain"):
            return fast, module(*tokens, **given)


@ALL
@pytest.mark.parametrize("mask", ["none", "padding", "heads"])
def test_equals_the_plain_path(name: str, settings: dict[str, Any], mask: str, calls: list[int]) -> None:
    module, tokens = made(name, settings), GRID[0] * GRID[1]
    x = torch.randn(3, tokens, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for causal in (False, True):
        if causal and name == "nsa+dsa":
            continue
        given = {"mask": masks(3, tokens)[mask], "causal": causal, "depth": Depth(layer=1)}
        fast, plain = both(module, x, geometry=Geometry.from_grid(*GRID, dtype=torch.float64), **given)
        torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-9)
        if mask == "padding":
            assert not fast[-1].any()
    assert calls


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_other_precisions(dtype: torch.dtype, tolerance: float, calls: list[int]) -> None:
    """No less precise than the plain path."""
    module, x = made("dsa", {}, dtype), torch.randn(2, 30, DIM).to(dtype)
    fast, plain = both(module, x, geometry=Geometry.from_grid(*GRID))
    exact = module.double()(x.double(), geometry=Geometry.from_grid(*GRID, dtype=torch.float64)).detach()
    assert fast.dtype == dtype
    assert (fast - exact).abs().max() <= max(tolerance, 1.5 * float((plain - exact).abs().max()))
    assert len(calls) == 1


def test_autocast(calls: list[int]) -> None:
    module, x = made("nsa+dsa", {}, torch.float32), torch.randn(2, 30, DIM)
    exact = module(x, geometry=Geometry.from_grid(*GRID)).detach()
    with torch.autocast("cpu", torch.bfloat16):
        fast, plain = both(module, x, geometry=Geometry.from_grid(*GRID))
    assert (fast - exact).abs().max() <= 1.5 * (plain - exact).abs().max()
    assert len(calls) == 1


def test_keys_of_another_set_shared_by_several_queries(calls: list[int]) -> None:
    torch.manual_seed(0)
    module = made("dsa", {"distance": "euclidean"})
    query, key = torch.randn(4, 7, DIM, dtype=torch.float64), torch.randn(2, 9, DIM, dtype=torch.float64)
    at, to = torch.rand(4, 7, 2, dtype=torch.float64), torch.rand(2, 9, 2, dtype=torch.float64)
    pair = (Geometry.from_points(at), Geometry.from_points(to))
    fast, plain = both(module, query, key, geometry=pair, mask=torch.rand(2, 9) > 0.5)
    torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-9)
    assert calls


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("gsa+dsa", {}),
        ("dsa+bilateral", {"window": 3}),
        ("acf1d+dsa", {}),
        ("talking_heads+dsa", {}),
        ("nsa", {}),
        ("dsa", {"cached": True}),
        ("dsa", {"dropout": 0.5}),
        ("dsa", {"grad": True}),
    ],
)
def test_what_cannot_be_said_goes_another_way(name: str, call: dict[str, Any], calls: list[int]) -> None:
    given, call = {}, dict(call)
    if call.pop("cached", False):
        given = {"cache": Cache(), "causal": True}
    grad = call.pop("grad", False)
    module, x = made(name, call).train("dropout" in call), torch.randn(1, 30, DIM, dtype=torch.float64)
    with torch.set_grad_enabled(grad), using("flex"):
        module(x, geometry=Geometry.from_grid(*GRID, dtype=torch.float64), **given)
    assert not calls


def test_a_subclass_that_changes_a_point_is_not_spoken_for(calls: list[int]) -> None:
    class Halved(DistanceSensitive):
        def modulate(self, logits: Tensor, block: Block) -> Tensor:
            return super().modulate(logits, block) / 2

    class Renamed(DistanceSensitive):
        name = "renamed"

    assert DistanceSensitive.pairs()
    assert Renamed.pairs()
    assert not Halved.pairs()
    fast, plain = both(
        MultiHeadAttention(DIM, terms=[Halved]), torch.randn(1, 6, DIM), geometry=Geometry.from_grid(2, 3)
    )
    torch.testing.assert_close(fast, plain)
    assert not calls


def test_layers_share_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from vlplatform.layers import Encoder

    found, blocks = [], flex.blocks

    def counted(*args: Any) -> Any:
        found.append(1)
        return blocks(*args)

    monkeypatch.setattr(flex, "blocks", counted)
    encoder = Encoder(DIM, 4, attn={"name": "swin_window", "window": 2}, heads=HEADS).eval()
    with torch.no_grad(), using("flex"):
        encoder(torch.randn(1, 30, DIM), geometry=Geometry.from_grid(*GRID))
    assert len(found) == 2  # even and odd layers


@pytest.mark.parametrize("metric", ["manhattan", "euclidean", "chebyshev"])
def test_one_length_is_the_distance_of_a_pair(metric: Any) -> None:
    a, b = torch.randn(5, 2, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    apart = a[:, None] - b
    torch.testing.assert_close(length(*apart.unbind(-1), metric), distances(a, b, metric))


@ALL
def test_gradients_uncompiled(name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch refuses gradients on CPUs, where its own definition of the kernel has them all the same."""
    theirs = importlib.import_module("torch.nn.attention.flex_attention")
    if not hasattr(theirs, "_validate_device"):
        pytest.skip("this PyTorch checks devices elsewhere")
    monkeypatch.setattr(theirs, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "wanted", lambda *_: True)
    agree(made(name, settings), torch.float64, 1e-8)


def agree(module: nn.Module, dtype: torch.dtype, tolerance: float, grid: tuple[int, int] = GRID) -> None:
    """Output and gradients of the kernel are those of the plain path in double precision, or no further from them."""
    torch.manual_seed(1)
    tokens, width = grid[0] * grid[1], module.query.in_features
    start, weight = torch.randn(2, 2, tokens, width, dtype=dtype).double()
    exact = copy.deepcopy(module).double().cpu()

    def results(module: nn.Module, path: Path) -> list[Tensor]:
        like = next(module.parameters())
        x = start.to(like).requires_grad_()
        module.zero_grad()
        with using(path):
            out = module(x, geometry=Geometry.from_grid(*grid).to(x), mask=masks(2, tokens)["padding"].to(x.device))
        (out * weight.to(out)).sum().backward()
        assert not out[-1].any()
        return [found.detach().double().cpu() for found in (out, x.grad, *(p.grad for p in module.parameters()))]

    fast, plain, want = results(module, "auto"), results(module, "plain"), results(exact, "plain")
    for one, other, right in zip(fast, plain, want):
        scale = right.abs().max().clamp_min(1e-3)
        assert (one - right).abs().max() / scale <= max(tolerance, 2 * float((other - right).abs().max() / scale))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
@ALL
def test_on_a_gpu(name: str, settings: dict[str, Any], dtype: torch.dtype, tolerance: float, calls: list[int]) -> None:
    torch.compiler.reset()
    agree(made(name, settings, dtype, dim=64).to("cuda"), dtype, tolerance, grid=(13, 14))
    assert calls
