"""The line of progress, what a task says before a training, and whose scores are shown at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toy_task import ToyTask, fit, settings

from vlplatform.engine import TrainerSettings
from vlplatform.engine.journal import Journal
from vlplatform.engine.progress import Display
from vlplatform.engine.report.text import scored
from vlplatform.engine.update import Gradients
from vlplatform.errors import UserError


@pytest.mark.parametrize(
    ("loss", "stage", "line"),
    [
        (2.34567, "", "reward 0.5000 · loss 2.3457 · lr 1.00e-03"),
        (-0.0, "second", "second · reward 0.5000 · loss 0.0000 · lr 1.00e-03"),
        (-0.0000123, "second", "second · reward 0.5000 · loss -1.2e-05 · lr 1.00e-03"),
    ],
)
def test_the_line_of_an_update(loss: float, stage: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.start(1, 0)
    journal = Journal(display, torch.device("cpu"), shown=("reward", "other"))
    journal.update(1, Gradients(loss, {"reward": 0.5, "hidden": 1.0}, 1.0), 1e-3, 4, stage=stage)
    assert f"1/1 · {line} · " in capsys.readouterr().out


class Telling(ToyTask):
    """It has something to say, or refuses."""

    def before_training(self, trainer: TrainerSettings) -> list[str]:
        if trainer.steps == 13:
            raise UserError("not thirteen.")
        return [f"{trainer.steps} are few"]


def test_a_task_speaks_before_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="not thirteen"):
        fit(Telling(), tmp_path / "run", settings(steps=13))
    assert not (tmp_path / "run").exists()
    fit(Telling(), tmp_path / "run", settings())
    assert capsys.readouterr().out.count("12 are few") == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "the best checkpoint on val (update 600 of 900, best by cider_d)"),
        ({"best_step": 900}, "the last checkpoint on val (update 900, best by cider_d)"),
        ({"model": "average", "best_step": 900}, "the mean of the last checkpoints on val (best by cider_d)"),
        ({"best_step": None}, ""),
    ],
)
def test_whose_scores_they_are(changes: dict[str, Any], words: str) -> None:
    final = {"split": "val", "best_metric": "cider_d", "best_step": 600, "step": 900, "model": "eval"}
    assert scored({**final, **changes}) == words


def test_the_report_says_whose_scores_they_are(tmp_path: Path) -> None:
    final = fit(ToyTask(scores=[1, 2, 3]), tmp_path, settings())
    assert final["best_step"] == 5
    assert "Of the best checkpoint on val (update 5 of 12, best by error)" in (tmp_path / "report.html").read_text()
