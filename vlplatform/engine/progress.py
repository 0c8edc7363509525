"""What a person watching sees: a bar with the time left on a terminal, sparse plain lines elsewhere."""

from __future__ import annotations

import resource
import sys
import time
from collections import deque
from datetime import timedelta
from types import TracebackType

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINES = 20
"""Lines of a whole run where there is no terminal, evaluations and the first line apart."""
FIRST_SECONDS = 10.0
"""After so much time there is a line, should none have come yet."""
RECENT = 4
"""Lines over which the rate is taken that tells the time left."""


class Display:
    """The progress of ``total`` updates, of which ``done`` lie behind; other processes than the main one are silent.

    Args:
        shown: Whether anything is.
        beside: On standard error, and on a terminal only: beside results that others may read.
    """

    def __init__(self, *, shown: bool = True, beside: bool = False) -> None:
        shown = shown and (not beside or sys.stderr.isatty())
        self.console = Console(highlight=False, soft_wrap=True, quiet=not shown, stderr=beside)
        self._bar: Progress | None = None
        self._total = 1
        self._marks: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._silent_since: float | None = None

    def start(self, total: int, done: int) -> None:
        """Begin the bar."""
        self._total = total
        self._silent_since = time.monotonic()
        self.measure(done)
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._task = self._bar.add_task("", total=total, completed=done)
            self._bar.start()

    def measure(self, done: int) -> None:
        """Take the rate that tells the time left from now on, when ``done`` updates lie behind."""
        self._marks.clear()
        self._marks.append((done, time.monotonic()))

    def update(self, step: int, text: str) -> None:
        """Show that ``step`` updates are done; ``text`` has the loss and the like."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=text)
        elif step % max(1, self._total // LINES) == 0 or self._waited():
            self._silent_since, now = None, time.monotonic()
            self.say(f"{step}/{self._total} · {text} · {self._left(step, now)} left")
            self._marks.append((step, now))

    def _waited(self) -> bool:
        return self._silent_since is not None and time.monotonic() - self._silent_since >= FIRST_SECONDS

    def _left(self, step: int, now: float) -> str:
        """The time left as h:mm:ss, evaluations and saves included, if all goes on as it went over the last lines."""
        done, since = self._marks[0]
        seconds = (now - since) / max(1, step - done) * (self._total - step)
        return str(timedelta(seconds=round(seconds)))

    def say(self, line: str) -> None:
        """One plain line."""
        self.console.print(line, markup=False)

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class Meter:
    """Samples per second since the last reading."""

    def __init__(self) -> None:
        self.samples, self.since, self.last = 0, time.perf_counter(), 0.0

    def pause(self) -> None:
        """Begin a new span without a reading, after work that made no samples."""
        self.samples, self.since = 0, time.perf_counter()

    def now(self) -> float:
        """The last reading, or, before the first, samples per second so far; for people to see."""
        return self.last or self.samples / max(time.perf_counter() - self.since, 1e-9)

    def add(self, samples: int) -> None:
        """Count ``samples`` more."""
        self.samples += samples

    def read(self) -> float:
        """Samples per second since the last reading, which begins the next span."""
        now = time.perf_counter()
        self.last = self.samples / max(now - self.since, 1e-9)
        self.samples, self.since = 0, now
        return self.last


def peak_memory(device: torch.device) -> float:
    """The most memory used so far, in MiB: of the GPU, or of this process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
