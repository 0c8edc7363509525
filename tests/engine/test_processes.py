"""Two processes: the single process's losses, uneven evaluation, a signal agreed upon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from toy_task import ToyTask, fit, settings

# 21 records in batches of 5 and shares of 2 and 3; 7 records to evaluate; uneven weights
CHANGES = {"batch_size": 5, "accumulate": 2}


def launch(folder: Path, changes: dict[str, Any], kind: str = "plain", pause: float = 0.0) -> subprocess.Popen[str]:
    variables = {
        "TOY_KIND": kind,
        "TOY_SETTINGS": repr(changes),
        "TOY_FOLDER": str(folder),
        "TOY_PAUSE": str(pause),
        "OMP_NUM_THREADS": "1",
    }
    command = "-m accelerate.commands.launch --num_processes 2 --cpu --num_machines 1 --mixed_precision no"
    program = str(Path(__file__).with_name("toy_task.py"))
    return subprocess.Popen(
        [sys.executable, *command.split(), "--dynamo_backend", "no", program],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_give_the_losses_of_one(tmp_path: Path) -> None:
    process = launch(tmp_path / "two", CHANGES)
    fit(ToyTask(), tmp_path / "one", settings(**CHANGES))
    _, error = process.communicate(timeout=90)
    assert process.returncode == 0, error
    assert json.loads((tmp_path / "two/environment.json").read_text())["device"]["processes"] == 2
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert len(one) == len(two)
    for a, b in zip(one, two):
        if a["kind"] == "eval":
            assert b["values"]["count"] == 7
            assert a["values"]["error"] == pytest.approx(b["values"]["error"], abs=1e-5)
        else:
            assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
            assert a["half"] == pytest.approx(b["half"], abs=1e-5)
            assert a["grad_norm"] == pytest.approx(b["grad_norm"], abs=1e-4)


def test_a_signal_stops_both_and_one_process_continues(tmp_path: Path) -> None:
    process = launch(tmp_path / "two", {"steps": 300, "save_every": 300}, "norm", pause=0.02)
    while not (tmp_path / "two/timings.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGTERM)
    said, error = process.communicate(timeout=90)
    assert "Stopped by SIGTERM after update" in said, error
    assert "each process's own share of the batch" in said
    state = json.loads(next((tmp_path / "two/checkpoints").glob("step-*/state.json")).read_text())
    assert state["processes"] == 2
    assert not state["regular"]
    task = ToyTask("norm", pause=0.001)
    fit(task, tmp_path / "two", settings(steps=300, save_every=300), resume="auto")
    straight = ToyTask("norm")
    fit(straight, tmp_path / "one", settings(steps=300, save_every=300))
    assert task.seen == straight.seen[state["step"] :]
