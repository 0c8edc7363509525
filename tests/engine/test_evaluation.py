"""Evaluation: every record once, the mode of the model kept."""

from __future__ import annotations

import pytest
import torch
from toy_task import ToyTask

from vlplatform.engine import evaluate
from vlplatform.errors import UserError


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_any_batch_size_scores_alike(batch_size: int) -> None:
    task = ToyTask("norm")
    torch.manual_seed(0)
    model = task.build_model()
    score = evaluate(task, model, "val", batch_size=batch_size, workers=0)
    records = [task.records("val")[i] for i in range(7)]
    expected = (model.eval()(torch.stack([r["x"] for r in records])) - torch.stack([r["y"] for r in records])).abs()
    assert score.values["error"] == pytest.approx(expected.mean().item(), abs=1e-6)
    assert score.values["count"] == 7


def test_a_record_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ToyTask()
    monkeypatch.setattr(
        "vlplatform.engine.evaluation.gather", lambda mine: [mine, mine[:2]]
    )  # as if padding had repeated two
    assert evaluate(task, task.build_model(), "val", batch_size=4, workers=0).values["count"] == 7


def test_mode_and_generator_are_left_alone() -> None:
    task = ToyTask("dropout")
    model = task.build_model()
    state = torch.get_rng_state()
    evaluate(task, model.train(), "train", batch_size=4, workers=0)
    assert model.training
    evaluate(task, model.eval(), "train", batch_size=4, workers=0, precision="bf16")
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_an_empty_split_is_told() -> None:
    task = ToyTask(size=0)
    with pytest.raises(UserError, match="split train of toy holds no records"):
        evaluate(task, task.build_model(), "train", batch_size=4, workers=0)
