"""The local operators against a pixel loop written from the equations: both paths, their gradients and statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from context_cases import feature_map
from hypothesis import given, settings
from hypothesis import strategies as st
from local_cases import PATHS, operator, taking
from reference import local_attention as slow

seeds = st.integers(0, 2**16)
kernel_sizes = st.sampled_from([1, 3, 5])
thorough = settings(max_examples=100, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Case:
    """One input and one module."""

    batch: int
    height: int
    width: int
    seed: int
    training: bool
    channels_last: bool
    strip_bytes: int
    dim: int
    out_dim: int
    settings: slow.Settings

    def input(self) -> torch.Tensor:
        x = feature_map(self.batch, self.dim, self.height, self.width, seed=self.seed)
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last else x


@st.composite
def cases(draw, name):
    heads, content = draw(st.integers(1, 4)), name != "local_geometric"
    refined = name == "local_bilateral_ir"
    size = st.integers(1, 7)
    batch, height, width = draw(st.integers(1, 3)), draw(size), draw(size)
    return Case(
        batch=batch,
        height=height,
        width=width,
        seed=draw(seeds),
        training=draw(st.booleans()) and batch * height * width > 1,
        channels_last=draw(st.booleans()),
        strip_bytes=draw(st.sampled_from([1, 512 * 1024])),  # strips of 16 pixels, or one strip
        dim=draw(st.integers(1, 5)),
        out_dim=heads * draw(st.integers(1, 3)),
        settings=slow.Settings(
            heads=heads,
            kernel=draw(kernel_sizes),
            content=content,
            geometric=name in ("local_geometric", "local_bilateral") or (refined and draw(st.booleans())),
            border=draw(st.sampled_from(["mask", "mask", "zero"])),
            scale=draw(st.sampled_from(["none", "sqrt"])) if content else "none",
            shared=refined and draw(st.booleans()),
            iterations=draw(st.integers(1, 4)) if refined else 1,
        ),
    )


def build(name, case):
    wanted = vars(case.settings)
    given = {"out_dim", "heads", "kernel", "border"} | ({"scale"} if case.settings.content else set())
    given |= {"iterations", "shared", "geometric"} if name == "local_bilateral_ir" else set()
    options = {key: value for key, value in {**wanted, "out_dim": case.out_dim}.items() if key in given}
    return operator(name, dim=case.dim, seed=case.seed, **options).train(case.training)


def close(own, expected, what, scale=1.0):
    """Equal to 1e-10 of the largest entry, of ``scale``, or of 1."""
    own, expected = own.detach(), torch.as_tensor(expected)
    bound = 1e-10 * max(1.0, scale, float(expected.abs().max()))
    torch.testing.assert_close(own, expected, rtol=0, atol=bound, msg=lambda text: f"{what}: {text}")


def check(name, case):
    """Each path against the loop (output, running statistics), and the paths' gradients against each other."""
    state = {key: value.numpy().copy() for key, value in build(name, case).state_dict().items()}
    expected, maps = slow.attend(case.input().numpy(), state, case.settings, case.training)
    gradients = []
    for path in PATHS:
        module, x = build(name, case), case.input().requires_grad_()
        with taking(path, case.strip_bytes) as fused_runs:
            out = module(x)
        enough = case.batch * case.height * case.width > 1
        assert bool(fused_runs) == (path == "fused" and case.settings.border == "mask" and enough)
        close(out, expected, f"{path} output")
        for key, value in module.state_dict().items():
            close(value, state[key], f"{path} {key}")
        cotangent = feature_map(*out.shape, seed=case.seed + 1)
        names, tensors = zip(("input", x), *module.named_parameters())
        gradients.append(dict(zip(names, torch.autograd.grad(out, tensors, cotangent, allow_unused=True))))
    fused, plain = gradients
    largest = max(float(g.abs().max()) for g in plain.values() if g is not None)
    for key, expected in plain.items():
        assert (expected is None) == (fused[key] is None), key
        if expected is not None:
            close(fused[key], expected, f"gradient of {key}", largest)
    if not case.training:
        row, col = case.seed % case.height, case.seed % case.width
        shown = module.attention_maps(x, row, col)
        assert list(shown) == list(maps)
        for key, weights in shown.items():
            close(weights, maps[key][:, :, row, col], f"map {key}")


@thorough
@given(cases("local_content"))
def test_content(case):
    check("local_content", case)


@thorough
@given(cases("local_geometric"))
def test_geometric(case):
    check("local_geometric", case)


@thorough
@given(cases("local_bilateral"))
def test_bilateral(case):
    check("local_bilateral", case)


@thorough
@given(cases("local_bilateral_ir"))
def test_refined(case):
    check("local_bilateral_ir", case)


@thorough
@given(st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7)), kernel_sizes, seeds)
def test_convolution(size, kernel, seed):
    module, x = (
        operator("conv", dim=3, seed=seed, out_dim=4, kernel=kernel),
        feature_map(size[0], 3, *size[1:]),
    )
    weight, bias = module.conv.weight.detach().numpy(), module.conv.bias.detach().numpy()
    close(module(x), slow.convolve(x.numpy(), weight, bias), "output")


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": 5},
        {"heads": 1},
        {"border": "zero"},
        {"scale": "sqrt"},
        {"iterations": 2},
        {"shared": False},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_comparison_can_fail(change):
    """A loop with one other setting is seen."""
    own = slow.Settings(heads=2, kernel=3, content=True, geometric=False, shared=True, iterations=3)
    module = build("local_bilateral_ir", Case(1, 4, 5, 0, False, False, 1, 4, 4, own))
    state = {key: value.numpy() for key, value in module.state_dict().items()}
    for name in ("query", "key", "value"):  # of a module that does not share: the value's bias is another
        for key in [key for key in state if key.startswith("projections.projection.")]:
            other = state[key] + (name == "value" and key.endswith("conv.bias"))
            state[key.replace(".projection.", f".{name}.")] = other
    x = feature_map(1, 4, 4, 5)
    close(module(x), slow.attend(x.numpy(), state, own, False)[0], "output")
    with pytest.raises(AssertionError):
        close(module(x), slow.attend(x.numpy(), state, replace(own, **change), False)[0], "output")
