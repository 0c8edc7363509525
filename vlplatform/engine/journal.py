"""What a run writes down while it goes: to its files, to its trackers, and to the person watching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vlplatform.engine.late import Collected
from vlplatform.engine.progress import Display, Meter, peak_memory
from vlplatform.engine.settings import TrainerSettings
from vlplatform.engine.trackers import JsonLines, Tracker, build_trackers
from vlplatform.engine.update import Gradients

_NAMES = {"eval": "update", "average": "average"}


class Journal:
    """The record of one run; only the main process opens files.

    ``metrics.jsonl`` gets what every repetition gives again, ``timings.jsonl`` what none does.

    Args:
        display: For the person watching.
        device: Whose memory is told.
        shown: Names of parts of the loss that this person sees beside it.
    """

    def __init__(self, display: Display, device: torch.device, *, shown: Sequence[str] = ()) -> None:
        self.display, self.device, self.shown = display, device, tuple(shown)
        self.meter = Meter()
        self.lines: list[JsonLines] = []
        self.trackers: list[Tracker] = []

    def open(self, folder: Path, settings: TrainerSettings, resolved: Mapping[str, Any], step: int) -> None:
        """Open files and trackers of a run that continues after update ``step``."""
        self.trackers = build_trackers(settings.trackers, folder, step, resolved)
        self.lines = [JsonLines(folder / "metrics.jsonl"), JsonLines(folder / "timings.jsonl")]

    def update(self, step: int, found: Gradients, rate: float, samples: int, *, stage: str = "") -> None:
        """Show one update; ``stage`` is told where there are several."""
        self.meter.add(samples)
        speed, memory = self.meter.now(), peak_memory(self.device)
        # A loss may be near zero by its nature (policy gradients): then its first digits are shown, and no -0.0000.
        loss = found.loss + 0.0  # of -0.0 and 0.0 the latter
        loss = f"{loss:.4f}" if round(loss, 4) or not loss else f"{loss:.1e}"
        parts = [f"{name} {found.parts[name]:.4f}" for name in self.shown if name in found.parts]
        told = [*[stage] * bool(stage), *parts, f"loss {loss}", f"lr {rate:.2e}", f"{speed:.3g} samples/s"]
        self.display.update(step, " · ".join([*told, f"{memory:.0f} MiB"]))

    def numbers(self, step: int, values: Mapping[str, Any]) -> None:
        """Note the numbers of one update, and how fast it goes."""
        timing = {"samples_per_second": self.meter.read(), "memory_mib": peak_memory(self.device)}
        for lines, numbers in zip(self.lines, (values, timing)):
            lines.log("train", step, numbers)
        for tracker in self.trackers:
            tracker.log("train", step, {**values, **timing})

    def scores(
        self, kind: str, step: int, values: Mapping[str, float], *, best: bool, awaited: Sequence[str] = ()
    ) -> None:
        """Note and show the scores on ``val``; ``kind`` is ``eval``, or ``average`` for the mean of checkpoints.

        Late scores that are ``awaited`` are named.
        """
        for lines in self.lines[:1]:
            lines.log(kind, step, {"split": "val", "values": values})
        for tracker in self.trackers:
            tracker.log("val" if kind == "eval" else kind, step, values)
        shown = [*_shown(values), *["best"] * best, *[f"{' and '.join(awaited)} will follow"] * bool(awaited)]
        self.display.say(" · ".join([f"{_NAMES[kind]} {step}", *shown]))
        self.meter.pause()

    def late(self, found: Collected, step: int, *, at_the_end: bool) -> None:
        """Note and show scores that came late, by update ``step``; ``at_the_end`` no checkpoint comes any more."""
        of = {"of": found.kind, "of_step": found.step, **({"at_the_end": True} if at_the_end else {})}
        for lines in self.lines[:1]:
            lines.log("late", step, {**of, "split": "val", "values": found.values})
        for tracker in self.trackers:
            tracker.log("val" if found.kind == "eval" else found.kind, found.step, found.values)
        shown = _shown(found.values) or ["late scores could not be had, see the notes of the report"]
        self.display.say(" · ".join([f"{_NAMES[found.kind]} {found.step}", *shown, "came later"]))
        self.meter.pause()

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        for lines in self.lines:
            lines.sync()

    def close(self) -> None:
        """Close files and trackers; more than once does no harm."""
        for tracker in (*self.lines, *self.trackers):
            tracker.close()
        self.lines, self.trackers = [], []


def _shown(values: Mapping[str, float]) -> list[str]:
    return [f"{name} {value:.4f}" for name, value in values.items()]
