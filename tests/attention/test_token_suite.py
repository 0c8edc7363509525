"""What holds for every token attention, whatever its idea."""

from __future__ import annotations

import pytest
import torch
from token_mechanisms import CASES, DIM, PATHS, Case
from torch import Tensor

from vlplatform.attention import catalogue
from vlplatform.attention.cache import Cache
from vlplatform.attention.kernels import Path, using
from vlplatform.geometry import Geometry

ALL = pytest.mark.parametrize("case", CASES, ids=str)
CAUSAL = pytest.mark.parametrize("case", [case for case in CASES if case.causal], ids=str)


@pytest.fixture(autouse=True)
def _many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that even these inputs take several."""
    monkeypatch.setattr("vlplatform.attention.multi_head._ROOM", 500)


def padding(batch: int, tokens: int) -> Tensor:
    torch.manual_seed(2)
    mask = torch.rand(batch, tokens) > 0.3
    mask[:, 0] = True
    mask[0] = True
    return mask


def test_every_score_term_has_a_case() -> None:
    covered = {name for case in CASES for name in case.name.split("+")} | {"bilateral_sa"}
    assert {m.name for m in catalogue().values() if "token" in m.sockets} <= covered


@ALL
def test_paths_agree(case: Case) -> None:
    module, (x, given) = case.build(), case.inputs()
    mask, results = padding(*x.shape[:2]), []
    for path in PATHS:
        tokens = x.clone().requires_grad_()
        with using(path):
            out = module(tokens, mask=mask, **given)
        module.zero_grad()
        out.sin().sum().backward()
        results.append([out, tokens.grad, *(p.grad for p in module.parameters() if p.grad is not None)])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-10, atol=1e-10)


@ALL
@pytest.mark.parametrize("path", PATHS)
def test_padding_changes_nothing(case: Case, path: Path) -> None:
    module, (x, given) = case.build(), case.inputs()
    mask = padding(*x.shape[:2])
    noisy = torch.where(mask[..., None], x, torch.full_like(x, 1e3))
    with using(path):
        assert torch.equal(module(x, mask=mask, **given)[mask], module(noisy, mask=mask, **given)[mask])


@ALL
@pytest.mark.parametrize("path", PATHS)
def test_padding_is_as_if_cropped(case: Case, path: Path) -> None:
    """Without padding the geometry of the rest is the same, and places are told apart by their distance alone."""
    if case.ordered and (case.name != "acf1d" or "window" in case.settings):
        mask = torch.ones(1, 8, dtype=torch.bool)
        mask[:, 5:] = False  # at the end: places before it keep their distances
    else:
        mask = torch.tensor([[True, False, True, True, False, False, True, True]])
    if case.geometry == "grid":
        pytest.skip("a grid that lacks cells is no grid")
    module, (x, given) = case.build(), case.inputs(batch=1)
    cropped = dict(given)
    if given:
        cropped["geometry"] = Geometry.from_boxes(given["geometry"].boxes[:, mask[0]], size=(2.0, 2.0))
    with using(path):
        whole = module(x, mask=mask, **given)[mask]
        torch.testing.assert_close(whole, module(x[:, mask[0]], **cropped)[0], rtol=1e-12, atol=1e-12)


@ALL
@pytest.mark.parametrize("path", PATHS)
def test_rows_without_keys(case: Case, path: Path) -> None:
    module, (x, given) = case.build(), case.inputs()
    mask = padding(*x.shape[:2])
    mask[1] = False
    x.requires_grad_()
    with using(path):
        out = module(x, mask=mask, **given)
    out.square().sum().backward()
    assert x.grad is not None
    assert torch.isfinite(out).all()
    assert torch.isfinite(x.grad).all()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in module.parameters())
    if case.zero:
        assert not out[1].any()


@ALL
@pytest.mark.parametrize("path", ["auto", "plain"])
def test_gradients(case: Case, path: Path) -> None:
    module, (x, given) = case.build(), case.inputs(batch=1)
    x, mask = x[:, :8], torch.tensor([[True] * 6 + [False] * 2])
    parameters = [p for p in module.parameters()]
    chosen = [p for p in parameters if p.ndim != 2 or p.shape[0] < DIM][:4]  # what is the mechanism's own, mostly

    def call(tokens: Tensor, *_: Tensor) -> Tensor:
        return module(tokens, mask=mask, **given)[:, :4, :3]

    with using(path):
        assert torch.autograd.gradcheck(call, (x.requires_grad_(), *chosen), fast_mode=True)


@CAUSAL
@pytest.mark.parametrize("path", PATHS)
def test_causal_calls_look_at_nothing_later(case: Case, path: Path) -> None:
    module, (x, given) = case.build(), case.inputs()
    changed = x.clone()
    changed[:, 5:] = torch.randn_like(changed[:, 5:])
    with using(path):
        before, after = (module(tokens, causal=True, **given)[:, :5] for tokens in (x, changed))
    torch.testing.assert_close(before, after, rtol=0, atol=0)


@CAUSAL
def test_cached_steps_equal_the_parallel_pass(case: Case) -> None:
    module, (x, given) = case.build(), case.inputs()
    whole = module(x, causal=True, **given)
    cache, steps, start = Cache(), [], 0
    for end in (1, 2, 5, 6, 8):
        part = given
        if given:
            geometry = given["geometry"]
            points = geometry.points
            boxes = geometry.boxes
            if geometry.grid is not None:
                pair = (Geometry.from_boxes(boxes[:, start:end]), Geometry.from_boxes(boxes[:, :end]))
            else:
                pair = (Geometry(points[:, start:end], boxes[:, start:end]), Geometry(points[:, :end], boxes[:, :end]))
            part = {"geometry": pair}
        steps.append(module(x[:, start:end], causal=True, cache=cache, **part))
        start = end
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-6, atol=1e-6)


@ALL
def test_low_precision(case: Case) -> None:
    module, (x, given) = case.build(torch.float32), case.inputs(dtype=torch.float32)
    exact = module(x, **given)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x, **given)
    assert torch.isfinite(out).all()
    assert (out.float() - exact).abs().max() <= 0.06 * exact.abs().max()


@ALL
def test_state_round_trip(case: Case) -> None:
    module, (x, given) = case.build(), case.inputs()
    other = case.build()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x, **given), module(x, **given))


@pytest.mark.parametrize("case", [case for case in CASES if not case.ordered], ids=str)
def test_sets_have_no_order(case: Case) -> None:
    module, (x, given) = case.build(), case.inputs(batch=2)
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(3))
    permuted = {}
    if given:
        boxes = given["geometry"].boxes
        geometry = Geometry.from_boxes(boxes[:, order], size=(2.0, 2.0))
        given, permuted = {"geometry": Geometry.from_boxes(boxes, size=(2.0, 2.0))}, {"geometry": geometry}
    out, other = module(x, **given), module(x[:, order], **permuted)
    torch.testing.assert_close(other, out[:, order], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", [case for case in CASES if case.geometry == "boxes" and not case.moved], ids=str)
def test_only_relative_places_count(case: Case) -> None:
    module, (x, given) = case.build(), case.inputs()
    shift = torch.tensor([0.5, -0.25, 0.5, -0.25], dtype=x.dtype)
    moved = Geometry.from_boxes(given["geometry"].boxes + shift)
    torch.testing.assert_close(module(x, geometry=moved), module(x, **given), rtol=1e-9, atol=1e-9)


@ALL
def test_compiles_in_one_graph(case: Case) -> None:
    module, (x, given) = case.build(torch.float32), case.inputs(dtype=torch.float32)
    mask = padding(*x.shape[:2])
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, mask=mask, **given), module(x, mask=mask, **given), rtol=1e-4, atol=1e-5)


@ALL
def test_exports(case: Case) -> None:
    module, (x, given) = case.build(torch.float32), case.inputs(dtype=torch.float32)
    mask = padding(*x.shape[:2])
    shapes = torch.export.ShapesCollection()
    geometry = given.get("geometry")
    of_boxes = [geometry.points, geometry.boxes] if geometry is not None and case.geometry == "boxes" else []
    for tensor in (x, mask, *of_boxes):
        shapes[tensor] = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(module, (x,), {"mask": mask, **given}, dynamic_shapes=shapes)
    for rows in (3, 2):
        part = dict(given)
        if case.geometry == "boxes":
            part["geometry"] = Geometry.from_boxes(given["geometry"].boxes[:rows], size=(2.0, 2.0))
        out = program.module()(x[:rows], mask=mask[:rows], **part)
        torch.testing.assert_close(out, module(x[:rows], mask=mask[:rows], **part), rtol=1e-4, atol=1e-5)
