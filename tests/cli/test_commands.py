"""Commands as typed: one line per mistake, what `vlp list` tells, and what `vlp eval` makes of a saved model."""

from __future__ import annotations

import argparse
import json
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch import nn

from vlplatform import attention
from vlplatform.attention import Mechanism
from vlplatform.cli import checkpoint, compose, doctor, train
from vlplatform.cli.eval import writable
from vlplatform.cli.main import COMMANDS, main, parser_of
from vlplatform.errors import UserError, nearest

SAVED: dict[str, Any] = {
    "task": "segmentation",
    "model": {"attn": {"name": "conv", "kernel": 3}, "model": {"name": "deeplabv3plus", "channels": 32}},
    "sections": {
        "task": {"name": "segmentation", "class_weights": "none", "test": {"flip": False, "scales": [1.0]}},
        "attn": {"name": "conv"},
        "model": {"name": "deeplabv3plus"},
        "data": {"name": "camvid", "root": "R1", "scale": 1.0, "augment": {"crop": [64, 96]}},
    },
}


@pytest.mark.parametrize("overrides", [["data=camvid", "data.root=R2"], ["data.root=R2"]])
def test_a_checkpoint_keeps_the_data_settings_it_was_trained_with(overrides):
    data = checkpoint.sections_with(SAVED, overrides)["data"]
    assert data == {**SAVED["sections"]["data"], "root": "R2"}


def test_overrides_win_over_the_saved_sections():
    got = checkpoint.sections_with(SAVED, ["data=camvid", "data.scale=0.25", "data.augment.crop=[8,8]"])
    assert got["data"]["scale"] == 0.25
    assert got["data"]["augment"]["crop"] == [8, 8]
    got = checkpoint.sections_with(SAVED, ["task.test.flip=true"])
    assert got["task"] == {**SAVED["sections"]["task"], "test": {"flip": True, "scales": [1.0]}}
    assert got["data"] == SAVED["sections"]["data"]


def test_another_reader_begins_with_its_own_defaults():
    data = checkpoint.sections_with(SAVED, ["data=folder", "data.root=R2"])["data"]
    assert data == {"name": "folder", "root": "R2", "augment": {"crop": [512, 512]}}


def test_a_described_data_set_brings_its_classes_to_the_saved_reader():
    saved = {**SAVED, "sections": {**SAVED["sections"], "data": {"name": "folder", "root": "R1", "scale": 0.5}}}
    data = checkpoint.sections_with(saved, ["data=celebamask"])["data"]
    assert (data["root"], data["scale"], len(data["classes"])) == ("R1", 0.5, 19)


def test_a_model_without_sections():
    bare = {**SAVED, "sections": {}}
    with pytest.raises(UserError, match="data=NAME"):
        checkpoint.sections_with(bare, ["data.root=R"])
    got = checkpoint.sections_with(bare, ["data=camvid", "data.root=R"])
    assert got["attn"] == SAVED["model"]["attn"]
    assert got["model"] == SAVED["model"]["model"]
    assert got["task"]["name"] == "segmentation"
    assert got["data"]["root"] == "R"


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    """The lines on stderr of a command that must end with exit code 2."""
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == 2
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["list", "atn"], ["atn", "did you mean 'attn'"]),
        (["list", "attn", "--socket", "foo"], ["--socket foo", "local"]),
        (["list", "data", "attn.heads=2"], ["attn.heads=2", "vlp list attn"]),
        (["eval"], ["CHECKPOINT"]),
        (["eval", "x", "--batch-size", "0"], ["--batch-size 0", "from 1"]),
        (["eval", "x", "--workers", "-1"], ["--workers -1", "from 0"]),
        (["eval", "x", "--workers", "two"], ["--workers two", "from 0"]),
        (["eval", "x", "--splt", "val"], ["--splt", "did you mean '--split'"]),
        (["train", "--foo"], ["--foo", "KEY=VALUE"]),
        (["train", "attn.name=5"], ["attn.name=5", "bilateral"]),
        (["train", "model.name=null"], ["model.name=null", "unet"]),
        (["train", "data.name=3"], ["data.name=3", "camvid"]),
        (["train", "~data=scenes"], ["~data", "data=NAME"]),
        (["train", "seed=abc"], ["error: seed='abc'", "whole number"]),
        (["train", "steps=5"], ["error: steps is not a setting", "trainer.steps=5"]),
        (["train", "--steps", "5"], ["--steps", "without dashes, trainer.steps=5"]),
        (["train", "--steps=5"], ["--steps", "without dashes, trainer.steps=5"]),
        (["train", "--trainer.steps", "5"], ["--trainer.steps", "without dashes, trainer.steps=5"]),
        (["train", "--batch-size", "5"], ["--batch-size", "trainer.batch_size=5"]),
        (["train", "--attn", "bilateral"], ["--attn", "without dashes, attn=bilateral"]),
        (["train", "--seed"], ["--seed", "without dashes, seed=VALUE"]),
        (["train", "attn=crisscross", "model=unet"], ["does not fit the local socket", "model=context, or model=auto"]),
        (
            ["train", "attn=conv", "model=context"],
            ["context socket", "model=deeplabv3plus", "model=unet", "model=auto"],
        ),
        (
            ["train", "task=translation", "trainer.steps=40"],
            [
                "warmup=200 leaves nothing of steps=40",
                "configs/recipe/translation_scenes.yaml sets warmup",
                "trainer.warmup=…",
            ],
        ),
        (["list"], ["attn, data, metrics, models, recipes, tasks"]),
        (["list", "--json"], ["attn, data, metrics, models, recipes, tasks"]),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(arguments, fragments, capsys):
    lines = lines_of(capsys, *arguments)
    assert len(lines) == 1
    assert all(fragment in lines[0] for fragment in fragments), lines
    assert "run.seed" not in lines[0]


def test_eval_without_a_checkpoint_asks_for_nothing_else(capsys):
    assert "KEY=VALUE" not in lines_of(capsys, "eval")[0]


def test_nearest_takes_what_is_no_text():
    assert nearest(None, ["a"]) == nearest(5, ["a"]) == "valid: a"


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied", "place"), FileExistsError(17, "E", "place")]
)
def test_a_refusal_of_the_system_is_one_line(error, capsys, monkeypatch):
    def refuse(_: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr("vlplatform.cli.pull.run", refuse)
    (line,) = lines_of(capsys, "pull", "a/b")
    assert "place" in line
    assert error.strerror in line
    assert "Traceback" in "\n".join(lines_of(capsys, "pull", "a/b", "--debug"))


def test_the_file_of_scores_is_checked_before_the_work(tmp_path, capsys):
    assert writable(tmp_path / "scores.json") == tmp_path / "scores.json"
    assert not list(tmp_path.iterdir())
    for out in (tmp_path, tmp_path / "none" / "x.json"):
        (line,) = lines_of(capsys, "eval", "no-such-checkpoint", "--out", out)
        assert f"--out {out}" in line


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    seen: list[Path] = []

    def stop(*arguments: Any, **_: object) -> dict[str, Any]:
        seen.append(arguments[2])
        return {}

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("vlplatform.engine.train", stop)
    overrides = ["out=~/runs", "name=x", "data.train=2", "data.val=2", "model.pretrained=false"]
    assert train.run(parser_of("train").read(overrides)) == 0
    assert seen == [tmp_path / "runs" / "x"]


def test_every_rank_tells_its_own_mistake(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    (line,) = lines_of(capsys, "train", "attn=bilatral")
    assert line.startswith("[rank 3] error: attn=bilatral")


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    """The rows of ``vlp list … --json`` by name."""
    capsys.readouterr()
    assert main(["list", *arguments, "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


class Speechless(nn.Module):
    """A mechanism that does not count."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(dim, dim, 1)


def test_one_mechanism_without_costs_does_not_hide_the_others(capsys, monkeypatch):
    known = dict(attention.catalogue())
    mute = Mechanism(name="mute", build=Speechless, sockets=("local",), summary="s", paper="p")
    monkeypatch.setattr(attention, "catalogue", lambda: {**known, "mute": mute})
    rows = listed(capsys, "attn", "--socket", "local", "--cost", "8x8x8")
    assert (rows["mute"]["params"], rows["mute"]["macs"]) == (72, None)
    assert "macs" in rows["mute"]["not_counted"]
    assert rows["conv"]["macs"] > 0
    assert main(["list", "attn", "--socket", "local", "--cost", "3x8x8"]) == 0
    shown = capsys.readouterr().out
    assert "–" in shown
    assert "mute: it does not count" in shown


def test_the_table_of_mechanisms_names_families(capsys):
    capsys.readouterr()
    assert main(["list", "attn"]) == 0
    shown = capsys.readouterr().out
    (row,) = [line for line in shown.splitlines() if line.startswith("│ local_bilateral ")]
    assert "local (bilateral)" in row
    (line,) = [line for line in shown.splitlines() if line.startswith("attn=bilateral is ")]
    assert "local_bilateral in the local socket" in line
    assert "bilateral_cc in the context socket" in line


def test_costs_are_readable_for_people_and_exact_for_programs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    size = ["attn", "--socket", "local", "--cost", "256x96x96"]
    exact = listed(capsys, *size)
    assert exact["local_bilateral"]["macs"] == 2_628_255_744
    assert main(["list", *size]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert len(rows) == len(exact)  # no row is wrapped
    assert any("local_bilateral " in row and "283,864 │ 2.63 G" in row for row in rows)


def test_doctor_tells_what_is_optional_from_what_is_wrong(capsys, monkeypatch):
    def only(name: str) -> str:
        if name in ("wandb", "timm"):
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(doctor, "version", only)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    capsys.readouterr()
    assert main(["doctor"]) == 2
    rows = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["torch"].startswith("ok ")
    assert rows["timm"].startswith("BAD ")
    assert "pip install timm" in rows["timm"]
    assert rows["wandb"].startswith("– ")
    assert rows["java"].startswith("– ")
    assert "captions" in rows["java"]
    assert main(["doctor", "--json"]) == 2
    found = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert (found["wandb"]["ok"], found["wandb"]["state"]) == (True, "absent")
    assert (found["timm"]["ok"], found["timm"]["state"]) == (False, "bad")


def test_doctor_finds_a_missing_test_split_no_fault(tmp_path, capsys):
    for i in range(2):
        for part in ("images", "masks"):
            (tmp_path / part).mkdir(exist_ok=True)
            Image.new("RGB" if part == "images" else "L", (8, 6)).save(tmp_path / part / f"p{i}.png")
    (tmp_path / "classes.txt").write_text("ground\nthing\n")
    capsys.readouterr()
    main(["doctor", "data=folder", f"data.root={tmp_path}"])
    rows = [line for line in capsys.readouterr().out.splitlines() if " data " in line]
    assert [row[:4].strip() for row in rows] == ["ok", "ok", "–"]
    assert "no split 'test'" in rows[2]


def plain_help(text: str) -> bool:
    """Whether a help text has no marks of Markdown or reStructuredText, and no type in Python's words."""
    return not re.search(r"\*\*|`|:\w+:|\bdict\b|\btuple\b", text)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_is_plain_text(command):
    assert plain_help(parser_of(command).format_help())


def test_help_teaches_the_settings_of_what_is_chosen_beside_it(capsys):
    with pytest.raises(SystemExit):
        main(["train", "task=translation", "data=multi30k", "attn=nsa+gsa", "trainer.warmup=17", "--help"])
    shown = capsys.readouterr().out
    assert plain_help(shown)
    for line in (
        "task.decode.beam=5  (whole number)",
        "task.text.size=10000  (whole number)",  # of the data set's recipe, in place of the class's own
        "trainer.warmup=17  (whole number)",
        "data.test=test_2016_flickr  (text)",
        "of attn=nsa+gsa:",
        "attn.norm=instance  (one of: instance, layer, batch)",
    ):
        assert line in shown
    assert "of model=" not in shown
    with pytest.raises(SystemExit):
        main(["train", "model=xlan", "--help"])
    assert "of model=xlan: nothing that task=segmentation tells" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["train", "--help", "name=50%", "attn=bilateral", "attn.window=5"])
    shown = capsys.readouterr().out
    assert "  name=50%  (text or null)" in shown
    with pytest.raises(SystemExit):
        main(["train", "attn=nsa+bilateral", "--help"])  # a family's name in a sum
    assert "of attn=nsa+bilateral:" in capsys.readouterr().out
    assert "of attn=bilateral_sa (socket token):" in shown
    assert "attn.window=5  " in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["task=transaltion"], "did you mean 'translation'"),
        (["trainer.stesp=5"], "trainer.stesp is not a setting"),
        (["task=translation", "task.text=5"], "task.text=5 must be a group of settings"),
        (["task=translation", "task.beam=5"], "task.beam is not a setting of task=translation"),
        (["task=segmentation", "attn=bilateral", "attn.widnow=5"], "did you mean 'window'"),
        (["~task.name", "task=translation"], "task.name"),
        (["attn=nsa+conv"], "attn=conv does not fit the token socket"),
    ],
)
def test_help_refuses_what_a_run_would_refuse(words, told, capsys):
    assert main(["train", *words, "--help"]) == 2
    assert told in capsys.readouterr().err


def test_help_names_where_other_defaults_and_other_files_come_from():
    shown = parser_of("train").format_help()
    assert "configs/base/TASK.yaml" in shown
    assert "configs/recipe/TASK_DATA.yaml" in shown
    assert "runs/NAME/settings.json" in shown
    assert "NAME.translations.json" in " ".join(parser_of("eval").format_help().split())


@pytest.mark.parametrize("what", ["data", "models", "tasks"])
def test_every_setting_is_explained(what, capsys):
    def check(described: dict[str, Any], where: str) -> None:
        for name, entry in described.items():
            assert entry.get("help"), f"{where}.{name}"
            assert plain_help(entry["help"] + entry["type"]), f"{where}.{name}"
            check(entry.get("settings", {}), f"{where}.{name}")

    for name, row in listed(capsys, what).items():
        check(row["settings"] or {}, name)


def test_costs_with_settings(capsys):
    size = ["attn", "--socket", "local", "--cost", "16x8x8"]
    before, after = listed(capsys, *size), listed(capsys, *size, "attn.kernel=7")
    assert after["conv"]["macs"] > before["conv"]["macs"]
    rows = listed(capsys, *size, "attn.heads=2")
    assert rows["conv"]["params"] is None
    assert "heads" in rows["conv"]["not_counted"]
    assert rows["local_bilateral"]["params"] > 0
    assert "did you mean 'heads'" in lines_of(capsys, "list", *size, "attn.headz=2")[0]
    assert "whole number" in lines_of(capsys, "list", *size, "attn.heads=four")[0]


def test_lists_tell_what_can_be_set(capsys):
    data = listed(capsys, "data")
    assert data["camvid"]["values"] == {"root": None, "augment": {"crop": [352, 352]}}
    assert set(compose.options("data")) == set(data)
    assert data["celebamask"]["task"] == "segmentation"
    assert "CelebAMask" in data["celebamask"]["summary"]
    assert len(data["celebamask"]["values"]["classes"]) == 19
    assert "auto" in listed(capsys, "models")
    assert "settings" in listed(capsys, "tasks")["segmentation"]


def test_settings_of_a_plugin_that_gives_its_classes(capsys, monkeypatch):
    from vlp_segmentation import plugin

    monkeypatch.setattr(type(plugin), "settings_class", lambda *_: compose.RunSettings, raising=False)
    for what, name in (("tasks", "segmentation"), ("data", "celebamask"), ("models", "unet")):
        seed = listed(capsys, what)[name]["settings"]["seed"]
        assert seed["default"] == 0
        assert "Seed of weights" in seed["help"]
