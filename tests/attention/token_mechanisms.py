"""Every token attention with what can be asked of it; the suite runs over all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vlplatform.attention import build
from vlplatform.attention.kernels import Path
from vlplatform.geometry import Geometry

DIM, HEADS = 16, 4
PATHS: tuple[Path, ...] = ("auto", "plain", "fused")


@dataclass(frozen=True)
class Case:
    """A mechanism with settings.

    Attributes:
        name: Of the mechanism, or several joined by a plus.
        settings: Of the mechanism.
        geometry: What it needs: nothing, the boxes of regions, or a grid.
        causal: It can be causal, and then cached.
        ordered: It knows the order of tokens, which permuting them changes.
        moved: Shifting all boxes changes it.
        zero: Rows without any key give zeros.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    geometry: str = ""
    causal: bool = True
    ordered: bool = False
    moved: bool = False
    zero: bool = True

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.settings.items())])

    def build(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """The module in evaluation mode, all parameters off their neutral start."""
        torch.manual_seed(0)
        module = build(self.name, dim=DIM, heads=HEADS, socket="token", **self.settings).to(dtype).eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        return module

    def inputs(self, batch: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, dict[str, Any]]:
        """Tokens, and the geometry that goes with them."""
        torch.manual_seed(1)
        height, width = 2, 4
        tokens = torch.randn(batch, height * width, DIM, dtype=dtype)
        if not self.geometry:
            return tokens, {}
        if self.geometry == "grid":
            return tokens, {"geometry": Geometry.from_grid(height, width, dtype=dtype)}
        corner, side = torch.rand(2, batch, height * width, 2, dtype=dtype)
        return tokens, {"geometry": Geometry.from_boxes(torch.cat((corner, corner + side), -1), size=(2.0, 2.0))}


CASES = (
    Case("sa"),
    Case("sa", {"scale": "model", "bias": False}),
    Case("mh_heads"),
    Case("extend_qk"),
    Case("large"),
    Case("nsa", causal=False),
    Case("nsa", {"on": "both", "affine": True}, causal=False),
    Case("nsa", {"norm": "layer"}),
    Case("nsa", {"norm": "batch"}, causal=False),
    Case("dsa", geometry="boxes"),
    Case("dsa", {"distance": "euclidean", "scaling": "linear"}, geometry="grid"),
    Case("dsa", {"distance": "chebyshev", "scaling": "quadratic"}, geometry="boxes"),
    Case("gsa", geometry="boxes"),
    Case("gsa", {"kinds": ["content_independent", "query", "key"]}, geometry="boxes", causal=False),
    Case("gsa", geometry="grid"),
    Case("ngsa", geometry="boxes", causal=False),
    Case("bilateral", {"window": 5}, ordered=True),
    Case("bilateral", {"window": 3, "padding": "inf"}, ordered=True),
    Case("bilateral", {"window": 5, "padding": "learned", "smoothing": "zscore"}, ordered=True),
    Case("bilateral", {"window": 3, "padding": "min"}, ordered=True),
    Case("rel_pos", {"clip": 2}, ordered=True),
    Case("rel_pos", {"clip": 16, "values": False}, ordered=True),
    Case("rel_pe", geometry="boxes"),
    Case("abs_pe", geometry="boxes", moved=True, causal=False),
    Case("talking_heads"),
    Case("swin_window", {"window": 2}, geometry="grid", causal=False, ordered=True),
    Case("halo_window", {"block": 2, "halo": 1}, geometry="grid", causal=False, ordered=True),
    Case("acf1d", ordered=True),
    Case("acf1d", {"scores": "logits", "window": 2}, ordered=True),
    Case("acf2d", geometry="grid", causal=False, ordered=True),
    Case("acf2d", {"height": 3}, geometry="boxes", causal=False),
    Case("msa", {"of": "nsa+talking_heads"}, causal=False, zero=False),
    Case("mdsa", {"form": "paper"}, geometry="boxes"),
    Case("xlinear"),
    Case("xlinear", {"activation": "relu", "group_norm": False, "gate": False}),
    Case("dynamic_conv", {"kernel": 3}, ordered=True),
    Case("light_conv", {"kernel": 3, "renormalise": True}, ordered=True),
    Case("nsa+dsa+bilateral", {"window": 5}, geometry="boxes", causal=False, ordered=True),
    Case("dsa+gsa+talking_heads", geometry="boxes"),
)
