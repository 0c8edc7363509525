"""Parameters and multiply–adds of thesis table 4.2: 256 channels, 3×3, FLOPs at 96×96."""

from __future__ import annotations

import pytest
import torch
import torch.utils.flop_counter

from vlplatform.attention import build, resolve

ROWS = {
    "a": ("local_content", {}, 265_216, 2.45),
    "b": ("local_geometric", {}, 217_560, 2.01),
    "c": ("local_bilateral", {"heads": 1}, 267_547, 2.48),
    "d": ("local_bilateral", {"heads": 4}, 274_540, 2.54),
    "e": ("local_bilateral", {}, 283_864, 2.63),
    "f": ("local_bilateral", {"heads": 16}, 302_512, 2.80),
    "g": ("local_bilateral_ir", {"geometric": False}, 131_840, 1.22),
    "h": ("local_bilateral_ir", {"iterations": 1}, 150_272, 1.39),
    "i": ("local_bilateral_ir", {}, 150_272, 1.71),
    "j": ("conv", {}, 590_080, 5.44),
}
# The print contradicts itself in g and i: from h to i, two more passes cost 0.32 G; from 131 072 weights at 9216 pixels
# (1.208 G) to g's 1.22 G, three passes cost 0.01 G. Ours cost 0.042 G a pass, and g is 1.335 G and i 1.505 G.
CONTRADICTED = {"g": 1.335, "i": 1.505}


@pytest.mark.parametrize("row", ROWS)
def test_parameters_are_those_published(row: str):
    name, settings, parameters, _ = ROWS[row]
    operator = build(name, dim=256, socket="local", **settings)
    assert sum(p.numel() for p in operator.parameters()) == parameters


@pytest.mark.parametrize("row", ROWS)
def test_multiply_adds_are_those_published(row: str):
    name, settings, _, published = ROWS[row]
    operator = build(name, dim=256, socket="local", **settings)
    expected, tolerance = (CONTRADICTED[row], 0.001) if row in CONTRADICTED else (published, 0.03)
    assert operator.macs(96, 96) / 1e9 == pytest.approx(expected, rel=tolerance)


def test_multiply_adds_are_counted_by_pytorch_too():
    operator = build("local_bilateral", dim=16, socket="local", heads=4)
    counter = torch.utils.flop_counter.FlopCounterMode(display=False)
    with counter, torch.no_grad():
        operator.eval()
        for stage in (*operator.projections.values(), operator.output):
            stage.conv(torch.randn(1, 16, 5, 6))
        operator.position.conv(torch.randn(1, 16, 5, 6))
    assert operator.macs(5, 6) == counter.get_total_flops() // 2 + 30 * 2 * 9 * 16


def test_bilateral_is_the_local_member_of_its_family():
    assert resolve("bilateral", "local").name == "local_bilateral"
