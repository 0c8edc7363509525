"""Which curves a run has: loss, scores, learning rate, gradient norm, and whatever else was logged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vlplatform.engine.report.charts import Series, line_chart, smoothed
from vlplatform.engine.report.read import Run, flatten
from vlplatform.engine.report.text import is_number

NOT_CURVES = {"step", "epoch", "time", "timestamp"}
COLOURS = 6


def curves(run: Run) -> str:
    """The charts; those beyond the main ones are folded away."""
    train = [flatten(line) for line in run.train]
    names = list(dict.fromkeys(key for line in train for key, value in line.items() if is_number(value)))
    rates = [name for name in names if name == "lr" or name.startswith("lr.")][:COLOURS]
    main = [line_chart("Training loss", _with_smoothed(_series(train, "loss"))), *_evaluations(run)]
    if rates:
        main.append(line_chart("Learning rate", [_series(train, name) for name in rates], scale="linear"))
    if "grad_norm" in names:
        main.append(line_chart("Gradient norm", _with_smoothed(_series(train, "grad_norm"))))
    rest = [name for name in names if name not in NOT_CURVES | {"loss", "grad_norm", *rates}]
    more = [line_chart(_title(name), _with_smoothed(_series(train, name))) for name in rest]
    shown = f'<div class="charts">{"".join(main)}</div>'
    if not more:
        return shown
    return f'{shown}<details><summary>{len(more)} more</summary><div class="charts">{"".join(more)}</div></details>'


def _evaluations(run: Run) -> list[str]:
    """Scores within [0, 1] share a chart, up to six of them, the selecting one first; others have their own."""
    best = str(run.final.get("best_metric", "")).lstrip("-")
    charts = []
    for split, lines in run.evals.items():
        flat = [{"step": line["step"], **flatten(line["values"])} for line in lines]
        names = dict.fromkeys(name for line in flat for name, value in line.items() if is_number(value))
        series = {name: _series(flat, name) for name in sorted(names, key=lambda name: name != best) if name != "step"}
        shared = [s for s in series.values() if all(not math.isfinite(y) or 0 <= y <= 1 for y in s.y)][:COLOURS]
        if shared:
            charts.append(line_chart(f"Scores on {split}", shared, scale="unit"))
        charts += [line_chart(f"{_title(s.name)} on {split}", [s]) for s in series.values() if s not in shared]
    return charts


def _series(lines: Sequence[dict[str, Any]], name: str) -> Series:
    """The values of a key, NaN where a line has it as null."""
    kept = [(line["step"], line[name]) for line in lines if name in line]
    return Series(_title(name), [x for x, _ in kept], [float(y) if is_number(y) else math.nan for _, y in kept])


def _with_smoothed(series: Series) -> list[Series]:
    if len(series.x) < 8:
        return [series]
    return [
        Series("each step", series.x, series.y, faint=True),
        Series("smoothed", series.x, smoothed(series.y)),
    ]


def _title(name: str) -> str:
    known = {"lr": "learning rate", "grad_norm": "gradient norm", "miou": "mIoU"}
    return known.get(name, name.replace("_", " "))
