"""Packed weights: the same results, never those of weights that have changed."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vlplatform.attention import MultiHeadAttention
from vlplatform.decoding import packed
from vlplatform.interpret import capture

module = importlib.import_module("vlplatform.decoding.packed")
pytestmark = pytest.mark.skipif(not module._available(), reason="PyTorch without oneDNN")

Counted = list[tuple[int, ...]]


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The shapes of the weights that are packed from here on."""
    made: Counted = []
    plain = module._Fingerprint

    def told(weight: Tensor) -> Any:
        made.append(tuple(weight.shape))
        return plain(weight)

    monkeypatch.setattr(module, "_Fingerprint", told)
    return made


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "_SMALL", 1 << 14)  # so that the layers here are large
    yield
    module._KEPT.clear()


def linear(seed: int = 0, bias: bool = True) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(160, 120, bias=bias)


def layout(part: nn.Module) -> Tensor | None:
    kept = module._KEPT.get(part)
    return None if kept is None else kept.map.layout


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (3,), (250,), (2, 5), (2, 3, 4), (0,), ()])
def test_results_are_the_plain_ones(shape: tuple[int, ...], bias: bool) -> None:
    model, x = linear(bias=bias), torch.randn(*shape, 160)
    expected = model(x)
    with packed(model):
        found = [model(x) for _ in range(3)]
        if x.numel():
            assert layout(model) is not None
        wide = torch.randn(*shape, 320)[..., ::2]  # not contiguous
        close(model(wide), nn.functional.linear(wide, model.weight, model.bias))
    for each in found:
        assert each.shape == expected.shape
        close(each, expected)
    assert torch.equal(model(x), expected)  # outside, the very bits
    assert "forward" not in vars(model)


@torch.no_grad()
def test_weights_that_run_once_are_not_packed() -> None:
    model, x = linear(), torch.randn(3, 160)
    with packed(model):
        model(x)
        assert layout(model) is None
        model(x)
        assert layout(model) is not None


@torch.no_grad()
def test_a_second_block_takes_what_the_first_packed() -> None:
    model, x = linear(), torch.randn(3, 160)
    for _ in range(3):
        with packed(model):
            model(x), model(x)
            made = layout(model)
    with packed(model):
        model(x)
        assert layout(model) is made
    assert made is not None


def in_place(model: nn.Linear) -> None:
    with torch.no_grad():
        model.weight[3, 5] += 1


def by_data(model: nn.Linear) -> None:
    model.weight.data[7] *= 2


def by_exchanged_data(model: nn.Linear) -> None:
    model.weight.data = model.weight.data.flip(0).contiguous()


def by_swapped_rows(model: nn.Linear) -> None:  # the sum of all stays
    model.weight.data.copy_(model.weight.data.flip(0))


def by_state_dict(model: nn.Linear) -> None:
    model.load_state_dict(linear(1).state_dict())


def by_assigned_state_dict(model: nn.Linear) -> None:
    model.load_state_dict(linear(1).state_dict(), assign=True)


def by_parameter(model: nn.Linear) -> None:
    model.weight = nn.Parameter(torch.randn(120, 160))


def by_optimiser(model: nn.Linear) -> None:
    model.weight.grad = torch.ones_like(model.weight)
    torch.optim.SGD([model.weight], lr=0.1).step()
    model.weight.grad = None


def by_bias(model: nn.Linear) -> None:
    model.bias.data += 1


def by_new_bias(model: nn.Linear) -> None:
    model.bias = nn.Parameter(torch.randn(120))


def by_nan(model: nn.Linear) -> None:
    model.weight.data[0, 0] = torch.nan


CHANGES = (
    in_place,
    by_data,
    by_exchanged_data,
    by_swapped_rows,
    by_state_dict,
    by_assigned_state_dict,
    by_parameter,
    by_optimiser,
    by_bias,
    by_new_bias,
)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_noticed(change: Callable[[nn.Linear], None]) -> None:
    model, x = linear(), torch.randn(3, 160)
    with torch.no_grad(), packed(model):
        before = model(x), model(x)
    change(model)
    with torch.no_grad():
        expected = model(x)
        with packed(model):
            for _ in range(3):
                close(model(x), expected)
    assert (expected - before[1]).abs().max() > 1e-3


@torch.no_grad()
def test_weights_with_nan_are_no_stumbling_block() -> None:
    model, x = linear(), torch.randn(3, 160)
    for _ in range(2):
        with packed(model):
            model(x), model(x)
        by_nan(model)
    with packed(model):
        assert model(x)[:, 0].isnan().all()
        assert model(x)[:, 0].isnan().all()


@torch.no_grad()
def test_a_model_that_moves_is_noticed() -> None:
    """Another precision or device, also of weights that were not packed yet."""
    for calls in (1, 2):
        model, x = linear(), torch.randn(3, 160)
        with packed(model):
            for _ in range(calls):
                model(x)
        model.double()
        with packed(model):
            for _ in range(2):
                torch.testing.assert_close(model(x.double()), nn.Linear.forward(model, x.double()))
            assert layout(model) is None
        model.to("meta")
        with packed(model):
            assert [model(x.to("meta")).shape for _ in range(2)] == [(3, 120)] * 2
        if torch.cuda.is_available():
            other = linear()
            with packed(other):
                other(x)
            other.cuda()
            with packed(other):
                assert other(x.cuda()).is_cuda


@torch.no_grad()
def test_nested_blocks() -> None:
    model = nn.Sequential(linear(), nn.ReLU(), nn.Linear(120, 160))
    x = torch.randn(3, 160)
    expected = model(x)
    with packed(model):
        model(x), model(x)
        outer = vars(model[0])["forward"]
        with packed(model[0]), packed(model):
            close(model(x), expected)
            assert vars(model[0])["forward"] is outer
        assert vars(model[0])["forward"] is outer  # the inner block leaves it to the outer one
        close(model(x), expected)
    assert all("forward" not in vars(part) for part in model)


@torch.no_grad()
def test_a_part_is_packed_before_the_whole() -> None:
    model, x = nn.Sequential(linear(), nn.ReLU(), nn.Linear(120, 160)), torch.randn(3, 160)
    with packed(model[0]):
        with packed(model):
            model(x), model(x)
            assert layout(model[2]) is not None
        assert "forward" not in vars(model[2])
        assert "forward" in vars(model[0])


def test_exceptions_leave_all_as_it_was() -> None:
    model = linear()
    with pytest.raises(RuntimeError), packed(model):
        model(torch.randn(3, 7))
    assert "forward" not in vars(model)


@torch.no_grad()
def test_double_precision_and_small_weights_stay_as_they_are(packings: Counted) -> None:
    for model, x in ((linear().double(), torch.randn(3, 160).double()), (nn.Linear(8, 8), torch.randn(3, 8))):
        expected = model(x)
        with packed(model):
            for _ in range(3):
                assert torch.equal(model(x), expected)
    assert packings == []


def test_gradients_are_those_of_plain_weights(packings: Counted) -> None:
    model, x = linear(), torch.randn(3, 160)
    model(x).square().sum().backward()
    assert model.weight.grad is not None
    expected, model.weight.grad = model.weight.grad, None
    with packed(model):
        for _ in range(3):
            model.zero_grad()
            model(x).square().sum().backward()
            assert torch.equal(model.weight.grad, expected)
        assert packings == []
        with torch.no_grad():
            model(x)
        model.zero_grad()
        model(x).square().sum().backward()  # also after packing
        assert torch.equal(model.weight.grad, expected)


def test_what_a_model_in_training_packed_is_dropped() -> None:
    model, x = linear(), torch.randn(3, 160)
    model.weight.grad = torch.zeros_like(model.weight)
    with torch.no_grad(), packed(model):
        model(x), model(x)
        assert layout(model) is not None
    assert model not in module._KEPT


@torch.no_grad()
def test_what_was_packed_goes_with_the_module() -> None:
    model = linear()
    with packed(model):
        model(torch.randn(3, 160)), model(torch.randn(3, 160))
    assert len(module._KEPT) == 1
    del model
    gc.collect()
    assert len(module._KEPT) == 0


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_lstm_cells(bias: bool) -> None:
    torch.manual_seed(0)
    cell = nn.LSTMCell(90, 80, bias=bias)
    words = torch.randn(4, 5, 90)
    expected = state = torch.randn(5, 80), torch.randn(5, 80)
    with packed(cell):
        for word in words:
            state = cell(word, state)
        assert module._KEPT[cell].of_input.layout is not None
        begun = cell(words[0])
    for word in words:
        expected = cell(word, expected)
    close(state[0], expected[0])
    close(state[1], expected[1])
    close(begun[0], cell(words[0])[0])
    cell.weight_hh.data *= 2
    with packed(cell):
        found = cell(words[0], state), cell(words[0], state)
    for each in found:
        close(each[0], cell(words[0], state)[0])


class Three(nn.Module):
    """Maps of one width, of which two are given the same rows."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two = nn.Linear(160, 120), nn.Linear(160, 200, bias=bias)
        self.other = nn.Linear(160, 120)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat((self.one(x), self.other(y), self.two(x)), -1)


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_maps_of_the_same_rows_are_one_product(bias: bool) -> None:
    model, x, y = Three(bias), torch.randn(5, 160), torch.randn(5, 160)
    plain = model(x, y)
    with packed(model):
        for _ in range(3):
            close(model(x, y), plain)
        together = module._KEPT[model.one].together
        assert [len(each.weight) for each in together.maps] == [120, 200]
        assert together.product is not None
        assert not together.ready
        assert layout(model.one) is layout(model.two) is None
        assert layout(model.other) is not None
        close(model(x, x), torch.cat((plain[:, :120], model.other(x), plain[:, 240:]), 1))
        close(model.two(y), nn.functional.linear(y, model.two.weight, model.two.bias))  # without the first of them
        close(model.one(x), plain[:, :120])
        close(model.two(y), nn.functional.linear(y, model.two.weight, model.two.bias))  # other rows than the first's
    model.two.weight.data[0] = 0  # a sum tells
    changed = model(x, y)
    with packed(model):
        for _ in range(3):
            close(model(x, y), changed)


def test_rows_of_two_maps_with_gradients() -> None:
    model, x = Three(), torch.randn(5, 160)
    with packed(model):
        with torch.no_grad():
            model(x, x), model(x, x)
        x.requires_grad_()
        (found,) = torch.autograd.grad(model(x, x).sum(), x)
    (wanted,) = torch.autograd.grad(model(x, x).sum(), x)
    close(found, wanted)


@torch.no_grad()
def test_hooks_and_capture_still_see_calls() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(MultiHeadAttention(128, heads=2)), torch.randn(2, 5, 128)
    attention = model[0]
    plain, seen = attention.attention_weights(x), []
    attention.query.register_forward_hook(lambda _, __, out: seen.append(out.shape))
    with packed(model):
        for i in range(3):
            with capture(model) as captured:
                model(x)
            assert len(seen) == i + 1
            assert captured.names("tokens") == ["0"]
        inside = captured.weights("0")
    assert module._KEPT[attention.query].map.packed_from is not None
    close(inside, plain)
    close(captured.weights("0"), plain)


def test_models_made_for_inference() -> None:
    with torch.inference_mode():
        model, x = linear(), torch.randn(3, 160)
        expected = model(x)
        for _ in range(2):
            with packed(model):
                close(model(x), expected)
                close(model(x), expected)
        model.weight.mul_(2)
        with packed(model):
            close(model(x), nn.functional.linear(x, model.weight, model.bias))


def test_packed_for_inference_and_used_without_gradients() -> None:
    model, x = linear(), torch.randn(3, 160)
    with torch.inference_mode(), packed(model):
        expected = model(x), model(x)
    with torch.no_grad(), packed(model):
        close(model(x), expected[0])
        close(model(x), expected[0])
    with packed(model):
        model(x).sum().backward()
    assert model.weight.grad is not None


@torch.no_grad()
def test_half_precision_of_autocast_stays() -> None:
    model, x = linear(), torch.randn(3, 160)
    with packed(model):
        model(x), model(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x).dtype == torch.bfloat16


def test_other_defaults_of_type_and_device_do_not_matter() -> None:
    model, x = nn.Linear(256, 256), torch.randn(3, 256)
    module._factors.cache_clear()
    plain = model(x)
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"), torch.no_grad():
            for _ in range(2):
                with packed(model):
                    model(x)
                    close(model(x), plain)
    finally:
        torch.set_default_dtype(torch.float32)
        module._factors.cache_clear()
