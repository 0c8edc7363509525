"""Words and numbers for the report: escaped and rounded."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def escape(value: Any) -> str:
    """Any value as text that is safe in HTML content and quoted attributes."""
    return html.escape(CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value)))


def is_number(value: Any) -> TypeGuard[float]:
    """A real number, NaN and infinities included; ``True`` is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number(value: Any) -> str:
    """Four significant digits; whole numbers in full; a dash where there is none."""
    if not is_number(value) or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", "\u202f")
    return f"{value:.4f}" if 1e-2 <= abs(value) <= 1 else f"{value:.4g}"


def short(value: float) -> str:
    """A number for an axis: ``0.25``, ``1.5k``, ``3e-05``."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}" if value == 0 or abs(value) >= 1e-4 else f"{value:.0e}".replace("e-0", "e-")


def scored(final: Mapping[str, Any]) -> str:
    """Which model the scores in ``metrics.json`` belong to: ``the best checkpoint on val (update 600 of 900, …)``.

    Empty where the file does not tell.
    """
    step, last, metric = (final.get(key) for key in ("best_step", "step", "best_metric"))
    if step is None or last is None:
        return ""
    split, by = final.get("split", "val"), f"by {str(metric).removeprefix('-')}" if metric else "by its score"
    if final.get("model") == "average":
        return f"the mean of the last checkpoints on {split} (best {by})"
    if step == last:
        return f"the last checkpoint on {split} (update {last}, best {by})"
    return f"the best checkpoint on {split} (update {step} of {last}, best {by})"
