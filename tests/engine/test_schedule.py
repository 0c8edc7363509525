"""Schedules against recorded ones and their own corners."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from vlplatform.engine import TrainerSettings, schedule


def rate(settings: TrainerSettings, step: int) -> float:
    return settings.learning_rate * schedule.factor(settings, step)


@pytest.mark.shared
def test_poly_as_mmengine(shared: Path) -> None:
    golden = shared / "reference/golden/poly_lr"
    config, tensors = json.loads(golden.with_suffix(".json").read_text())["config"], load_file(f"{golden}.safetensors")
    settings = TrainerSettings(
        steps=config["end"],
        learning_rate=config["base"],
        power=config["power"],
        min_lr=config["eta_min"],
        poly_reaches_min=True,
    )
    for step, expected in zip(tensors["iters"].tolist(), tensors["lr"].tolist()):
        assert rate(settings, step) == pytest.approx(expected, rel=1e-8, abs=1e-9)


@pytest.mark.shared
def test_inverse_sqrt_as_fairseq(shared: Path) -> None:
    golden = shared / "reference/golden/fairseq_inverse_sqrt"
    config, tensors = json.loads(golden.with_suffix(".json").read_text())["config"], load_file(f"{golden}.safetensors")
    settings = TrainerSettings(
        steps=10**6,
        learning_rate=config["lr"],
        schedule="inverse_sqrt",
        warmup=config["warmup_updates"],
        warmup_start=config["warmup_init_lr"] / config["lr"],
    )
    for step, expected in zip(tensors["updates"].tolist(), tensors["lr"].tolist()):
        assert rate(settings, step) == pytest.approx(expected, rel=1e-8, abs=1e-12)


def test_poly_of_the_textbook() -> None:
    settings = TrainerSettings(steps=100, learning_rate=1.0)
    assert [rate(settings, step) for step in (0, 25, 99)] == pytest.approx([1.0, 0.75**0.9, 0.01**0.9])
    reaching = TrainerSettings(steps=100, learning_rate=1.0, min_lr=0.1, poly_reaches_min=True)
    assert rate(reaching, 99) == pytest.approx(0.1)


def test_the_schedule_runs_over_what_the_warmup_leaves() -> None:
    settings = TrainerSettings(steps=110, learning_rate=2.0, schedule="cosine", warmup=10, warmup_start=0.1, min_lr=0.2)
    assert rate(settings, 0) == pytest.approx(0.2)
    assert rate(settings, 5) == pytest.approx(2 * 0.55)
    assert rate(settings, 10) == pytest.approx(2.0)
    assert rate(settings, 60) == pytest.approx(1.1)
    assert rate(settings, 109) == pytest.approx(0.2 + 0.9 * (1 + math.cos(math.pi * 0.99)))


def test_steps_and_constant() -> None:
    settings = TrainerSettings(
        steps=30, learning_rate=1.0, schedule="step", milestones=[10, 20], gamma=0.1, min_lr=0.05
    )
    assert [rate(settings, step) for step in (9, 10, 19, 20)] == pytest.approx([1.0, 0.1, 0.1, 0.05])
    assert schedule.factor(TrainerSettings(steps=30, schedule="constant"), 29) == 1.0


def test_one_update_has_the_base_rate() -> None:
    for name in ("poly", "cosine", "step", "inverse_sqrt", "constant"):
        assert schedule.factor(TrainerSettings(steps=1, schedule=name, poly_reaches_min=True), 0) == 1.0
