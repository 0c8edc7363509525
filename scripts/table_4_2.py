"""Parameters and multiply-adds of the localised operators beside the thesis' table 4.2 (256 channels, 96 x 96)."""

from __future__ import annotations

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


def main() -> None:
    """Print the table in Markdown."""
    print("| row | published parameters | ours | published G | ours | difference |")
    print("|---|---|---|---|---|---|")
    for row, name, settings, parameters, published in ROWS:
        operator: Any = attention.build(name, dim=256, socket="local", **settings)
        own = sum(p.numel() for p in operator.parameters())
        macs = operator.macs(96, 96) / 1e9
        print(f"| {row} | {parameters:,} | {own:,} | {published} | {macs:.3f} | {macs / published - 1:+.1%} |")


if __name__ == "__main__":
    main()
