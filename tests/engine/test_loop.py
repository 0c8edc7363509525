"""What the loop does with its settings."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from toy_task import ToyTask, fit, settings

from vlplatform.engine.ema import MovingAverage, mean_of_states


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / f"checkpoints/step-{step:08d}/model.safetensors")


def test_accumulation_is_the_big_batch(tmp_path: Path) -> None:
    fit(ToyTask(), tmp_path / "big", settings(batch_size=6))
    fit(ToyTask(), tmp_path / "parts", settings(batch_size=2, accumulate=3))
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "big"), rel=1e-6)
    for name, value in weights(tmp_path / "big", 12).items():
        torch.testing.assert_close(weights(tmp_path / "parts", 12)[name], value, rtol=1e-5, atol=1e-6)


def test_a_data_set_smaller_than_a_batch(tmp_path: Path) -> None:
    task = ToyTask(size=3)
    fit(task, tmp_path / "a", settings(batch_size=7, steps=3))
    assert [len(ids) for ids in task.seen] == [7, 7, 7]
    flat = [name for ids in task.seen for name in ids]
    assert all(set(flat[i : i + 3]) == {"r0", "r1", "r2"} for i in range(0, 21, 3))


def test_training_learns(tmp_path: Path) -> None:
    for name, changes in (("fp32", {}), ("bf16", {"precision": "bf16"}), ("adam", {"optimizer": "adam"})):
        end = fit(
            ToyTask(),
            tmp_path / name,
            settings(steps=150, eval_every=50, save_every=150, **changes),
        )
        assert end["values"]["error"] < 0.6, name
        assert end["status"] == "finished"


def test_first_update_follows_the_rule(tmp_path: Path) -> None:
    """Clipped SGD by hand: the weights move by lr × gradient, scaled to the norm given."""
    fit(ToyTask(), tmp_path / "a", settings(steps=2, save_every=1, weight_decay=0.0, momentum=0.0, clip_norm=0.25))
    before, after = weights(tmp_path / "a", 1), weights(tmp_path / "a", 2)
    moved = torch.cat([(after[k] - before[k]).flatten() for k in after]).norm().item()
    rate = json.loads((tmp_path / "a/metrics.jsonl").read_text().splitlines()[1])["lr"]
    assert moved == pytest.approx(rate * 0.25, rel=1e-4)
    assert rate == pytest.approx(0.02 * 0.5**0.9)


def test_early_stop_counts_evaluations_without_gain(tmp_path: Path) -> None:
    task = ToyTask(scores=[5.0, 4.0, 4.0, math.nan, 3.0])
    end = fit(task, tmp_path / "a", settings(steps=100, eval_every=5, early_stop=2))
    assert end["step"] == 20
    assert (end["best_step"], end["values"]["error"]) == (15, 4.0)
    assert (tmp_path / "a/checkpoints/step-00000020").is_dir()
    lines = (tmp_path / "a/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["values"]["error"] is None


def test_best_is_what_scored_best(tmp_path: Path) -> None:
    fit(ToyTask(scores=[3.0, 1.0, 2.0]), tmp_path / "a", settings(eval_every=4, save_every=4, keep=5))
    best = load_file(tmp_path / "a/best/model.safetensors")
    assert all(torch.equal(best[k], v) for k, v in weights(tmp_path / "a", 8).items())


def test_of_equal_scores_the_last_is_exported(tmp_path: Path) -> None:
    task = ToyTask(scores=[3.0, 1.0, 1.0, 2.0])
    end = fit(task, tmp_path / "a", settings(steps=16, eval_every=4, save_every=4, keep=5))
    assert end["best_step"] == 12
    best = load_file(tmp_path / "a/best/model.safetensors")
    assert all(torch.equal(best[k], v) for k, v in weights(tmp_path / "a", 12).items())


def test_equal_scores_are_no_progress(tmp_path: Path) -> None:
    end = fit(ToyTask(scores=[1.0] * 9), tmp_path / "a", settings(steps=100, eval_every=5, early_stop=3))
    assert (end["step"], end["best_step"]) == (20, 20)


def test_without_evaluation_the_last_weights_are_exported(tmp_path: Path) -> None:
    end = fit(ToyTask(), tmp_path / "a", settings(eval_every=0))
    assert end["values"] == {}
    best = load_file(tmp_path / "a/best/model.safetensors")
    assert all(torch.equal(best[k], v) for k, v in weights(tmp_path / "a", 12).items())


def test_moving_average_follows_and_is_exported(tmp_path: Path) -> None:
    fit(ToyTask("norm"), tmp_path / "a", settings(ema=0.8, save_every=1, keep=12, eval_every=12))
    states = [weights(tmp_path / "a", step) for step in range(1, 13)]
    best = load_file(tmp_path / "a/best/model.safetensors")
    key, ema = "layers.0.weight", load_file(tmp_path / "a/checkpoints/step-00000001/ema.safetensors")["layers.0.weight"]
    for step, state in enumerate(states[1:], start=2):
        decay = min(0.8, (1 + step) / (10 + step))
        ema = decay * ema + (1 - decay) * state[key]
    torch.testing.assert_close(best[key], ema)
    assert not torch.equal(best[key], states[-1][key])
    assert torch.equal(best["layers.1.running_mean"], states[-1]["layers.1.running_mean"])


def test_mean_of_checkpoints(tmp_path: Path) -> None:
    end = fit(ToyTask(scores=[9.0, 8.0, 7.0, 1.0]), tmp_path / "a", settings(average=3, keep=3))
    assert end["model"] == "average"
    assert end["values"]["error"] == 1.0
    best = load_file(tmp_path / "a/best/model.safetensors")
    states = [weights(tmp_path / "a", step) for step in (6, 9, 12)]
    for name, value in best.items():
        torch.testing.assert_close(value, sum(state[name] for state in states) / 3)


def test_mean_keeps_counters_and_types() -> None:
    states: list[dict[str, Any]] = [
        {"w": torch.tensor([float(i)], dtype=torch.float16), "n": torch.tensor(i)} for i in (1, 2)
    ]
    mean = mean_of_states(states)
    assert mean["w"].dtype == torch.float16
    assert (mean["w"].item(), mean["n"].item()) == (1.5, 2)
    with pytest.raises(ValueError, match="nothing to average"):
        mean_of_states([])


def test_average_is_a_model_of_its_own() -> None:
    model = torch.nn.Linear(2, 2)
    average = MovingAverage(model, 0.5)
    assert not any(p.requires_grad for p in average.model.parameters())
    assert average.model.weight.data_ptr() != model.weight.data_ptr()


def test_keeps_the_last_checkpoints(tmp_path: Path) -> None:
    fit(ToyTask(), tmp_path / "a", settings(keep=2, save_every=5))
    assert [p.name for p in sorted((tmp_path / "a/checkpoints").iterdir())] == ["step-00000010", "step-00000012"]


def test_channels_last_and_deterministic_change_nothing_here(tmp_path: Path) -> None:
    fit(ToyTask(), tmp_path / "a", settings())
    fit(ToyTask(), tmp_path / "b", settings(channels_last=True, deterministic=True))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert not torch.are_deterministic_algorithms_enabled()


def test_lines_hold_no_time_and_environment_no_path(tmp_path: Path) -> None:
    fit(ToyTask(), tmp_path / "a", settings(log_every=5))
    lines = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [5, 10, 12]
    assert set(lines[0]) == {"kind", "step", "epoch", "loss", "half", "lr", "grad_norm"}
    timing = json.loads((tmp_path / "a/timings.jsonl").read_text().splitlines()[0])
    assert timing["samples_per_second"] > 0
    assert timing["memory_mib"] > 10
    assert str(Path.home()) not in (tmp_path / "a/environment.json").read_text()


def test_output_is_sparse_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(ToyTask(), tmp_path / "a", settings(steps=200, eval_every=100, save_every=200))
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("toy · Net · 0.00 M parameters · ")
    assert said[0].endswith(" · fp32 · batch 4 · 200 updates")
    assert len(said) == 1 + 20 + 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path: Path) -> None:
    fit(ToyTask(), tmp_path / "a", settings(trackers=["tensorboard"], steps=3))
    assert list((tmp_path / "a/tensorboard").glob("events.*"))
