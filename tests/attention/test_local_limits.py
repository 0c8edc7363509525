"""Limiting cases that must hold exactly, and what the operators refuse."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vlplatform.attention import build, kernels
from vlplatform.attention.kernels import window
from vlplatform.errors import UserError

PATHS = pytest.mark.parametrize("path", ["auto", "plain"])


def operator(name: str, **settings: object) -> torch.nn.Module:
    torch.manual_seed(0)
    made = build(name, dim=6, socket="local", heads=2, **settings).double().eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def x(height: int = 5, width: int = 4) -> torch.Tensor:
    return torch.randn(2, 6, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@PATHS
def test_one_iteration_is_plain_local_attention(path: str):
    refined = operator("local_bilateral_ir", shared=False, iterations=1)
    plain = operator("local_bilateral")
    plain.load_state_dict(refined.state_dict())
    with kernels.using(path):
        torch.testing.assert_close(refined(x()), plain(x()), rtol=0, atol=0)


@PATHS
@pytest.mark.parametrize("name", ["local_content", "local_geometric", "local_bilateral", "local_bilateral_ir"])
def test_a_window_of_one_pixel_gives_the_value_map(path: str, name: str):
    made = operator(name, kernel=1)
    value = made.projections["value" if "value" in made.projections else "projection"](x())
    with kernels.using(path):
        torch.testing.assert_close(made(x()), made.output(value), rtol=1e-12, atol=1e-12)


@PATHS
@pytest.mark.parametrize("border", ["mask", "zero"])
def test_without_content_and_position_it_is_a_mean_filter(path: str, border: str):
    made = operator("local_bilateral", border=border)
    for stage in (made.projections["query"], made.position):
        torch.nn.init.zeros_(stage.norm.weight)
        torch.nn.init.zeros_(stage.norm.bias)
    value = made.projections["value"](x())
    mean = F.avg_pool2d(value, 3, 1, padding=1, count_include_pad=border == "zero")
    with kernels.using(path):
        torch.testing.assert_close(made(x()), made.output(mean), rtol=1e-12, atol=1e-12)


@PATHS
def test_the_same_position_logit_everywhere_changes_nothing(path: str):
    made = operator("local_bilateral")
    content = operator("local_content")
    content.load_state_dict({k: v for k, v in made.state_dict().items() if not k.startswith("position")})
    torch.nn.init.zeros_(made.position.norm.weight)
    torch.nn.init.constant_(made.position.norm.bias, 1.7)
    with kernels.using(path):
        torch.testing.assert_close(made(x()), content(x()), rtol=1e-12, atol=1e-12)


def test_refinement_changes_the_content_weights_but_not_the_position_weights():
    once, thrice = operator("local_bilateral_ir", iterations=1), operator("local_bilateral_ir", iterations=3)
    thrice.load_state_dict(once.state_dict())
    maps = [made.attention_maps(x(), 2, 2) for made in (once, thrice)]
    assert not torch.allclose(maps[0]["content"], maps[1]["content"])
    torch.testing.assert_close(maps[0]["position"], maps[1]["position"], rtol=0, atol=0)


def test_squash_is_zero_at_zero_shorter_than_one_and_differentiable():
    features = torch.zeros(1, 2, 3, 1, 1, dtype=torch.float64, requires_grad=True)
    out = window.squash(features)
    out.sum().backward()
    assert features.grad is not None
    assert out.abs().max() == 0
    assert features.grad.abs().max() < 1e-100
    far = window.squash(torch.randn(1, 2, 3, 4, 5) * 100)
    assert far.norm(dim=2).max() < 1
    assert window.squash(torch.zeros(1, 1, 2, 1, 1)).isfinite().all()


@pytest.mark.parametrize("border", ["mask", "zero"])
@pytest.mark.parametrize("name", ["local_content", "local_geometric", "local_bilateral", "local_bilateral_ir"])
def test_attention_maps_are_the_weights_that_the_layer_applies(name: str, border: str):
    made = operator(name, border=border)
    maps = made.attention_maps(x(), 0, 3)
    keys = {"local_content": {"content"}, "local_geometric": {"position"}}
    assert set(maps) == keys.get(name, {"content", "position", "bilateral"})
    weights = maps.get("bilateral", next(iter(maps.values())))
    assert weights.shape == (2, 2, 5, 4)
    if border == "mask":
        torch.testing.assert_close(weights.sum((2, 3)), torch.ones(2, 2, dtype=torch.float64))
    value = made.projections["value" if "value" in made.projections else "projection"](x())
    gathered = torch.einsum("bmhw,bmdhw->bmd", weights, value.unflatten(1, (2, 3))).flatten(1)
    seen: list[torch.Tensor] = []
    handle = made.output.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    made(x())
    handle.remove()
    torch.testing.assert_close(gathered, seen[0][:, :, 0, 3], rtol=1e-12, atol=1e-12)
    with pytest.raises(IndexError, match="outside"):
        made.attention_maps(x(), 5, 0)


def test_attention_maps_leave_the_mode_and_the_statistics_alone():
    made = operator("local_bilateral").train()
    made.output.eval()
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    made.attention_maps(x(), 1, 1)
    assert made.training
    assert made.projections["query"].norm.training
    assert not made.output.norm.training
    assert all(torch.equal(before[name], tensor) for name, tensor in made.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"kernel": 2}, "odd"), ({"heads": 5}, "heads"), ({"iterations": 0}, "at least 1"), ({"border": "wrap"}, "wrap")],
)
def test_impossible_settings_are_refused(settings: dict[str, object], word: str):
    with pytest.raises(UserError, match=word):
        build("local_bilateral_ir", dim=6, socket="local", **{"heads": 2, **settings})
