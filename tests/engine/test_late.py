"""Scores that come late: training goes on meanwhile, and every repetition of a run writes the same."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from toy_task import ToyTask, fit, same_run, settings

from vlplatform.engine import Interrupted, evaluate
from vlplatform.engine.report.read import read_run


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    read = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in read if line["kind"] == kind]


def test_training_goes_on_meanwhile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, waited = ToyTask(late=True), list[int]()
    task.on_loss = lambda: waited.append(task.waited)
    final = fit(task, tmp_path, settings())
    assert waited == [0] * 10 + [1] * 2  # collected before the evaluations of updates 10 and 12, and at the end
    assert (task.waited, task.stopped) == (3, 0)
    assert [(line["of_step"], line["step"]) for line in lines(tmp_path, "late")] == [(5, 10), (10, 12), (12, 12)]
    assert all(set(line["values"]) == {"slow"} for line in lines(tmp_path, "late"))
    assert all("slow" not in line["values"] for line in lines(tmp_path, "eval"))
    assert final["best_step"] == 12
    assert set(final["values"]) == {"error", "count", "slow"}
    assert final["notes"] == ["it was slow"]
    assert "slow" in (tmp_path / "best/README.md").read_text()
    assert all("slow" in line["values"] for line in read_run(tmp_path).evals["val"])
    said = capsys.readouterr().out
    assert "slow will follow" in said
    assert "came later" in said


@pytest.mark.parametrize("changes", [{}, {"average": 2}, {"eval_every": 3}])
def test_interrupted_runs_end_as_whole_ones(changes: dict[str, Any], tmp_path: Path) -> None:
    fit(ToyTask("dropout", late=True), tmp_path / "whole", settings(**changes))
    for update in (4, 6, 11):
        task = ToyTask("dropout", late=True)
        done = max((int(path.name[5:]) for path in tmp_path.glob("cut/checkpoints/step-*")), default=0)

        def on_loss(task: ToyTask = task, last: int = update - done) -> None:
            if sum(map(bool, task.seen)) == last:
                os.kill(os.getpid(), signal.SIGTERM)

        task.on_loss = on_loss
        with pytest.raises(Interrupted):
            fit(task, tmp_path / "cut", settings(**changes), resume="auto")
        assert task.stopped == (update > 5 or "eval_every" in changes)  # what was on its way has ended
    fit(ToyTask("dropout", late=True), tmp_path / "cut", settings(**changes), resume="auto")
    same_run(tmp_path / "whole", tmp_path / "cut")
    (tmp_path / "cut/metrics.json").unlink()  # as if killed after the last update, before the end
    fit(ToyTask("dropout", late=True), tmp_path / "cut", settings(**changes), resume="auto")
    same_run(tmp_path / "whole", tmp_path / "cut")
    assert (tmp_path / "whole/best/README.md").read_bytes() == (tmp_path / "cut/best/README.md").read_bytes()


def test_an_evaluation_alone_waits() -> None:
    task = ToyTask(late=True)
    score = evaluate(task, task.build_model(), "val", batch_size=3, workers=0)
    assert set(score.values) == {"error", "count", "slow"}
    assert score.late is None
