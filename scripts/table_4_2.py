"""Parameters and multiply-adds of the local operators beside the thesis' tables 4.1 and 4.2 (256 channels, 96 x 96)."""

from __future__ import annotations

import math
from typing import Any

from vlplatform import attention

ROWS: tuple[tuple[str, str, dict[str, Any], int, float], ...] = (
    ("a content, 8 heads", "local_content", {"heads": 8}, 265_216, 2.45),
    ("b geometric, 8 heads", "local_geometric", {"heads": 8}, 217_560, 2.01),
    ("c bilateral, 1 head", "local_bilateral", {"heads": 1}, 267_547, 2.48),
    ("d bilateral, 4 heads", "local_bilateral", {"heads": 4}, 274_540, 2.54),
    ("e bilateral, 8 heads", "local_bilateral", {"heads": 8}, 283_864, 2.63),
    ("f bilateral, 16 heads", "local_bilateral", {"heads": 16}, 302_512, 2.80),
    ("g content, shared, 3 passes", "local_bilateral_ir", {"geometric": False, "iterations": 3}, 131_840, 1.22),
    ("h bilateral, shared, 1 pass", "local_bilateral_ir", {"iterations": 1}, 150_272, 1.39),
    ("i bilateral, shared, 3 passes", "local_bilateral_ir", {"iterations": 3}, 150_272, 1.71),
    ("j convolution", "conv", {}, 590_080, 5.44),
)
"""Row, mechanism, settings, the published parameters (as their formula gives them exactly) and multiply-adds in G."""


FORMULAS: tuple[tuple[str, str, dict[str, Any], str, str], ...] = (
    ("convolution", "conv", {}, "k² di do", "k² di do"),
    ("content", "local_content", {}, "4 di do + 2 k² do", "4 di do + 2 k² do"),
    ("geometric", "local_geometric", {}, "di do + (M + 1) k² do", "3 di do + (M + 1) k² do"),
    ("content, refined", "local_bilateral_ir", {"geometric": False}, "2 di do + 6 k² do", "2 di do + 6 k² do"),
)
"""Operator, mechanism, settings, table 4.1's multiply-adds per pixel, and those we count."""


def per_pixel(formula: str, channels: int, kernel: int, heads: int) -> int:
    """A formula's value for ``channels`` in and out."""
    product = formula.replace("(M + 1)", str(heads + 1)).replace("k²", str(kernel**2))
    product = product.replace("di", str(channels)).replace("do", str(channels))
    return sum(math.prod(int(factor) for factor in term.split()) for term in product.split("+"))


def table_4_1() -> None:
    """Print what the formulas give beside what the operators count, in G."""
    print("| operator | table 4.1, per pixel | G | ours, per pixel | G | counted by macs() |")
    print("|---|---|---|---|---|---|")
    for operator, name, settings, published, own in FORMULAS:
        module: Any = attention.build(name, dim=256, socket="local", **settings)
        values = [per_pixel(formula, 256, 3, 8) * 96 * 96 / 1e9 for formula in (published, own)]
        counted = module.macs(96, 96) / 1e9
        print(f"| {operator} | {published} | {values[0]:.3f} | {own} | {values[1]:.3f} | {counted:.3f} |")


def main() -> None:
    """Print both tables in Markdown."""
    table_4_1()
    print()
    print("| row | published parameters | ours | published G | ours | difference |")
    print("|---|---|---|---|---|---|")
    for row, name, settings, parameters, published in ROWS:
        operator: Any = attention.build(name, dim=256, socket="local", **settings)
        own = sum(p.numel() for p in operator.parameters())
        macs = operator.macs(96, 96) / 1e9
        print(f"| {row} | {parameters:,} | {own:,} | {published} | {macs:.3f} | {macs / published - 1:+.1%} |")


if __name__ == "__main__":
    main()
