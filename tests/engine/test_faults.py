"""What goes wrong is told in one line, and what was saved stays."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from toy_task import ToyTask, fit, same_run, settings

from vlplatform.engine import Diverged, Interrupted
from vlplatform.engine import files as engine_files
from vlplatform.errors import UserError
from vlplatform.settings import parse


def test_a_loss_that_is_not_finite_stops_before_the_step(tmp_path: Path) -> None:
    clean = ToyTask()
    fit(clean, tmp_path / "clean", settings())
    victim = clean.seen[8][2]  # first met in update 9 unless seen before
    update = next(i for i, ids in enumerate(clean.seen) if victim in ids) + 1
    task = ToyTask(poison=victim)
    with pytest.raises(Diverged) as stopped:
        fit(task, tmp_path / "a", settings(save_every=1, keep=1))
    text = str(stopped.value)
    assert f"at update {update} with learning rate" in text
    assert ", ".join(clean.seen[update - 1]) in text
    assert text.endswith(f"step-{update - 1:08d}." if update > 1 else "none.")
    assert "\n" not in text
    fit(ToyTask(), tmp_path / "a", settings(save_every=1, keep=1), resume="auto")
    fit(ToyTask(), tmp_path / "b", settings(save_every=1, keep=1))
    same_run(tmp_path / "a", tmp_path / "b")


def test_a_gradient_that_is_not_finite_stops_too(tmp_path: Path) -> None:
    task = ToyTask()
    huge = task.loss

    def loss(model: Any, batch: Any) -> Any:
        found = huge(model, batch)
        found.total.register_hook(lambda gradient: gradient * float("inf"))
        return found

    task.loss = loss  # type: ignore[method-assign]
    with pytest.raises(Diverged, match=r"gradient \(norm (nan|inf)\) is not finite at update 1 "):
        fit(task, tmp_path / "a", settings())


def test_a_full_disk_leaves_the_earlier_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = {"after": 2}
    write = engine_files.write_synced

    def refuse(path: Path, data: bytes) -> None:
        if path.name == "state.json" and (full.update(after=full["after"] - 1) or full["after"] < 0):
            path.write_bytes(data[:5])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    monkeypatch.setattr("vlplatform.engine.checkpoint.write_synced", refuse)
    with pytest.raises(UserError, match=r"^No space left on the disk of .*checkpoints.*resume=auto") as stopped:
        fit(ToyTask("dropout"), tmp_path / "a", settings())
    assert "\n" not in str(stopped.value)
    assert sorted(path.name for path in (tmp_path / "a/checkpoints").iterdir()) == ["step-00000003", "step-00000006"]
    monkeypatch.undo()
    fit(ToyTask("dropout"), tmp_path / "a", settings(), resume="auto")
    fit(ToyTask("dropout"), tmp_path / "b", settings())
    same_run(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_record_is_one_sentence(workers: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^Record r4 is truncated: replace it\.$"):
        fit(ToyTask(bad=4), tmp_path / "a", settings(workers=workers))


def test_no_records(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="split train of toy, needed for training, holds no records"):
        fit(ToyTask(size=0), tmp_path / "a", settings())


@pytest.mark.skipif(torch.cuda.is_available(), reason="fp16 is possible here")
def test_precision_the_device_has_not(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainer.precision=fp16 needs a CUDA device"):
        fit(ToyTask(), tmp_path / "a", settings(precision="fp16"))


def test_wandb_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(UserError, match="pip install wandb"):
        fit(ToyTask(), tmp_path / "a", settings(trackers=["wandb"]))


class Broken(ToyTask):
    """Its weights are missing."""

    def build_model(self, *, pretrained: bool = True) -> Any:
        raise UserError("The weight file is missing.")


@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_start_that_fails_leaves_the_folder_as_it_was(resume: str | None, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="weight file is missing"):
        fit(Broken(), tmp_path / "a", settings(), resume=resume)
    assert not (tmp_path / "a").exists()
    fit(ToyTask(), tmp_path / "a", settings(), resume=resume)
    before = (tmp_path / "a/metrics.json").read_bytes()
    with pytest.raises(UserError, match="weight file is missing"):
        fit(Broken(), tmp_path / "a", settings(), overwrite=True)
    assert (tmp_path / "a/metrics.json").read_bytes() == before


@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_run_without_a_line_or_checkpoint_may_be_begun_anew(resume: str | None, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="r4 is truncated"):
        fit(ToyTask(size=5, bad=4), tmp_path / "a", settings(batch_size=5, trackers=["tensorboard"]), resume=resume)
    assert (tmp_path / "a/settings.json").exists()
    fit(ToyTask(), tmp_path / "a", settings(learning_rate=0.01), resume=resume)


@pytest.mark.parametrize(("val", "told"), [(None, r"no val\.txt: add it"), (0, "holds no records")])
@pytest.mark.parametrize("changes", [{}, {"eval_every": 0, "average": 2}, {"stages": {"main": {"eval_every": 2}}}])
def test_a_missing_val_split_is_told_before_any_work(
    val: int | None, told: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    task = ToyTask(val=val)
    with pytest.raises(UserError, match=rf"split val .*trainer.average.*{told}"):
        fit(task, tmp_path / "a", settings(**{"eval_every": 0 if "stages" in changes else 5, **changes}))
    assert not task.seen
    assert not (tmp_path / "a").exists()
    fit(ToyTask(val=val), tmp_path / "b", settings(eval_every=0, steps=2))


class Described(ToyTask):
    """Its data set tells its splits; the one asked for is damaged."""

    data = SimpleNamespace(splits=("train", "val"))

    def records(self, split: str) -> Any:
        raise UserError("Line 7 of val.txt is too long: divide it.")


def test_a_fault_in_a_split_that_is_there_is_told_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^Line 7 of val\.txt is too long: divide it\.$"):
        fit(Described(), tmp_path / "a", settings())


def test_a_person_watching_sees_speed_memory_time_left_and_that_a_signal_came(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    task = ToyTask()
    task.on_loss = lambda: os.kill(os.getpid(), 15) if len(task.seen) == 20 else None
    with pytest.raises(Interrupted):
        fit(task, tmp_path / "a", settings(steps=40))
    said = capfd.readouterr()
    assert "SIGTERM: saving after this update; send it again to stop unsaved.\n" in said.err
    line = next(line for line in said.out.splitlines() if line.startswith("10/40 · "))
    assert re.search(r" · [\d.e+]+ samples/s · \d+ MiB · \d:\d\d:\d\d left$", line)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"momentum": 1.0}, "momentum=1.0 must be at least 0 and less than 1"),
        ({"learning_rate": -1}, "learning_rate=-1.0 must be greater than 0"),
        ({"warmup": 10, "steps": 10}, "warmup=10 leaves nothing of steps=10: lower it"),
        ({"milestones": [5, 5]}, "must be rising"),
        ({"average": 3}, "needs keep=3"),
        ({"average": 1, "ema": 0.9}, "switch one off"),
        ({"early_stop": 1, "eval_every": 0}, "set eval_every above 0"),
        ({"optimiser": "sgd"}, "did you mean 'optimizer'"),
        ({"schedule": "polly"}, "did you mean 'poly'"),
        ({"ema": 1}, "ema=1.0 must lie between 0 and 1"),
    ],
)
def test_settings_out_of_range(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=r"^trainer") as stopped:
        parse(type(settings()), values, "trainer")
    assert told in str(stopped.value)


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ({"mian": {}}, "trainer.stages.mian is not a stage of this task: did you mean 'main'"),
        ({"main": {"precision": "bf16"}}, "trainer.stages.main.precision holds for the whole run"),
        ({"main": {"steps": -1}}, "trainer.stages.main: steps=-1 must be at least 1"),
        ({"main": {"step": 1}}, "did you mean 'steps'"),
    ],
)
def test_stage_overrides_out_of_place(stages: dict[str, dict[str, Any]], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as stopped:
        fit(ToyTask(), tmp_path / "a", settings(stages=stages))
    assert told in str(stopped.value)
    assert not (tmp_path / "a").exists()
