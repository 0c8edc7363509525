"""The context operators with the weights of public code: CCNet, mmcv's NonLocal2d, mmseg's heads, fairseq."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vlplatform.attention import build

pytestmark = pytest.mark.shared


def golden(shared: Path, case: str) -> dict[str, Tensor]:
    return load_file(shared / f"reference/golden/{case}.safetensors")


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, by the rest of their names."""
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def mmcv_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """mmcv's parameter names as ours: its wrapper of a convolution is taken off."""
    if any(name.startswith("conv_out.bn") for name in weights):
        weights = {
            n.replace("conv_out.conv", "conv_out.0").replace("conv_out.bn", "conv_out.1"): t for n, t in weights.items()
        }
    return {name.replace(".0.conv", "").replace(".conv", ""): tensor for name, tensor in weights.items()}


def exactly(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("recurrence", [1, 2, 3])
def test_criss_cross_of_ccnet(shared: Path, recurrence: int) -> None:
    case = golden(shared, "ccnet_criss_cross")
    module = build("crisscross", dim=32, socket="context", recurrence=recurrence).double()
    module.load_state_dict(part(case, "w."))
    exactly(module(case["x"]), case[f"out_R{recurrence}"])


def test_criss_cross_weights_of_ccnet(shared: Path) -> None:
    case = golden(shared, "ccnet_criss_cross")
    module = build("crisscross", dim=32, socket="context").double()
    module.load_state_dict(part(case, "w."))
    height, width = case["x"].shape[2:]
    for row, col in ((0, 0), (2, 3), (4, 5)):
        expected = torch.zeros(2, height, width, dtype=torch.float64)
        expected[:, :, col] = case["i.attention"][:, row, col, :height]
        expected[:, row] += case["i.attention"][:, row, col, height:]
        exactly(module.attention_maps(case["x"], row, col)["content"][:, 0], expected)


@torch.no_grad()
@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        ("embedded_gaussian", {}),
        ("embedded_gaussian_noscale", {"scale": False}),
        ("embedded_gaussian_red1", {"reduction": 1}),
        ("embedded_gaussian_subsample", {"sub_sample": True}),
        ("dot_product", {"mode": "dot_product"}),
        ("gaussian", {"mode": "gaussian"}),
        ("concatenation", {"mode": "concatenation"}),
    ],
)
def test_non_local_of_mmcv(shared: Path, variant: str, settings: dict) -> None:
    case = golden(shared, "nonlocal2d")
    module = build("nonlocal", dim=32, socket="context", **settings).double()
    module.load_state_dict(mmcv_names(part(case, f"{variant}.w.")))
    exactly(module(case["x"]), case[f"{variant}.out"])


@torch.no_grad()
def test_non_local_with_norm_of_mmseg(shared: Path) -> None:
    case = golden(shared, "mmseg_nl_head")
    module = build("nonlocal", dim=16, socket="context", norm=True).double().eval()
    module.load_state_dict(mmcv_names(part(case, "w.nl_block.")))
    exactly(module(case["i.conv1"]), case["i.attended"])


@torch.no_grad()
def test_criss_cross_of_mmseg(shared: Path) -> None:
    case = golden(shared, "mmseg_cc_head")
    weights = part(case, "w.cca.")
    weights["gamma"] = weights.pop("gamma.scale").double().reshape(1)
    module = build("crisscross", dim=16, socket="context").double()
    module.load_state_dict(weights)
    exactly(module(case["i.conv1"]), case["i.attended"])


@torch.no_grad()
@pytest.mark.parametrize("kernel", [3, 5, 15])
def test_bilateral_without_content_is_renormalised_dynamic_convolution(shared: Path, kernel: int) -> None:
    """Content 0 and padding −∞ on a map of one row: fairseq's causal kernel is half of our centred window."""
    case = golden(shared, "fairseq_dynamic_conv")
    dim, heads, window = 32, 4, 2 * kernel - 1
    options = {"heads": heads, "reduction": 1, "recurrence": 1, "window": window}
    module = build("bilateral_cc", dim=dim, socket="context", padding="inf", smoothing="sqrt", **options).double()
    taps = torch.zeros(heads, 2 * window - 1, dim, dtype=torch.float64)
    taps[:, :kernel] = case[f"dec_K{kernel}.w"].unflatten(0, (heads, kernel)) * (dim // heads) ** 0.5
    future = torch.zeros(heads, 2 * window - 1, dtype=torch.float64)
    future[:, kernel:window] = -1e6
    identity, none = torch.eye(dim, dtype=torch.float64)[..., None, None], torch.zeros(dim, dtype=torch.float64)
    weights = module.state_dict()
    weights |= {f"{name}.weight": torch.zeros_like(identity) for name in ("query_conv", "key_conv")}
    weights |= {f"{name}.weight": identity for name in ("value_conv", "position.embedding")}
    biased = ("query_conv", "key_conv", "value_conv", "position.embedding")
    weights |= {f"{name}.bias": none for name in biased} | {"gamma": torch.ones(1)}
    weights |= {"position.logits.weight": taps.flatten(0, 1)[..., None, None], "position.logits.bias": future.flatten()}
    module.load_state_dict(weights)
    x = case["x"].permute(1, 2, 0).unsqueeze(2)  # (time, batch, channel) → (B, C, 1, T)
    exactly((module(x) - x).squeeze(2).permute(2, 0, 1), case[f"dec_K{kernel}.out_renorm"])
