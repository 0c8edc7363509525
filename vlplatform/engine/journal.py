"""What a run writes down while it goes: to its files, to its trackers, and to the person watching."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vlplatform.engine.progress import Display, Meter, peak_memory
from vlplatform.engine.settings import TrainerSettings
from vlplatform.engine.trackers import JsonLines, Tracker, build_trackers
from vlplatform.engine.update import Gradients


class Journal:
    """The record of one run; only the main process opens files.

    ``metrics.jsonl`` gets what every repetition gives again, ``timings.jsonl`` what none does.
    """

    def __init__(self, display: Display, device: torch.device) -> None:
        self.display, self.device = display, device
        self.meter = Meter()
        self.lines: list[JsonLines] = []
        self.trackers: list[Tracker] = []

    def open(self, folder: Path, settings: TrainerSettings, resolved: Mapping[str, Any], step: int) -> None:
        """Open files and trackers of a run that continues after update ``step``."""
        self.trackers = build_trackers(settings.trackers, folder, step, resolved)
        self.lines = [JsonLines(folder / "metrics.jsonl"), JsonLines(folder / "timings.jsonl")]

    def update(self, step: int, found: Gradients, rate: float, samples: int) -> None:
        """Show one update."""
        self.meter.add(samples)
        speed, memory = self.meter.now(), peak_memory(self.device)
        self.display.update(step, f"loss {found.loss:.4f} · lr {rate:.2e} · {speed:.3g} samples/s · {memory:.0f} MiB")

    def numbers(self, step: int, values: Mapping[str, Any]) -> None:
        """Note the numbers of one update, and how fast it goes."""
        timing = {"samples_per_second": self.meter.read(), "memory_mib": peak_memory(self.device)}
        for lines, numbers in zip(self.lines, (values, timing)):
            lines.log("train", step, numbers)
        for tracker in self.trackers:
            tracker.log("train", step, {**values, **timing})

    def scores(self, kind: str, step: int, values: Mapping[str, float], *, best: bool) -> None:
        """Note and show the scores on ``val``; ``kind`` is ``eval``, or ``average`` for the mean of checkpoints."""
        for lines in self.lines[:1]:
            lines.log(kind, step, {"split": "val", "values": values})
        for tracker in self.trackers:
            tracker.log("val" if kind == "eval" else kind, step, values)
        shown = " · ".join(f"{name} {value:.4f}" for name, value in values.items())
        self.display.say(f"{'average' if kind == 'average' else 'update'} {step} · {shown}{' · best' if best else ''}")
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
