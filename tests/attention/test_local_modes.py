"""Local operators under autocast, compile and export, in half memory, and through their state."""

from __future__ import annotations

import pytest
import torch

from vlplatform.attention import build

NAMES = ["local_content", "local_geometric", "local_bilateral", "local_bilateral_ir"]


def made(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return build(name, dim=8, socket="local", heads=2)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_is_finite_and_close(name: str):
    operator, x = made(name), torch.randn(2, 8, 6, 5)
    want = operator(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = operator(x)
    got.float().sum().backward()
    assert got.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in operator.parameters())
    assert (got - want).abs().mean() < 0.05 * want.abs().mean()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_compiled_in_one_graph(name: str, training: bool):
    operator, x = made(name).train(training), torch.randn(2, 8, 5, 4)
    compiled = torch.compile(operator, backend="aot_eager", fullgraph=True)
    want = operator(x)
    want.square().sum().backward()
    gradients = [p.grad.clone() for p in operator.parameters()]
    operator.zero_grad()
    got = compiled(x)
    got.square().sum().backward()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    for parameter, gradient in zip(operator.parameters(), gradients):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_exported_for_any_height(name: str):
    operator, x = made(name).eval(), torch.randn(2, 8, 5, 4)
    height = torch.export.Dim("height", min=2, max=64)
    program = torch.export.export(operator, (x,), dynamic_shapes=({2: height},))
    other = torch.randn(2, 8, 9, 4)
    torch.testing.assert_close(program.module()(other), operator(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_state_round_trip(name: str):
    first, x = made(name), torch.randn(2, 8, 5, 4)
    first(x)
    second = build(name, dim=8, socket="local", heads=2)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second.eval()(x), first.eval()(x), rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_cuda_agrees_with_the_cpu(name: str):
    operator, x = made(name).double(), torch.randn(2, 8, 9, 7, dtype=torch.float64)
    want = operator(x)
    torch.testing.assert_close(operator.cuda()(x.cuda()).cpu(), want, rtol=1e-9, atol=1e-9)
