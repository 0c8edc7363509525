"""A run that is repeated, or interrupted anywhere and continued, gives the same bytes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from toy_task import ToyTask, fit, same_run, settings

from vlplatform.engine import Interrupted
from vlplatform.engine.checkpoint import load_checkpoint
from vlplatform.errors import UserError


def stop_at(task: ToyTask, losses: int, number: int = signal.SIGTERM) -> None:
    """Let a signal come while loss number ``losses`` is computed."""

    def on_loss() -> None:
        if sum(map(bool, task.seen)) == losses:
            os.kill(os.getpid(), number)

    task.on_loss = on_loss


VARIANTS = {
    "plain": ("plain", {}),
    "norm, average, clipping": ("norm", {"ema": 0.9, "clip_norm": 0.5}),
    "dropout, parts, adam": ("dropout", {"accumulate": 3, "optimizer": "adamw", "batch_size": 2, "warmup": 3}),
    "dropout, mean of checkpoints": ("dropout", {"average": 2, "schedule": "cosine"}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_interrupted_runs_end_as_whole_ones(variant: str, tmp_path: Path) -> None:
    kind, changes = VARIANTS[variant]
    parts = changes.get("accumulate", 1)
    fit(ToyTask(kind), tmp_path / "whole", settings(**changes))
    fit(ToyTask(kind), tmp_path / "again", settings(**changes))
    same_run(tmp_path / "whole", tmp_path / "again")
    # in the middle of an epoch, at a scheduled save, between the parts of an update, at an evaluation
    for update, part in ((4, 1), (6, 1), (8, parts), (10, parts)):
        task = ToyTask(kind)
        done = json.loads(state.read_text())["step"] if (state := newest_state(tmp_path / "cut")) else 0
        stop_at(task, (update - done - 1) * parts + part)
        with pytest.raises(Interrupted, match=f"SIGTERM after update {update} and saved.*resume=auto") as stopped:
            fit(task, tmp_path / "cut", settings(**changes), resume="auto")
        assert stopped.value.exit_code == 143
    fit(ToyTask(kind), tmp_path / "cut", settings(**changes), resume="auto")
    same_run(tmp_path / "whole", tmp_path / "cut")
    (tmp_path / "cut/metrics.json").unlink()  # as if killed after the last update, before the end
    fit(ToyTask(kind), tmp_path / "cut", settings(**changes), resume="auto")
    same_run(tmp_path / "whole", tmp_path / "cut")


def newest_state(folder: Path) -> Path | None:
    found = sorted(folder.glob("checkpoints/step-*/state.json"))
    return found[-1] if found else None


def test_workers_change_nothing(tmp_path: Path) -> None:
    fit(ToyTask("dropout"), tmp_path / "none", settings())
    task = ToyTask("dropout")
    stop_at(task, 7)
    with pytest.raises(Interrupted):
        fit(task, tmp_path / "two", settings(workers=2))
    fit(ToyTask("dropout"), tmp_path / "two", settings(workers=1), resume="auto")
    assert (tmp_path / "none/metrics.jsonl").read_bytes() == (tmp_path / "two/metrics.jsonl").read_bytes()
    assert (tmp_path / "none/best/model.safetensors").read_bytes() == (
        tmp_path / "two/best/model.safetensors"
    ).read_bytes()


def test_ctrl_c_has_its_own_code(tmp_path: Path) -> None:
    task = ToyTask()
    stop_at(task, 2, signal.SIGINT)
    with pytest.raises(Interrupted, match="Ctrl-C after update 2") as stopped:
        fit(task, tmp_path / "a", settings())
    assert stopped.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_stages_continue_in_the_second(tmp_path: Path) -> None:
    changes = {"stages": {"absolute": {"steps": 7, "learning_rate": 0.001, "optimizer": "adam", "warmup": 2}}}
    stages = ("main", "absolute")
    fit(ToyTask("dropout", stages=stages), tmp_path / "whole", settings(**changes))
    for update in (12, 15):
        task = ToyTask("dropout", stages=stages)
        done = json.loads(state.read_text())["step"] if (state := newest_state(tmp_path / "cut")) else 0
        stop_at(task, update - done)
        with pytest.raises(Interrupted):
            fit(task, tmp_path / "cut", settings(**changes), resume="auto")
    end = fit(ToyTask("dropout", stages=stages), tmp_path / "cut", settings(**changes), resume="auto")
    same_run(tmp_path / "whole", tmp_path / "cut")
    assert end["step"] == 19
    lines = [json.loads(line) for line in (tmp_path / "cut/metrics.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines if line["kind"] == "train"] == ["main"] * 12 + ["absolute"] * 7
    assert lines[-2]["lr"] < 0.001


def test_finished_run_is_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = fit(ToyTask(), tmp_path / "a", settings())
    task = ToyTask()
    assert fit(task, tmp_path / "a", settings(), resume="auto") == first
    assert not task.seen
    assert "a is finished." in capsys.readouterr().out


@pytest.mark.parametrize("schedule", ["constant", "step", "inverse_sqrt"])
def test_a_finished_run_may_grow_longer(tmp_path: Path, schedule: str) -> None:
    given = {"schedule": schedule, "milestones": [2]} if schedule == "step" else {"schedule": schedule}
    fit(ToyTask("dropout"), tmp_path / "whole", settings(steps=7, **given))
    fit(ToyTask("dropout"), tmp_path / "cut", settings(steps=4, **given))
    end = fit(ToyTask("dropout"), tmp_path / "cut", settings(steps=7, **given), resume="auto")
    assert end["step"] == 7
    of_both = [load_checkpoint(tmp_path / name / "checkpoints/step-00000007").tensors for name in ("whole", "cut")]
    torch.testing.assert_close(of_both[0]["model"], of_both[1]["model"], rtol=0, atol=0)
    assert json.loads((tmp_path / "cut/settings.json").read_text())["trainer"]["steps"] == 7
    assert fit(ToyTask("dropout"), tmp_path / "cut", settings(steps=7, **given), resume="auto") == end


def test_other_lengths_are_refused(tmp_path: Path) -> None:
    fit(ToyTask(), tmp_path / "poly", settings(steps=3))
    fit(ToyTask(), tmp_path / "constant", settings(steps=3, schedule="constant"))
    for name, changes in (
        ("poly", {"steps": 4}),
        ("constant", {"steps": 2, "schedule": "constant"}),
        ("constant", {"steps": 4, "schedule": "constant", "learning_rate": 0.5}),
    ):
        with pytest.raises(UserError, match=r"other settings .*was"):
            fit(ToyTask(), tmp_path / name, settings(**changes), resume="auto")


def test_runs_are_not_overwritten_unasked(tmp_path: Path) -> None:
    fit(ToyTask(), tmp_path / "a", settings(steps=3))
    (tmp_path / "a/notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"resume=auto.*overwrite=true.*name="):
        fit(ToyTask(), tmp_path / "a", settings(steps=3))
    fit(ToyTask(), tmp_path / "a", settings(steps=4), overwrite=True)
    assert (tmp_path / "a/notes.txt").read_text() == "mine"
    assert [path.name for path in sorted((tmp_path / "a/checkpoints").iterdir())] == ["step-00000003", "step-00000004"]


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    fit(ToyTask(), tmp_path / "a", settings())
    with pytest.raises(UserError, match=r"trainer.learning_rate was 0.02 and is now 0.5.*name="):
        fit(ToyTask(), tmp_path / "a", settings(learning_rate=0.5, workers=1), resume="auto")


def test_resume_from_a_named_checkpoint(tmp_path: Path) -> None:
    fit(ToyTask("dropout"), tmp_path / "whole", settings(keep=9))
    fit(ToyTask("dropout"), tmp_path / "cut", settings(keep=9))
    fit(ToyTask("dropout"), tmp_path / "cut", settings(keep=9), resume=str(tmp_path / "cut/checkpoints/step-00000006"))
    same_run(tmp_path / "whole", tmp_path / "cut")
    with pytest.raises(UserError, match=r"nowhere is no folder"):
        fit(ToyTask("dropout"), tmp_path / "cut", settings(keep=9), resume=str(tmp_path / "nowhere"))


def test_broken_checkpoints_are_named_and_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(ToyTask("dropout"), tmp_path / "whole", settings(keep=3))
    fit(ToyTask("dropout"), tmp_path / "cut", settings(keep=3))
    (tmp_path / "cut/metrics.json").unlink()
    model = tmp_path / "cut/checkpoints/step-00000012/model.safetensors"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(bytes(data))
    (tmp_path / "cut/checkpoints/step-00000009/optimizer.safetensors").unlink()
    (tmp_path / "cut/checkpoints/.tmp-step-00000015").mkdir()
    fit(ToyTask("dropout"), tmp_path / "cut", settings(keep=3), resume="auto")
    said = capsys.readouterr().out
    assert "step-00000012 is broken, model.safetensors does not match its checksum" in said
    assert "step-00000009 is broken, optimizer.safetensors is missing" in said
    assert not list((tmp_path / "cut/checkpoints").glob(".tmp*"))
    same_run(tmp_path / "whole", tmp_path / "cut")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("entry", ["best/mine.txt", "checkpoints/mine.txt", "tensorboard/mine", "report.html"])
@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_folder_that_is_no_run_loses_nothing(entry: str, resume: str | None, tmp_path: Path) -> None:
    (tmp_path / "a" / entry).parent.mkdir(parents=True)
    (tmp_path / "a" / entry).write_text("mine")
    with pytest.raises(UserError, match=rf"a holds '{entry.split('/')[0]}'.*name=.*overwrite=true"):
        fit(ToyTask(), tmp_path / "a", settings(), resume=resume)
    assert files(tmp_path / "a") == {entry: b"mine"}
    fit(ToyTask(), tmp_path / "a", settings(steps=1), resume=resume, overwrite=True)


def test_somebody_elses_settings_json_is_kept(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"editor": 1}')
    with pytest.raises(UserError, match="overwrite=true"):
        fit(ToyTask(), tmp_path, settings())
    assert files(tmp_path) == {"settings.json": b'{"editor": 1}'}


def cut_run(folder: Path) -> None:
    """A run stopped after its eighth update."""
    task = ToyTask("dropout")
    stop_at(task, 8)
    with pytest.raises(Interrupted):
        fit(task, folder, settings())


def test_checkpoints_make_up_for_lost_settings(tmp_path: Path) -> None:
    fit(ToyTask("dropout"), tmp_path / "whole", settings())
    cut_run(tmp_path / "cut")
    (tmp_path / "cut/settings.json").unlink()
    with pytest.raises(UserError, match=r"trainer.learning_rate was 0.02"):
        fit(ToyTask("dropout"), tmp_path / "cut", settings(learning_rate=0.5), resume="auto")
    fit(ToyTask("dropout"), tmp_path / "cut", settings(), resume="auto")
    same_run(tmp_path / "whole", tmp_path / "cut")
    assert (tmp_path / "cut/settings.json").read_bytes() == (tmp_path / "whole/settings.json").read_bytes()


def test_a_run_whose_checkpoints_are_all_broken_is_not_wiped(tmp_path: Path) -> None:
    cut_run(tmp_path / "a")
    for path in (tmp_path / "a/checkpoints").glob("step-*/model.safetensors"):
        path.unlink()
    before = files(tmp_path / "a")
    with pytest.raises(UserError, match=r"No checkpoint in .*model.safetensors is missing.*overwrite=true"):
        fit(ToyTask("dropout"), tmp_path / "a", settings(), resume="auto")
    assert files(tmp_path / "a") == before


@pytest.mark.parametrize("name", ["settings.json", "metrics.json"])
def test_a_truncated_file_is_one_sentence(name: str, tmp_path: Path) -> None:
    fit(ToyTask(), tmp_path / "a", settings())
    path = tmp_path / "a" / name
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match=rf"{name} cannot be read \(.*remove it") as stopped:
        fit(ToyTask(), tmp_path / "a", settings(), resume="auto")
    assert "\n" not in str(stopped.value)
    path.unlink()  # as it says
    fit(ToyTask(), tmp_path / "a", settings(), resume="auto")


def test_a_kill_before_the_report_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("vlplatform.engine.report.write_report", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(ToyTask(), tmp_path / "a", settings())
    assert not (tmp_path / "a/metrics.json").exists()
    end = fit(ToyTask(), tmp_path / "a", settings(), resume="auto")
    assert json.loads((tmp_path / "a/metrics.json").read_bytes()) == end
    assert "no final scores yet" not in (tmp_path / "a/report.html").read_text()


@pytest.mark.parametrize("fate", ["there", "lost", "another"])
def test_another_runs_checkpoint_brings_its_best_model(fate: str, tmp_path: Path) -> None:
    changes = {"keep": 9, "eval_every": 4}
    fit(ToyTask(scores=[1.0, 9.0, 0.5 if fate == "another" else 8.0]), tmp_path / "old", settings(**changes))
    best = tmp_path / "old/best"
    if fate == "lost":
        best.rename(tmp_path / "elsewhere")
    start = str(tmp_path / "old/checkpoints/step-00000006")
    end = fit(ToyTask(scores=[9.0, 8.0]), tmp_path / "new", settings(**changes), resume=start)
    assert end["values"]["error"] == (1.0 if fate == "there" else 8.0)
    assert (tmp_path / "new/report.html").exists()
    if fate == "there":
        assert files(tmp_path / "new/best") == files(best)
    with pytest.raises(UserError, match="new already holds a run"):
        fit(ToyTask(), tmp_path / "new", settings(**changes), resume=start)


def test_moved_data_and_a_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(root: str) -> dict[str, object]:
        return {"trainer": {}, "data": {"root": root, "cache": root}, "model": {"weights": root}}

    fit(ToyTask(), tmp_path / "a", settings(keep=9), resolved=resolved("old"))
    monkeypatch.setenv("HOME", str(tmp_path))
    start = "~/a/checkpoints/step-00000006"
    fit(ToyTask(), tmp_path / "a", settings(keep=9), resolved=resolved("new"), resume=start)
