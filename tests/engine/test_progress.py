"""What a person sees of a run where there is no terminal: an early first line, a time left that follows the rate."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy_task import ToyTask, fit, settings

from vlplatform.engine.progress import Display


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("vlplatform.engine.progress.time.monotonic", clock)
    return clock


def lines(capsys: pytest.CaptureFixture[str]) -> list[tuple[int, str]]:
    """Update and time left of each line."""
    found = [re.match(r"(\d+)/\d+ · text · (.+) left$", line) for line in capsys.readouterr().out.splitlines()]
    assert all(found)
    return [(int(match[1]), match[2]) for match in found if match]


def run(clock: Clock, display: Display, updates: range, seconds: float) -> None:
    for step in updates:
        clock.now += seconds
        display.update(step, "text")


def test_the_first_line_comes_after_ten_seconds(clock, capsys):
    display = Display()
    display.start(1000, 0)
    run(clock, display, range(1, 101), 1.0)
    told = lines(capsys)
    assert [step for step, _ in told] == [10, 50, 100]
    assert told[0][1] == "0:16:30"


def test_slow_updates_are_told_from_the_first_on_and_then_sparsely(clock, capsys):
    display = Display()
    display.start(1000, 0)
    run(clock, display, range(1, 51), 15.0)
    assert [step for step, _ in lines(capsys)] == [1, 50]


def test_quick_runs_have_no_line_more(clock, capsys):
    display = Display()
    display.start(1000, 0)
    run(clock, display, range(1, 1001), 0.1)
    assert [step for step, _ in lines(capsys)] == list(range(50, 1001, 50))


def test_a_continued_run_tells_early_too(clock, capsys):
    display = Display()
    display.start(1000, 510)
    run(clock, display, range(511, 551), 1.0)
    assert [step for step, _ in lines(capsys)] == [520, 550]


def test_the_time_left_follows_the_recent_rate(clock, capsys):
    display = Display()
    display.start(1000, 0)
    run(clock, display, range(1, 501), 10.0)
    assert lines(capsys)[-1] == (500, "1:23:20")
    run(clock, display, range(501, 701), 1.0)  # four lines later the slow half is forgotten
    assert lines(capsys)[-1] == (700, "0:05:00")


class Prepared(ToyTask):
    """Its first batch takes a hundred seconds, each update one."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.prepared = clock, False
        self.on_loss = lambda: self.wait(1.0)

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def collate(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        self.wait(0.0 if self.prepared else 100.0)
        self.prepared = True
        return super().collate(records)


def test_what_prepares_the_first_batch_is_not_in_the_rate(tmp_path: Path, monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr("vlplatform.engine.progress.time", SimpleNamespace(monotonic=clock, perf_counter=clock))
    fit(Prepared(clock), tmp_path, settings(eval_every=0, log_every=2))
    timings = [json.loads(line) for line in (tmp_path / "timings.jsonl").read_text().splitlines()]
    assert [line["samples_per_second"] for line in timings] == [4.0] * 6
    told = [line.split(" · ") for line in capsys.readouterr().out.splitlines() if "/12 · " in line]
    assert [line[3] for line in told] == ["4 samples/s"] * 12
    assert [line[5] for line in told] == [f"0:00:{12 - step:02d} left" for step in range(1, 13)]
