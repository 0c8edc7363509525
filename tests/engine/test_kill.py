"""Kill -9 at random moments, also inside a save: what is continued ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from toy_task import ToyTask, fit, same_run, settings

CHANGES = {"steps": 30, "ema": 0.9, "eval_every": 7, "save_every": 2}
BALLAST = 1_000_000  # 4 MB per model file: a good part of the run is spent in saves


def test_killed_anywhere(tmp_path: Path) -> None:
    fit(ToyTask("dropout", ballast=BALLAST), tmp_path / "whole", settings(**CHANGES))
    variables = {
        "TOY_KIND": "dropout",
        "TOY_SETTINGS": repr(CHANGES),
        "TOY_FOLDER": str(tmp_path / "cut"),
        "TOY_BALLAST": str(BALLAST),
        "TOY_PAUSE": "0.02",
    }
    chance, kills, inside = random.Random(0), 0, 0
    while True:
        process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("toy_task.py")], env=os.environ | variables
        )
        before = count(tmp_path / "cut")
        while process.poll() is None and count(tmp_path / "cut") == before:
            time.sleep(0.002)  # start-up is no random moment worth waiting for
        if kills == 6:
            assert process.wait() == 0
            break
        time.sleep(chance.uniform(0, 0.12))
        process.kill()
        process.wait()
        kills += 1
        inside += bool(list((tmp_path / "cut/checkpoints").glob(".tmp*")))
    same_run(tmp_path / "whole", tmp_path / "cut")
    assert not list((tmp_path / "cut/checkpoints").glob(".tmp*"))


def count(folder: Path) -> int:
    """A number that changes when the run in ``folder`` gets on."""
    path = folder / "timings.jsonl"
    return path.stat().st_mtime_ns if path.exists() else 0
