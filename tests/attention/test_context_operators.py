"""How every context operator behaves: sizes, gradients, precision, compilation, cost."""

from __future__ import annotations

import io

import pytest
import torch
from context_cases import BILATERAL, CRISS_CROSS, NAMES, feature_map, operator
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from vlplatform.attention import build, resolve
from vlplatform.errors import UserError

every = pytest.mark.parametrize("name", NAMES)
MODES = ("embedded_gaussian", "gaussian", "dot_product", "concatenation")


@every
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (6, 1), (4, 5), (9, 8)])
def test_any_size_keeps_its_shape_and_a_map_alone_is_as_in_a_batch(name, size):
    module, x = operator(name), feature_map(3, 8, *size)
    out = module(x)
    assert out.shape == x.shape
    torch.testing.assert_close(module(x[1:2]), out[1:2])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 4)])
def test_sub_sampled_maps_of_any_size(mode, size):
    x = feature_map(2, 8, *size)
    assert operator("nonlocal", mode=mode, sub_sample=True, heads=2)(x).shape == x.shape


@every
def test_fresh_operator_is_the_identity(name):
    x = feature_map(2, 16, 5, 6, dtype=torch.float32)
    assert torch.equal(build(name, dim=16, socket="context")(x), x)


def check_gradients(module, x):
    names, values = zip(*module.named_parameters())

    def apply(x, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters)), x)

    assert torch.autograd.gradcheck(apply, (x.requires_grad_(), *values), fast_mode=True)


@every
def test_gradients(name):
    settings = {"window": 3} if name in BILATERAL else {}
    check_gradients(operator(name, dim=4, reduction=2, heads=2, **settings), feature_map(1, 4, 3, 4))


@pytest.mark.parametrize("name", BILATERAL)
@pytest.mark.parametrize("padding", ["inf", "zero", "min", "learned"])
@pytest.mark.parametrize("smoothing", ["sqrt", "zscore"])
def test_gradients_of_padding_and_smoothing(name, padding, smoothing):
    settings = {"window": 3, "padding": padding, "smoothing": smoothing}
    check_gradients(operator(name, dim=4, reduction=2, **settings), feature_map(1, 4, 2, 4))


@pytest.mark.parametrize("mode", MODES[1:])
def test_gradients_of_modes(mode):
    check_gradients(operator("nonlocal", dim=4, mode=mode, sub_sample=True), feature_map(1, 4, 4, 5))


@every
def test_state_dict_round_trip(name):
    module, other, x = operator(name, seed=1), operator(name, seed=2), feature_map(1, 8, 4, 5)
    assert not torch.allclose(module(x), other(x))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(module(x), other(x))


@every
def test_autocast_is_near_full_precision(name):
    module, x = operator(name, dim=16, dtype=torch.float32), feature_map(1, 16, 9, 7, dtype=torch.float32)
    for parameter in module.parameters():
        parameter.data *= 0.3
    exact = module(x) - x
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x)
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    assert (out - x - exact).norm() < 0.05 * exact.norm()


@every
def test_compiles_to_one_graph(name):
    torch._dynamo.reset()
    module, x = operator(name, heads=2, reduction=2), feature_map(1, 8, 5, 6)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))


@every
def test_exports_for_any_size(name):
    module, x = operator(name, heads=2, reduction=2).eval(), feature_map(2, 8, 5, 6)
    height, width = torch.export.Dim("height", min=2), torch.export.Dim("width", min=2)
    program = torch.export.export(module, (x,), dynamic_shapes=({2: height, 3: width},), strict=False)
    for size in ((5, 6), (40, 3), (4, 41)):
        x = feature_map(2, 8, *size)
        torch.testing.assert_close(program.module()(x), module(x))


@pytest.mark.parametrize(
    ("name", "settings"),
    [(name, {"heads": 2}) for name in NAMES]
    + [(name, {"padding": "inf", "window": 7, "smoothing": "sqrt"}) for name in BILATERAL]
    + [("nonlocal", {"mode": mode, "sub_sample": True, "heads": 2}) for mode in MODES],
)
def test_macs_are_those_that_torch_counts(name, settings):
    module, x = operator(name, dim=32, **settings), feature_map(1, 32, 6, 9)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(x)
    assert 2 * module.macs(6, 9) == counter.get_total_flops()


class Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize("name", CRISS_CROSS)
def test_criss_cross_makes_nothing_larger_than_its_cross(name):
    height, width, window = 48, 40, 31
    module, x = operator(name, dim=16, reduction=2), feature_map(1, 16, height, width)
    with Largest() as largest:
        module(x).sum().backward()
    assert largest.elements <= height * width * (height + width + window)


@every
@pytest.mark.parametrize("pixel", [(0, 0), (3, 4), (4, 6)])
def test_attention_maps_are_probabilities(name, pixel):
    module, x = operator(name, heads=2, reduction=2), feature_map(3, 8, 5, 7)
    maps = module.attention_maps(x, *pixel)
    assert maps["content"].shape == (3, 2, 5, 7)
    plain = name in ("nonlocal", "crisscross")
    assert list(maps) == (["content"] if plain else ["content", "position", "bilateral"])
    for weights in maps.values():
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum((2, 3)), torch.ones(3, 2, dtype=x.dtype))
        if name in CRISS_CROSS:
            off = torch.ones(5, 7, dtype=torch.bool)
            off[pixel[0]], off[:, pixel[1]] = False, False
            assert (weights[:, :, off] == 0).all()


@every
def test_attention_maps_reproduce_the_output(name):
    """The last map (all logits together) mixes the values into what the operator adds to the pixel."""
    settings = {"recurrence": 1} if name in CRISS_CROSS else {}
    module, x = operator(name, heads=2, reduction=2, **settings), feature_map(2, 8, 5, 7)
    row, col = 3, 2
    weights = list(module.attention_maps(x, row, col).values())[-1]
    with torch.no_grad():
        values = module.value_conv(x) if name in CRISS_CROSS else module.g(x)
        mixed = torch.einsum("bnyx,bncyx->bnc", weights, values.unflatten(1, (2, -1))).flatten(1)
        project = module.gamma.mul if name in CRISS_CROSS else module.conv_out
        expected = project(mixed[..., None, None])[..., 0, 0]
        torch.testing.assert_close((module(x) - x)[..., row, col], expected)


@pytest.mark.parametrize("size", [(5, 7), (1, 6), (4, 4)])
@pytest.mark.parametrize("mode", MODES)
def test_attention_maps_of_modes(mode, size):
    module, x = operator("nonlocal", heads=2, mode=mode, sub_sample=True), feature_map(1, 8, *size)
    weights = module.attention_maps(x, 0, 3)["content"]
    assert weights.shape == (1, 2, *size)
    if "gaussian" in mode:
        torch.testing.assert_close(weights.sum((2, 3)), torch.ones(1, 2, dtype=x.dtype))


def test_attention_maps_outside_the_map():
    for name in NAMES:
        with pytest.raises(IndexError):
            operator(name).attention_maps(feature_map(1, 8, 3, 3), 0, 3)


@every
def test_settings_have_types_and_defaults(name):
    described = resolve(name, "context").settings()
    assert all("type" in entry and "default" in entry for entry in described.values())
    defaults = {key: entry["default"] for key, entry in described.items()}
    assert build(name, dim=16, socket="context", **defaults)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("nonlocal", {"heads": 3}, "heads=3"),
        ("nonlocal", {"mode": "gauss"}, "attn.mode=gauss"),
        ("nonlocal", {"reduction": 0}, "reduction=0"),
        ("crisscross", {"heads": 3}, "heads=3"),
        ("crisscross", {"recurrence": 0}, "recurrence=0"),
        ("crisscross", {"window": 31}, "attn.window"),
        ("bilateral_cc", {"window": 4}, "window=4"),
        ("bilateral_cc", {"window": -1}, "window=-1"),
        ("bilateral_nl", {"window": 30}, "window=30"),
        ("bilateral_nl", {"padding": "infinite"}, "attn.padding=infinite"),
        ("bilateral", {"smoothing": "z-score"}, "attn.smoothing=z-score"),
        ("crisscross_rpe", {"max_offset": 0}, "max_offset=0"),
    ],
)
def test_bad_settings_are_named(name, settings, words):
    with pytest.raises(UserError, match=words):
        build(name, dim=16, socket="context", **settings)


def test_classes_refuse_unknown_words_themselves():
    for name, settings in (
        ("nonlocal", {"mode": "gauss"}),
        ("bilateral_cc", {"padding": "infinite"}),
        ("bilateral_nl", {"smoothing": "none"}),
    ):
        with pytest.raises(ValueError, match=next(iter(settings.values()))):
            resolve(name, "context").build(8, **settings)
