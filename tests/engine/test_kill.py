"""Kill -9 at random moments, also inside a save: what is continued ends as if nothing had happened."""

from __future__ import annotations

import random
import time
from pathlib import Path

from toy_task import ToyTask, children, fit, same_run, settings

CHANGES = {"steps": 40, "ema": 0.9, "eval_every": 7, "save_every": 2}
BALLAST = 1_000_000  # 4 MB per model file: a good part of the run is spent in saves
KILLS = 6


def test_killed_anywhere(tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    arguments = {"folder": str(cut), "changes": CHANGES, "kind": "dropout", "ballast": BALLAST, "pause": 0.02}
    chance, inside, context = random.Random(0), 0, children()
    for kill in range(KILLS):
        process = context.Process(target=run, args=(arguments,))
        before = progress(cut)
        process.start()
        while process.is_alive() and progress(cut) == before:
            time.sleep(0.002)  # start-up is no moment worth waiting for
        time.sleep(chance.uniform(0, 0.15))
        while kill % 2 and process.is_alive() and not saving(cut):
            time.sleep(0.001)
        process.kill()
        process.join()
        inside += saving(cut)
    assert not (cut / "metrics.json").exists(), "the run ended before it was killed often enough"
    process = context.Process(target=run, args=(arguments,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert inside, "no kill fell into a save"
    fit(ToyTask("dropout", ballast=BALLAST), tmp_path / "whole", settings(**CHANGES))
    same_run(tmp_path / "whole", cut)
    assert not list((cut / "checkpoints").glob(".tmp*"))


def run(arguments: dict[str, object]) -> None:
    from toy_task import run_alone

    run_alone(**arguments)  # type: ignore[arg-type]


def saving(folder: Path) -> bool:
    """Whether a checkpoint is being written, or was when its writer died."""
    return any((folder / "checkpoints").glob(".tmp*"))


def progress(folder: Path) -> int:
    """A number that changes when the run in ``folder`` gets on."""
    path = folder / "timings.jsonl"
    return path.stat().st_mtime_ns if path.exists() else 0
