"""How every local operator treats memory: layouts, gradients through the whole module, nothing of size HW·k²·C."""

from __future__ import annotations

import pytest
import torch
from context_cases import feature_map
from local_cases import NAMES, PATHS, operator, taking
from torch.utils._python_dispatch import TorchDispatchMode

from vlplatform.attention import resolve

every = pytest.mark.parametrize("name", NAMES)
paths = pytest.mark.parametrize("path", PATHS)
LAYOUTS = {
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "reversed": lambda x: x.permute(0, 3, 2, 1).contiguous().permute(0, 3, 2, 1),
    "batch last": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "part of a larger map": lambda x: torch.cat([x, x], 3).repeat_interleave(2, 2)[:, :, ::2, : x.shape[3]],
}


@paths
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("training", [True, False])
def test_the_layout_of_the_input_changes_nothing(path, layout, training):
    """Neither the output nor any gradient, the input's among them."""
    results = []
    for lay in (torch.Tensor.contiguous, LAYOUTS[layout]):
        module = operator("local_bilateral", dim=4).train(training)
        x = lay(feature_map(2, 4, 6, 5)).requires_grad_()
        with taking(path, strip_bytes=1):
            out = module(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *module.parameters()])])
    for expected, got in zip(*results):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@every
@paths
@pytest.mark.parametrize("training", [True, False])
def test_gradients(name, path, training):
    module = operator(name, dim=2, out_dim=4).train(training)
    names, values = zip(*module.named_parameters())

    def apply(x, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters)), x)

    with taking(path, strip_bytes=1) as fused_runs:
        x = feature_map(2, 2, 3, 4).requires_grad_()
        assert torch.autograd.gradcheck(apply, (x, *values), fast_mode=True)
    assert bool(fused_runs) == (path == "fused")


class Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@every
@paths
def test_makes_nothing_larger_than_the_logits_or_the_projections(name, path):
    height, width, channels, heads, kernel = 24, 20, 32, 2, 5
    module, x = operator(name, dim=channels, heads=heads, kernel=kernel), feature_map(1, channels, height, width)
    with taking(path) as fused_runs, Largest() as largest:
        module(x).sum().backward()
    assert bool(fused_runs) == (path == "fused")
    padded = (height + 2 * kernel) * (width + 2 * kernel)
    bound = max(height * width * kernel**2 * heads, padded * 3 * channels)
    assert height * width * channels <= largest.elements <= bound < height * width * kernel**2 * channels


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"heads": 3}, "heads=3 must divide the 8"),
        ({"heads": 0}, "heads=0"),
        ({"out_dim": 0}, "out_dim=0"),
        ({"kernel": 4}, "kernel=4 must be odd"),
        ({"kernel": -1}, "kernel=-1"),
        ({"border": "reflect"}, "border=reflect is not one of mask, zero"),
        ({"scale": "log"}, "scale=log is not one of none, sqrt"),
    ],
)
@every
def test_classes_refuse_bad_arguments_themselves(name, settings, words):
    if name == "local_geometric" and "scale" in settings:
        pytest.skip("no content logits to scale")
    with pytest.raises(ValueError, match=words):
        resolve(name, "local").build(8, **{"heads": 2, **settings})
