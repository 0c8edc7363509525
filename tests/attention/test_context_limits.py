"""Limiting cases of the long-range operators that hold whatever the weights are."""

from __future__ import annotations

import pytest
import torch
from context_cases import BILATERAL, feature_map, operator
from torch import nn

bilateral = pytest.mark.parametrize("name", BILATERAL)
smoothed = pytest.mark.parametrize("smoothing", ["sqrt", "zscore"])
SHARED = {"heads": 2, "reduction": 2}


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def plain(name: str, module: nn.Module, smoothing: str) -> nn.Module:
    """The operator without position logits that has the bilateral one's other weights."""
    if name == "bilateral_cc":
        base = operator("crisscross", scale=smoothing == "sqrt", **SHARED)
    else:
        base = operator("nonlocal", **SHARED)
    base.load_state_dict({k: v for k, v in module.state_dict().items() if not k.startswith("position.")})
    return base


def set_logits(module: nn.Module, value: float) -> None:
    """Every logit of f, the padding's too, becomes one constant."""
    nn.init.zeros_(module.position.logits.weight)
    nn.init.constant_(module.position.logits.bias, value)


@bilateral
@smoothed
@pytest.mark.parametrize(
    ("padding", "window", "value"),
    [
        ("zero", 3, 0.0),
        ("zero", 13, 3.0),
        ("min", 3, -2.0),
        ("learned", 3, 3.0),
        ("learned", 13, 0.0),
        ("inf", 13, 3.0),
    ],
)
def test_constant_position_logits_leave_the_plain_operator(name, smoothing, padding, window, value):
    """Constant over all keys: with padding 0 or −∞ where the window holds the whole map."""
    module = operator(name, padding=padding, smoothing=smoothing, window=window, **SHARED)
    set_logits(module, value)
    x = feature_map(2, 8, 6, 7)
    same(module(x), plain(name, module, smoothing)(x))


@bilateral
@smoothed
def test_constant_position_logits_in_part_of_the_map_do_change_it(name, smoothing):
    module = operator(name, padding="zero", smoothing=smoothing, window=3, **SHARED)
    set_logits(module, 3.0)
    x = feature_map(2, 8, 6, 7)
    assert not torch.allclose(module(x), plain(name, module, smoothing)(x), atol=1e-3)


@bilateral
@smoothed
def test_padding_acts_outside_the_window_only(name, smoothing):
    """The four paddings agree where the window holds the whole map, and nowhere else."""
    for size, agree in (((4, 4), True), ((6, 7), False)):
        outs = []
        for padding in ("inf", "zero", "min", "learned"):
            module = operator(name, seed=3, padding=padding, smoothing=smoothing, window=7, **SHARED)
            module.position.load_state_dict(shared_logits(name, smoothing, learned=padding == "learned"))
            outs.append(module(feature_map(1, 8, *size)))
        for other in outs[1:]:
            assert torch.allclose(other, outs[0], rtol=1e-10, atol=1e-10) == agree


def shared_logits(name: str, smoothing: str, *, learned: bool) -> dict[str, torch.Tensor]:
    """One f for all paddings; the learned one's last logit of each head is cut off for the others."""
    state = operator(name, seed=4, padding="learned", smoothing=smoothing, window=7, **SHARED).position.state_dict()
    if not learned:
        for key in ("logits.weight", "logits.bias"):
            state[key] = state[key].unflatten(0, (2, -1))[:, :-1].flatten(0, 1)
    return state


def test_learned_padding_far_below_all_logits_is_minus_infinity():
    """Smoothed by √d; a z-score has the padding in its standard deviation."""
    module = operator("bilateral_cc", padding="learned", smoothing="sqrt", window=3, **SHARED)
    local = operator("bilateral_cc", padding="inf", smoothing="sqrt", window=3, **SHARED)
    state = module.state_dict()
    state["position.logits.bias"].unflatten(0, (2, -1))[:, -1] = -1e5
    module.load_state_dict(state)
    for key in ("position.logits.weight", "position.logits.bias"):
        state[key] = state[key].unflatten(0, (2, -1))[:, :-1].flatten(0, 1)
    local.load_state_dict(state)
    x = feature_map(1, 8, 6, 7)
    same(module(x), local(x))


@bilateral
@smoothed
def test_minus_infinity_is_local_and_translates(name, smoothing):
    """Away from the border a crop gives what the whole map gives there."""
    settings = {"padding": "inf", "smoothing": smoothing, "window": 5}
    module, passes = operator(name, **settings), 2 if name == "bilateral_cc" else 1
    x = feature_map(1, 8, 14, 13)
    reach = 2 * passes
    whole, crop = module(x), module(x[..., 1:12, 2:12])
    same(crop[..., reach : 11 - reach, reach : 10 - reach], whole[..., 1 + reach : 12 - reach, 2 + reach : 12 - reach])


@pytest.mark.parametrize("name", ["nonlocal", "crisscross"])
def test_content_alone_is_blind_to_the_order_of_rows_and_columns(name):
    module, x = operator(name), feature_map(1, 8, 5, 6)
    rows, columns = torch.randperm(5), torch.randperm(6)
    same(module(x[:, :, rows][..., columns]), module(x)[:, :, rows][..., columns])


@pytest.mark.parametrize("name", ["bilateral_nl", "bilateral_cc", "nonlocal_rpe", "crisscross_rpe"])
def test_position_is_not(name):
    module, x = operator(name), feature_map(1, 8, 5, 6)
    assert not torch.allclose(module(x.flip(3)), module(x).flip(3), atol=1e-3)


def test_two_passes_of_criss_cross_reach_every_pixel():
    for passes, reached in ((1, 5 + 6 - 1), (2, 5 * 6)):
        module, x = operator("crisscross", recurrence=passes), feature_map(1, 8, 5, 6).requires_grad_()
        module(x)[0, :, 2, 3].sum().backward()
        assert (x.grad.abs().sum((0, 1)) > 0).sum() == reached


def test_a_map_of_one_row_is_the_same_to_criss_cross_and_non_local():
    """Both are then self-attention of one sequence, and so are their bilateral forms."""
    settings = {"reduction": 1, "window": 5, "padding": "learned"}
    across = operator("bilateral_cc", recurrence=1, smoothing="sqrt", **settings)
    everywhere = operator("bilateral_nl", smoothing="sqrt", **settings)
    state = across.state_dict()
    for ours, theirs in (("theta", "query_conv"), ("phi", "key_conv"), ("g", "value_conv")):
        getattr(everywhere, ours).load_state_dict({k: state[f"{theirs}.{k}"] for k in ("weight", "bias")})
    everywhere.position.embedding.load_state_dict(across.position.embedding.state_dict())
    with torch.no_grad():
        for ours, theirs in zip(everywhere.position.logits.parameters(), across.position.logits.parameters()):
            ours[10:15], ours[-1] = theirs[:5], theirs[-1]  # the window's middle row, and the padding
        everywhere.conv_out.weight.copy_(across.gamma * torch.eye(8).reshape(8, 8, 1, 1))
        everywhere.conv_out.bias.zero_()
    x = feature_map(2, 8, 1, 9)
    same(across(x), everywhere(x))


@pytest.mark.parametrize(("name", "base"), [("nonlocal_rpe", "nonlocal"), ("crisscross_rpe", "crisscross")])
def test_equal_relative_vectors_change_nothing(name, base):
    module, other = operator(name, **SHARED), operator(base, **SHARED)
    nn.init.constant_(module.relative.row, 0.3)
    nn.init.constant_(module.relative.column, 0.3)
    other.load_state_dict({k: v for k, v in module.state_dict().items() if not k.startswith("relative.")})
    x = feature_map(2, 8, 5, 6)
    same(module(x), other(x))


@bilateral
@pytest.mark.parametrize(("padding", "value"), [("inf", 300.0), ("zero", 3.0), ("min", 300.0), ("learned", 300.0)])
def test_zscore_of_constant_logits_in_single_precision(name, padding, value):
    """The rounding of a variance of 0 makes neither NaN nor a difference, forward or backward."""
    module = operator(name, padding=padding, window=13, dtype=torch.float32, **SHARED)
    set_logits(module, value)
    x = feature_map(2, 8, 6, 7, dtype=torch.float32)
    out = module(x)
    torch.testing.assert_close(out.double(), plain(name, module, "zscore")(x.double()), rtol=1e-3, atol=1e-3)
    out.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
