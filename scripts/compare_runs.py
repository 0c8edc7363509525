"""A Markdown table of finished segmentation runs: scores, parameters, multiply-adds, time per update, memory.

    python scripts/compare_runs.py RUN… [--size 180x240] [--classes]

Runs of one mechanism and model that differ in their seed share a row: mean ± standard deviation. Parameters and
multiply-adds are of the whole model and, in brackets, of its mechanism alone, for one picture of the size given. Time
is the median over a run's records, per update of its whole batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vlplatform

Group = tuple[str, str]


def costs(model: nn.Module, height: int, width: int) -> tuple[int, int, int, int]:
    """Parameters and multiply-adds of ``model``, and of the mechanisms in it, for a picture (3, H, W)."""
    mechanisms = [module for module in model.modules() if callable(getattr(module, "macs", None))]
    inside = {inner for mechanism in mechanisms for inner in mechanism.modules()}
    counted = {"model": 0, "mechanism": 0}

    def convolution(module: nn.Module, _: Any, out: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        counted["model"] += module.weight.numel() * out.shape[2] * out.shape[3]

    def mechanism(module: Any, given: tuple[Tensor, ...], _: Any) -> None:
        counted["mechanism"] += module.macs(*given[0].shape[2:])

    for module in model.modules():
        if module in mechanisms:
            module.register_forward_hook(mechanism)
        elif isinstance(module, nn.Conv2d) and module not in inside:
            module.register_forward_hook(convolution)
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, height, width))
    own = sum(parameter.numel() for mechanism in mechanisms for parameter in mechanism.parameters())
    whole = sum(parameter.numel() for parameter in model.parameters())
    return whole, counted["model"] + counted["mechanism"], own, counted["mechanism"]


def spread(values: list[float], form: str) -> str:
    """``mean ± standard deviation``, or the one value there is."""
    text = form.format(statistics.mean(values))
    return text if len(values) == 1 else f"{text} ± {form.format(statistics.stdev(values))}"


def row(group: Group, runs: list[Path], size: tuple[int, int]) -> tuple[str, dict[str, Any]]:
    """One line of the table, and the last run's scores."""
    scores = [json.loads((run / "metrics.json").read_text()) for run in runs]
    records = [[json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()] for run in runs]
    settings = json.loads((runs[0] / "settings.json").read_text())
    batch = settings["trainer"]["batch_size"] * settings["trainer"]["accumulate"]
    rates = [statistics.median(r["samples_per_second"] for r in record if r["kind"] == "train") for record in records]
    memory = [max(r["memory_mib"] for r in record if r["kind"] == "train") for record in records]
    parameters, macs, own_parameters, own_macs = costs(vlplatform.load(runs[0]), *size)
    cells = [
        *group,
        str(len(runs)),
        str(settings["trainer"]["steps"]),
        spread([score["values"]["miou"] for score in scores], "{:.3f}"),
        spread([score["values"]["pixel_accuracy"] for score in scores], "{:.3f}"),
        f"{parameters / 1e6:.2f} M ({own_parameters:,})",
        f"{macs / 1e9:.2f} G ({own_macs / 1e9:.2f})",
        spread([batch / rate for rate in rates], "{:.2f}"),
        spread(memory, "{:.0f}"),
    ]
    return f"| {' | '.join(cells)} |", scores[-1]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--size", default="180x240", help="height x width at which multiply-adds are counted")
    parser.add_argument("--classes", action="store_true", help="a second table: IoU of each class, of the last seed")
    options = parser.parse_args()
    height, width = (int(number) for number in options.size.split("x"))
    groups: dict[Group, list[Path]] = {}
    for run in options.runs:
        settings = json.loads((run / "settings.json").read_text())
        groups.setdefault((settings["attn"]["name"], settings["model"]["name"]), []).append(run)
    print(
        "| mechanism | model | seeds | updates | mIoU | pixel accuracy | parameters (the mechanism's) | multiply–adds "
        "(the mechanism's) | s / update | peak MiB |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    last = {}
    for group, runs in groups.items():
        line, last[group] = row(group, runs, (height, width))
        print(line, flush=True)
    if options.classes:
        names = list(next(iter(last.values()))["per_class"]["iou"])
        print(f"\n| mechanism | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
        for (mechanism, _), score in last.items():
            ious = (score["per_class"]["iou"][name] for name in names)
            print(f"| {mechanism} | {' | '.join('–' if iou is None else f'{iou:.2f}' for iou in ious)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
