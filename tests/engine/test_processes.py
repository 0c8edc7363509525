"""Two processes: the single process's losses, uneven evaluation, a signal agreed upon."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from toy_task import ToyTask, children, fit, run_as_rank, settings

# 21 records in batches of 5 and shares of 2 and 3; 7 records to evaluate; uneven weights
CHANGES = {"batch_size": 5, "accumulate": 2, "log_every": 1}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_give_the_losses_of_one(tmp_path: Path) -> None:
    """Through ``accelerate launch --cpu``, which by itself starts one process only."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--cpu"]
    arguments = json.dumps({"folder": str(tmp_path / "two"), "changes": CHANGES})
    program = str(Path(__file__).with_name("toy_task.py"))
    done = subprocess.run([*command, program, arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "two/environment.json").read_text())["device"]["processes"] == 2
    fit(ToyTask(), tmp_path / "one", settings(**CHANGES))
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


def test_a_signal_to_one_stops_both_and_one_process_continues(tmp_path: Path) -> None:
    changes = {"steps": 100, "save_every": 100, "eval_every": 50}
    arguments = {"folder": str(tmp_path / "two"), "changes": changes, "kind": "norm", "pause": 0.05}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    context = children()
    both = [context.Process(target=run_as_rank, args=(rank, world, arguments)) for rank in range(2)]
    for process in both:
        process.start()
    while not (tmp_path / "two/timings.jsonl").exists() and all(process.is_alive() for process in both):
        time.sleep(0.02)
    time.sleep(0.2)
    os.kill(both[1].pid, signal.SIGTERM)
    for process in both:
        process.join(60)
        assert process.exitcode == 143
    said = (tmp_path / "two/said-0.txt").read_text()
    assert "Stopped by SIGTERM after update" in said
    assert "each process's own share of the batch" in said
    state = json.loads(next((tmp_path / "two/checkpoints").glob("step-*/state.json")).read_text())
    assert state["processes"] == 2
    assert not state["regular"]
    later, straight = ToyTask("norm"), ToyTask("norm")
    fit(later, tmp_path / "two", settings(**changes), resume="auto")
    fit(straight, tmp_path / "one", settings(**changes))
    assert later.seen == straight.seen[state["step"] :]
