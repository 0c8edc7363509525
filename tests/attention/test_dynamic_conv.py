"""Dynamic and lightweight convolution: against loops, against public code, and how they behave."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import dynamic_conv as slow
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vlplatform.attention import build, catalogue
from vlplatform.attention.cache import Cache
from vlplatform.attention.dynamic_conv import dynamic_convolution, inside, lightweight_convolution
from vlplatform.attention.score_term import forbidden
from vlplatform.errors import UserError

NAMES = ("dynamic_conv", "light_conv")
every = pytest.mark.parametrize("name", NAMES)
either = pytest.mark.parametrize("causal", [False, True], ids=["centred", "causal"])


def make(name: str, dim: int = 8, seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> nn.Module:
    """The mechanism with every parameter drawn anew."""
    module = build(name, dim=dim, socket="token", **({"heads": 2, "kernel": 5} | options)).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.6)
    return module


def tokens(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def some_real(batch: int, length: int, seed: int) -> Tensor:
    """Padding anywhere, and a first sequence of padding alone now and then."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, length, generator=generator) < torch.rand((), generator=generator)


def renormalised(logits: Tensor, queries: int, causal: bool) -> Tensor:
    within = inside(torch.ones(1, queries, dtype=torch.bool), queries, logits.shape[-1], causal=causal)
    return logits.masked_fill(~within[:, :, None], forbidden(logits.dtype)).softmax(-1)


# against loops


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    st.sampled_from(NAMES),
    st.tuples(st.integers(1, 4), st.integers(1, 40)),
    st.sampled_from([(4, 1), (4, 2), (6, 3), (4, 4), (1, 1)]),
    st.sampled_from([1, 2, 3, 4, 7, 15, 31, 63]),
    st.tuples(*[st.booleans()] * 4),
    st.integers(0, 2**16),
)
def test_against_loops(name, size, width, kernel, flags, seed):
    glu, causal, renormalise, padded = flags
    dim, heads = width
    options = {"heads": heads, "kernel": kernel, "glu": glu, "renormalise": renormalise}
    module, x = make(name, dim, seed, **options), tokens(*size, dim, seed=seed)
    mask = some_real(*size, seed) if padded else None
    state = {key: value.numpy() for key, value in module.state_dict().items()}
    expected = slow.convolution(x.numpy(), state, None if mask is None else mask.numpy(), causal=causal, **options)
    with torch.no_grad():
        out = module(x, mask=mask, causal=causal)
    torch.testing.assert_close(out, torch.from_numpy(expected), rtol=1e-10, atol=1e-10)


def test_the_comparison_can_fail():
    module, x = make("dynamic_conv"), tokens(2, 9, 8)
    state = {key: value.numpy() for key, value in module.state_dict().items()}
    wrong = torch.from_numpy(slow.convolution(x.numpy(), state, heads=2, kernel=5, causal=True))
    assert not torch.allclose(module(x), wrong, rtol=1e-3)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 300), st.integers(0, 40), st.sampled_from([1, 2, 5, 31, 70]), st.booleans())
def test_bands_are_shifted_products(queries, earlier, kernel, causal):
    x, weights = tokens(2, earlier + queries, 6), tokens(2, queries, 3, kernel, seed=2)
    left = kernel - 1 if causal else (kernel - 1) // 2
    padded = torch.nn.functional.pad(x, (0, 0, kernel, kernel)).unflatten(2, (3, 2))
    start = kernel + earlier - left
    expected = sum(weights[..., k, None] * padded[:, start + k : start + k + queries] for k in range(kernel))
    torch.testing.assert_close(dynamic_convolution(x, weights, causal=causal), expected.flatten(2))
    same = weights[:1, :1].expand(2, queries, 3, kernel)
    light = lightweight_convolution(x, weights[0, 0], queries, causal=causal)
    torch.testing.assert_close(light, dynamic_convolution(x, same, causal=causal))


# against fairseq


def exactly(actual: Tensor, expected: Tensor) -> None:
    """Compares (B, N, D) with fairseq's (N, B, D)."""
    torch.testing.assert_close(actual.transpose(0, 1), expected, rtol=1e-10, atol=1e-10)


@pytest.fixture
def golden(shared: Path) -> dict[str, Tensor]:
    return load_file(shared / "reference/golden/fairseq_dynamic_conv.safetensors")


@pytest.mark.shared
@pytest.mark.parametrize("kernel", [3, 5, 15])
@either
def test_dynamic_convolution_of_fairseq(golden, kernel, causal):
    case = f"{'dec' if causal else 'enc'}_K{kernel}"
    x, query = golden["x"].transpose(0, 1), golden["query"].transpose(0, 1)
    logits = (x @ golden[f"{case}.w"].T).unflatten(-1, (4, kernel))
    out = dynamic_convolution(x, logits.softmax(-1), causal=causal)
    exactly(out, golden[f"{case}.out"])
    if not (causal and kernel > x.shape[1]):  # there its window path soft-maxes the kept taps alone
        exactly(out, golden[f"{case}.out_unfold"])
    of_query = (query @ golden[f"{case}.w"].T).unflatten(-1, (4, kernel))
    exactly(dynamic_convolution(x, of_query.softmax(-1), causal=causal), golden[f"{case}.out_query"])
    if causal:
        exactly(out, golden[f"{case}.out_incremental"])
        weights = renormalised(logits, x.shape[1], causal)
        exactly(dynamic_convolution(x, weights, causal=causal), golden[f"{case}.out_renorm"])


@pytest.mark.shared
@pytest.mark.parametrize("kernel", [3, 5, 15])
def test_the_module_decodes_as_fairseq(golden, kernel):
    """With identity maps the module is the bare convolution."""
    x, outputs = golden["x"].transpose(0, 1), {}
    for renormalise in (False, True):
        options = {"heads": 4, "kernel": kernel, "glu": False, "renormalise": renormalise}
        module = build("dynamic_conv", dim=32, socket="token", **options).double()
        state = {f"{m}.weight": torch.eye(32, dtype=torch.float64) for m in ("input", "output")}
        state |= {f"{m}.bias": torch.zeros(32, dtype=torch.float64) for m in ("input", "output")}
        module.load_state_dict(state | {"filter.weight": golden[f"dec_K{kernel}.w"]})
        cache = Cache()
        steps = [module(x[:, i : i + 1], causal=True, cache=cache) for i in range(x.shape[1])]
        outputs[renormalise] = torch.cat(steps, 1)
    exactly(outputs[False], golden[f"dec_K{kernel}.out_incremental"])
    exactly(outputs[True], golden[f"dec_K{kernel}.out_renorm"])


@pytest.mark.shared
@either
def test_lightweight_convolution_of_fairseq(golden, causal):
    case = f"light_{'dec' if causal else 'enc'}_K5"
    weights = golden[f"{case}.w"][:, 0].softmax(-1, dtype=torch.float32).double()  # as in its code
    exactly(lightweight_convolution(golden["x"].transpose(0, 1), weights, causal=causal), golden[f"{case}.out"])


# limiting cases


@every
@either
def test_a_kernel_of_one_is_the_maps_alone(name, causal):
    module, x = make(name, kernel=1), tokens(2, 7, 8)
    expected = module.output(torch.nn.functional.glu(module.input(x), -1))
    torch.testing.assert_close(module(x, causal=causal), expected)


@either
def test_equal_logits_renormalised_are_the_mean_of_the_window(causal):
    module, x = make("dynamic_conv", kernel=5, glu=False, renormalise=True), tokens(1, 6, 8)
    module.filter.weight.data.zero_()
    inputs = module.input(x)
    windows = [(max(0, i - 4), i + 1) if causal else (max(0, i - 2), i + 3) for i in range(6)]
    means = torch.stack([inputs[:, a:b].mean(1) for a, b in windows], 1)
    torch.testing.assert_close(module(x, causal=causal), module.output(means))


@every
def test_renormalising_changes_only_positions_near_the_ends(name):
    module, x = make(name), tokens(2, 12, 8)
    plain = module(x)
    module.renormalise = True
    torch.testing.assert_close(module(x)[:, 2:-2], plain[:, 2:-2])
    assert not torch.allclose(module(x)[:, :2], plain[:, :2])


# padding, causality, steps


@every
@either
@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("length", [11, 150])
def test_padding_never_matters(name, causal, renormalise, length):
    module, x = make(name, renormalise=renormalise), tokens(3, length, 8)
    mask = some_real(3, length, seed=4)
    out = module(x, mask=mask, causal=causal)
    for filling in (1e30, float("nan"), float("inf")):
        torch.testing.assert_close(
            module(x.masked_fill(~mask[..., None], filling), mask=mask, causal=causal), out, rtol=0, atol=0
        )
    assert (out[~mask] == 0).all()
    soiled = x.masked_fill(~mask[..., None], float("nan")).requires_grad_()
    module(soiled, mask=mask, causal=causal).sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())
    assert (soiled.grad[~mask] == 0).all()


@every
@either
@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize(("length", "real"), [(14, 9), (200, 131), (200, 90)])
def test_padding_at_the_end_is_as_if_cut_off(name, causal, renormalise, length, real):
    module, x = make(name, renormalise=renormalise), tokens(2, length, 8)
    mask = (torch.arange(length) < real).expand(2, length)
    cut = module(x[:, :real], causal=causal)
    torch.testing.assert_close(module(x, mask=mask, causal=causal)[:, :real], cut, rtol=1e-12, atol=1e-12)


@every
@either
@pytest.mark.parametrize("renormalise", [False, True])
def test_fully_padded_sequences_give_zeros(name, causal, renormalise):
    module, x = make(name, renormalise=renormalise), tokens(2, 6, 8)
    mask = torch.tensor([[True] * 6, [False] * 6])
    out = module(x, mask=mask, causal=causal)
    assert (out[1] == 0).all()
    torch.testing.assert_close(out[:1], module(x[:1], causal=causal), rtol=1e-12, atol=1e-12)


@every
@pytest.mark.parametrize("length", [12, 140])
def test_causal_outputs_know_nothing_of_later_tokens(name, length):
    module, x = make(name, kernel=7), tokens(2, length, 8)
    out = module(x, causal=True)
    changed = x.clone()
    changed[:, length // 2 :] = 1e6
    assert torch.equal(module(changed, causal=True)[:, : length // 2], out[:, : length // 2])
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(module(x, causal=True)[:, length // 2].sum(), x)
    reached = gradient.abs().sum((0, 2)) > 0
    assert reached.nonzero().flatten().tolist() == list(range(length // 2 - 6, length // 2 + 1))


@every
@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("kernel", [1, 2, 5, 31])
@pytest.mark.parametrize("steps", [[1] * 9, [4, 1, 3, 1], [9]])
def test_steps_equal_the_whole(name, renormalise, kernel, steps):
    module, x = make(name, kernel=kernel, renormalise=renormalise), tokens(3, 9, 8)
    mask = some_real(3, 9, seed=7)
    for real in (None, mask):
        whole, cache, at, out = module(x, causal=True, mask=real), Cache(), 0, []
        for step in steps:
            known = None if real is None else real[:, : at + step]
            out.append(module(x[:, at : at + step], causal=True, mask=known, cache=cache))
            at += step
            assert cache.length == at
        assert cache.tensors["places"].shape[1] <= kernel - 1
        torch.testing.assert_close(torch.cat(out, 1), whole, rtol=1e-12, atol=1e-12)


@every
def test_steps_equal_the_whole_in_single_precision(name):
    torch.manual_seed(0)
    module, x = build(name, dim=32, socket="token", kernel=31), tokens(2, 40, 32, dtype=torch.float32)
    cache = Cache()
    steps = [module(x[:, i : i + 1], causal=True, cache=cache) for i in range(40)]
    whole = module(x, causal=True)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=1e-6)


@every
def test_a_beam_reorders_what_is_kept(name):
    module, x = make(name), tokens(3, 6, 8)
    cache, order = Cache(), torch.tensor([2, 0, 0])
    module(x[:, :4], causal=True, cache=cache)
    cache.reorder(order)
    step = module(x[order, 4:5], causal=True, cache=cache)
    torch.testing.assert_close(step, module(x[order, :5], causal=True)[:, 4:])


# gradients, precision, compilation, cost


@every
@either
@pytest.mark.parametrize("length", [4, 131])
def test_gradients(name, causal, length):
    module, x = make(name, dim=4, kernel=3, renormalise=True), tokens(1, length, 4)
    names, values = zip(*module.named_parameters())
    mask = torch.arange(length)[None] != 1

    def apply(x, *parameters):
        arguments = {"mask": mask, "causal": causal}
        return torch.func.functional_call(module, dict(zip(names, parameters)), (x,), arguments)

    assert torch.autograd.gradcheck(apply, (x.requires_grad_(), *values), fast_mode=True)


@every
def test_weight_dropout_drops_taps_without_renormalising(name):
    module, x = make(name, glu=False, dropout=0.5, kernel=3), tokens(1, 2000, 8)
    assert torch.equal(module.eval()(x), module(x))
    expected = module(x)
    module.train()
    torch.manual_seed(0)
    runs = torch.stack([module(x) for _ in range(30)])
    assert not torch.equal(runs[0], runs[1])
    assert (runs.mean(0) - expected).abs().mean() < 0.2 * (runs[0] - expected).abs().mean()


@every
def test_weight_dropout_differs_between_positions(name):
    module, x = make(name, glu=False, dropout=0.5, kernel=1), tokens(3, 40, 8)
    for part in (module.input, module.output):
        part.load_state_dict({"weight": torch.eye(8), "bias": torch.zeros(8)})
    kept = (module(x) / x).unflatten(-1, (2, 4))
    assert ((kept == 0) | (kept - 2 < 1e-12)).all()
    assert (kept == kept[..., :1]).all(), "a head's channels share their taps"
    assert not any((kept == kept.roll(1, axis)).all() for axis in (0, 1, 2))


@every
def test_state_dict_round_trip(name):
    module, other, x = make(name, seed=1), make(name, seed=2), tokens(1, 7, 8)
    assert not torch.allclose(module(x), other(x))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(module(x), other(x))


@every
@pytest.mark.parametrize("renormalise", [False, True])
def test_autocast_is_near_full_precision(name, renormalise):
    module = make(name, dim=16, renormalise=renormalise, dtype=torch.float32)
    x, mask = tokens(2, 9, 16, dtype=torch.float32), torch.tensor([[True] * 9, [True] * 4 + [False] * 5])
    exact = module(x, mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x, mask=mask)
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    assert (out - exact).norm() < 0.05 * exact.norm()


@every
@either
def test_compiles_to_one_graph(name, causal):
    torch._dynamo.reset()
    module, x = make(name, renormalise=True), tokens(2, 6, 8)
    mask = some_real(2, 6, seed=3)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask=mask, causal=causal), module(x, mask=mask, causal=causal))
    for size in (9, 200):  # from the second length on, lengths are symbols
        x, mask = tokens(2, size, 8), some_real(2, size, seed=3)
        torch.testing.assert_close(compiled(x, mask=mask, causal=causal), module(x, mask=mask, causal=causal))


@every
@pytest.mark.parametrize("renormalise", [False, True])
def test_exports_for_any_length(name, renormalise):
    module, x = make(name, renormalise=renormalise).eval(), tokens(2, 6, 8)
    mask, length = some_real(2, 6, seed=3), torch.export.Dim("length", min=2)
    shapes = {"query": {1: length}, "mask": {1: length}}
    program = torch.export.export(module, (x,), {"mask": mask}, dynamic_shapes=shapes, strict=False)
    for size in (6, 3, 33, 64, 150):
        x, mask = tokens(2, size, 8), some_real(2, size, seed=5)
        torch.testing.assert_close(program.module()(x, mask=mask), module(x, mask=mask))


class Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@every
def test_memory_grows_with_the_length_alone(name):
    length, dim, heads, kernel = 2048, 16, 4, 31
    module, x = make(name, dim, heads=heads, kernel=kernel), tokens(1, length, dim)
    with Largest() as largest:
        module(x).sum().backward()
    assert largest.elements <= (length + 64) * max(2 * dim, heads * (kernel + 32))


@every
def test_cost(name):
    module = make(name, dim=8, heads=2, kernel=5)
    filters = 8 * 2 * 5 if name == "dynamic_conv" else 0
    assert module.macs(10) == module.macs(10, 99) == 10 * (8 * 16 + filters + 8 * 5 + 8 * 8)


# what is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 3}, "dim=8 is not divisible by heads=3"),
        ({"heads": 0}, "heads=0"),
        ({"kernel": 0}, "kernel=0"),
        ({"dropout": 1.0}, r"dropout=1\.0"),
        ({"dropout": -0.1}, r"dropout=-0\.1"),
    ],
)
@every
def test_bad_settings_are_named(name, options, words):
    with pytest.raises(ValueError, match=words):
        catalogue()[name].build(8, **({"heads": 2} | options))
    with pytest.raises(UserError, match=f"attn={name}: .*{words}"):
        build(name, dim=8, socket="token", **({"heads": 2} | options))


@every
def test_bad_calls_are_named(name):
    module, x = make(name), tokens(2, 6, 8)
    for wrong, words in (
        ({"key": x}, r"key of shape \(2, 6, 8\) was given, but attn=.*self-attention"),
        ({"value": x}, r"value of shape \(2, 6, 8\) was given"),
        ({"query": x[..., :5]}, r"query has shape \(2, 6, 5\); expected \(batch, tokens, 8\)"),
        ({"query": x[0]}, r"query has shape \(6, 8\)"),
        ({"mask": torch.ones(2, 6)}, r"mask has shape \(2, 6\) and type torch.float32; .* booleans of shape \(2, 6\)"),
        ({"mask": torch.ones(2, 5, dtype=torch.bool)}, r"mask has shape \(2, 5\)"),
        ({"mask": torch.ones(2, 6, 6, dtype=torch.bool)}, r"mask has shape \(2, 6, 6\)"),
        ({"cache": Cache()}, "cache was given with causal=False"),
    ):
        with pytest.raises(UserError, match=words) as refusal:
            module(**({"query": x} | wrong))
        assert "\n" not in str(refusal.value)
