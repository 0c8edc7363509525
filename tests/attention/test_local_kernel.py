"""The fused kernel against the plain modules: values, gradients, statistics, layouts, strips."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from vlplatform.attention import build, kernels
from vlplatform.attention.kernels import fold, fused, layer
from vlplatform.attention.local import LocalAttention

CASES = [
    ("local_content", {}),
    ("local_geometric", {}),
    ("local_bilateral", {"kernel": 5, "scale": "sqrt"}),
    ("local_bilateral_ir", {"iterations": 1}),
    ("local_bilateral_ir", {"scale": "sqrt"}),
    ("local_bilateral_ir", {"shared": False, "geometric": False}),
]


@pytest.fixture
def small_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips of 16 pixels, so that small maps have several and windows reach across them."""
    monkeypatch.setattr(layer, "Window", lambda *args: dataclasses.replace(fused.Window(*args), strip_bytes=1))
    monkeypatch.setattr(fold, "_STRIP", 16)


def made(name: str, **settings: object) -> LocalAttention:
    torch.manual_seed(0)
    operator = build(name, dim=5, socket="local", out_dim=8, heads=2, **settings).double()
    for parameter in operator.parameters():
        torch.nn.init.normal_(parameter)
    assert isinstance(operator, LocalAttention)
    return operator


def run(operator: LocalAttention, x: torch.Tensor, path: str) -> list[torch.Tensor]:
    """Output, gradients of input and parameters, state afterwards."""
    operator = copy.deepcopy(operator)
    x = x.detach().requires_grad_()
    with kernels.using(path):
        assert (kernels.fused_wanted(x) and layer.fits(operator, x)) == (path == "fused")
        out = operator(x)
    out.backward(torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view(out.shape))
    assert all(p.grad is not None for p in operator.parameters())
    return [out, x.grad, *(p.grad for p in operator.parameters()), *(b.double() for b in operator.buffers())]


@pytest.mark.usefixtures("small_strips")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_the_kernel_is_the_modules(name: str, settings: dict, form: torch.memory_format, training: bool):
    operator = made(name, **settings).train(training)
    x = torch.randn(2, 5, 6, 13, dtype=torch.float64).contiguous(memory_format=form)
    for got, want in zip(run(operator, x, "fused"), run(operator, x, "plain"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    assert operator(x).is_contiguous(memory_format=form)


@pytest.mark.usefixtures("small_strips")
@pytest.mark.parametrize("size", [(1, 5, 1, 40), (1, 5, 40, 1), (3, 5, 1, 1), (2, 5, 2, 3), (1, 5, 9, 64)])
def test_any_size(size: tuple[int, ...]):
    operator = made("local_bilateral", kernel=5)
    x = torch.randn(size, dtype=torch.float64)
    for got, want in zip(run(operator, x, "fused"), run(operator, x, "plain"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("view", [lambda x: x[:, 1:6, ::2, 3:], lambda x: x[:, :5].transpose(2, 3).contiguous().mT])
def test_views_of_any_strides(view):
    operator = made("local_bilateral")
    x = view(torch.randn(2, 7, 8, 9, dtype=torch.float64))
    for got, want in zip(run(operator, x, "fused"), run(operator, x.contiguous(), "plain"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("small_strips")
@pytest.mark.parametrize(
    ("shared", "content", "geometric", "iterations"),
    [(False, True, True, 1), (False, False, True, 1), (True, True, True, 3), (False, True, False, 2)],
)
def test_the_written_backward_pass(shared: bool, content: bool, geometric: bool, iterations: int):
    torch.manual_seed(0)
    settings = fused.Window(3, 2, shared, content, geometric, 0.7, iterations, strip_bytes=1)
    rows = (4 if shared or not content else 12) + (18 if geometric else 0)
    shapes = [(2, 3, 3, 7), (rows, 3), (rows,), (3, 4), (3,)]
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lambda x, *t: fused.local_attention(x, t[:2], t[2:], settings), tensors)
    assert torch.autograd.gradcheck(fold.moments, tensors[0])


def test_backward_twice_gives_the_same():
    operator = made("local_bilateral")
    out = operator(torch.randn(1, 5, 6, 7, dtype=torch.float64)).sum()
    out.backward(retain_graph=True)
    first = [p.grad.clone() for p in operator.parameters()]
    out.backward()
    for once, parameter in zip(first, operator.parameters()):
        torch.testing.assert_close(parameter.grad, 2 * once, rtol=1e-12, atol=1e-12)


def test_a_frozen_input_and_frozen_norms():
    operator = made("local_bilateral").train()
    operator.projections["key"].norm.eval()
    x = torch.randn(2, 5, 6, 7, dtype=torch.float64)
    for got, want in zip(run(operator, x, "fused"), run(operator, x, "plain"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    operator(x).sum().backward()
    assert x.grad is None


def test_norms_of_every_kind():
    operator = made("local_bilateral")
    operator.projections["query"].norm = torch.nn.BatchNorm2d(8, momentum=None).double()
    operator.projections["key"].norm = torch.nn.BatchNorm2d(8, track_running_stats=False).double().eval()
    operator.projections["value"].norm = torch.nn.BatchNorm2d(8, affine=False).double()
    x = torch.randn(2, 5, 6, 7, dtype=torch.float64) + 3
    for got, want in zip(run(operator, x, "fused"), run(operator, x, "plain"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    synchronised = torch.nn.SyncBatchNorm.convert_sync_batchnorm(operator)
    assert not layer.fits(synchronised, x)


def test_hooks_on_the_modules_are_run():
    operator = made("local_bilateral")
    seen: list[str] = []
    operator.projections["value"].conv.register_forward_hook(lambda *_: seen.append("value"))
    operator(torch.randn(1, 5, 3, 3, dtype=torch.float64))
    assert seen == ["value"]


def test_single_precision_with_a_large_mean():
    operator = made("local_bilateral")
    x = torch.randn(1, 5, 20, 20, dtype=torch.float64) + 30
    want = operator(x)
    torch.testing.assert_close(operator.float()(x.float()).double(), want, rtol=2e-3, atol=2e-3)


def test_one_pixel_in_training_is_the_norms_own_complaint():
    with pytest.raises(ValueError, match="more than 1 value"):
        made("local_bilateral")(torch.randn(1, 5, 1, 1, dtype=torch.float64))
