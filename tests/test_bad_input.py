"""Bad input of every kind: one line that names key or file and remedy, exit code 2, nothing half-written."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from vlplatform.cli.main import main
from vlplatform.hub import load

TINY = [
    "model.backbone=resnet18",
    "model.pretrained=false",
    "model.channels=32",
    "model.output_stride=16",
    "trainer=smoke",
]


def dataset(root: Path, pictures: int = 4, size: int = 32) -> Path:
    """A sound folder data set of two classes."""
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(pictures):
        Image.fromarray(rng.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(root / "images" / f"p{i}.png")
        Image.fromarray(rng.integers(0, 2, (size, size), dtype=np.uint8)).save(root / "masks" / f"p{i}.png")
    (root / "classes.txt").write_text("ground\nthing\n")
    names = [f"p{i}" for i in range(pictures)]
    (root / "train.txt").write_text("\n".join(names[:-2]) + "\n")
    (root / "val.txt").write_text("\n".join(names[-2:]) + "\n")
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A fresh sound data set."""
    return dataset(tmp_path / "data")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds one finished tiny run, ``run``, and its data set, ``data``."""
    base = tmp_path_factory.mktemp("trained")
    root = dataset(base / "data")
    code = main(["train", *on(root), *TINY, "trainer.steps=2", "trainer.save_every=1", f"out={base}", "name=run"])
    assert code == 0
    return base


def on(root: Path) -> list[str]:
    """The overrides that choose a folder data set."""
    return ["data=folder", f"data.root={root}", "data.augment.crop=[32,32]"]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must fail as a user's mistake; returns its one line."""

    def run(*arguments: str | Path) -> str:
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert code == 2, (code, lines)
        assert len(lines) == 1, lines
        assert len(lines[0]) < 700, lines[0]
        return lines[0]

    return run


SETTINGS = [
    (["task=segmentatoin"], ["task=segmentatoin", "segmentation"]),
    (["attn=bilatral"], ["attn=bilatral", "did you mean 'bilateral'"]),
    (["attn=nonlocal", "model=unet"], ["attn=nonlocal", "local", "local_bilateral"]),
    (["model=deeplab"], ["model=deeplab", "deeplabv3plus"]),
    (["data=camvd"], ["data=camvd", "camvid"]),
    (["+recipe=none_such"], ["recipe=none_such", "valid"]),
    (["trainer=huge"], ["trainer=huge", "smoke"]),
    (["trainer.stpes=3"], ["trainer.stpes", "did you mean 'steps'"]),
    (["trainer.steps=many"], ["trainer.steps", "whole number"]),
    (["trainer.steps=0"], ["steps=0"]),
    (["trainer.learning_rate=-1"], ["learning_rate=-1"]),
    (["trainer.optimizer=sdg"], ["trainer.optimizer=sdg", "did you mean 'sgd'"]),
    (["trainer.precision=fp8"], ["trainer.precision=fp8", "bf16"]),
    (["trainer.stages.trian.steps=3"], ["trian", "train"]),
    (["attn.headz=4"], ["attn.headz", "heads"]),
    (["attn.heads=four"], ["attn.heads", "whole number"]),
    (["attn.heads=7"], ["heads", "7"]),
    (["attn.kernel=4"], ["kernel", "4", "odd"]),
    (["attn.border=mirror"], ["attn.border=mirror", "valid"]),
    (["model.output_stride=5"], ["model.output_stride=5", "8"]),
    (["task.class_weights=[1,2]"], ["task.class_weights", "classes"]),
    (["task.ohem.threshold=3"], ["threshold=3"]),
    (["data.augment.crop=[0,5]"], ["crop", "at least 2"]),
    (["data.sise=96"], ["data.sise", "size"]),
    (["sead=1"], ["sead", "did you mean 'seed'"]),
    (["seed=-1"], ["seed=-1"]),
    (["name=../up"], ["name=../up"]),
    (["steps"], ["'steps'", "key=value"]),
    (["trainer.steps=[1"], ["trainer.steps=[1"]),
    (["model.pretrained=true", "model.weights=none.safetensors"], ["none.safetensors", "does not exist"]),
    (["model.pretrained=true", "model.weights=net.pth"], ["net.pth", "safetensors"]),
    (["data=camvid"], ["data.root"]),
    (["data=camvid", "data.root=nowhere"], ["nowhere"]),
]


@pytest.mark.parametrize(("overrides", "fragments"), SETTINGS, ids=[" ".join(o) for o, _ in SETTINGS])
def test_settings(overrides, fragments, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = [value for value in TINY if "unet" not in str(overrides) or "channels" not in value]
    scenes = [] if any(value.startswith("data=") for value in overrides) else ["data.train=4", "data.val=2"]
    line = refused("train", *tiny, *scenes, *overrides)
    for fragment in fragments:
        assert fragment in line
    left = {path.name for path in tmp_path.rglob("*.safetensors")}
    assert not left
    assert not list(tmp_path.rglob("metrics.json"))


def test_no_network_names_the_ways_out(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    line = refused("train", *TINY, "model.pretrained=true", f"out={tmp_path}", "data.train=4", "data.val=2")
    assert "model.weights=FILE" in line
    assert "model.pretrained=false" in line


def _remove(name: str):
    def spoil(root: Path) -> None:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return spoil


def _truncate(name: str):
    def spoil(root: Path) -> None:
        path = root / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return spoil


def _write(name: str, text: str):
    def spoil(root: Path) -> None:
        (root / name).write_text(text)

    return spoil


def _mask(shape: tuple[int, ...], value: int):
    def spoil(root: Path) -> None:
        Image.fromarray(np.full(shape, value, dtype=np.uint8)).save(root / "masks" / "p0.png")

    return spoil


def _empty(root: Path) -> None:
    for path in (root / "images").iterdir():
        path.unlink()


FILES = {
    "no classes": (_remove("classes.txt"), ["classes.txt"]),
    "no masks": (_remove("masks"), ["masks"]),
    "image without a mask": (_remove("masks/p0.png"), ["p0"]),
    "listed image missing": (_remove("images/p0.png"), ["p0"]),
    "empty folder": (_empty, ["images", "missing"]),
    "truncated image": (_truncate("images/p0.png"), ["p0.png"]),
    "truncated mask": (_truncate("masks/p0.png"), ["p0.png"]),
    "text instead of an image": (_write("images/p0.png", "hello"), ["p0.png"]),
    "mask of another size": (_mask((16, 32), 0), ["p0.png", "16", "32"]),
    "class id out of range": (_mask((32, 32), 7), ["7", "p0.png", "classes"]),
    "colours instead of ids": (_mask((32, 32, 3), 1), ["p0.png"]),
    "path that escapes": (_write("train.txt", "../../secret\n"), ["secret"]),
    "empty list": (_write("train.txt", "\n"), ["train.txt"]),
    "no class at all": (_write("classes.txt", "\n"), ["classes.txt"]),
}


@pytest.mark.parametrize("kind", FILES)
def test_files(kind, folder, refused, tmp_path):
    spoil, fragments = FILES[kind]
    spoil(folder)
    line = refused("train", *on(folder), *TINY, f"out={tmp_path / 'runs'}")
    for fragment in fragments:
        assert fragment in line
    assert not list(tmp_path.rglob("*.safetensors"))


def test_unknown_split(trained, refused):
    assert "test" in refused("eval", trained / "run", "--split", "test")
    assert "vla" in refused("eval", trained / "run", "--split", "vla")


def test_class_list_that_does_not_match(trained, folder, refused):
    (folder / "classes.txt").write_text("ground\nthing\nother\n")
    line = refused("eval", trained / "run", "data=folder", f"data.root={folder}")
    assert "classes" in line
    assert "2" in line
    assert "3" in line


def test_checkpoint_settings_stay(trained, refused):
    assert "attn.heads=2" in refused("eval", trained / "run", "attn.heads=2")


@pytest.fixture
def exported(trained, tmp_path) -> Path:
    """A copy of the exported model, to be spoilt."""
    return Path(shutil.copytree(trained / "run" / "best", tmp_path / "model"))


def test_missing_checkpoint(refused, tmp_path):
    assert "nothing" in refused("eval", tmp_path / "nothing")


@pytest.mark.parametrize("what", ["cut", "tampered", "config", "newer", "other task", "missing weights"])
def test_broken_checkpoint(what, exported, refused, trained):
    weights, config = exported / "model.safetensors", exported / "config.json"
    content = json.loads(config.read_text())
    if what == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif what == "tampered":
        tensors = load_file(weights)
        first = next(iter(tensors))
        save_file({**tensors, first: torch.zeros_like(tensors[first])}, weights)
    elif what == "config":
        config.write_text("{")
    elif what == "newer":
        config.write_text(json.dumps({**content, "format_version": 99}))
    elif what == "other task":
        config.write_text(json.dumps({**content, "task": "singing"}))
    else:
        weights.unlink()
    line = refused("predict", exported, trained / "data" / "images" / "p0.png")
    assert any(word in line for word in (weights.name, config.name, "singing", "model"))


def test_predict_inputs(trained, refused, tmp_path):
    assert "gone.jpg" in refused("predict", trained / "run", tmp_path / "gone.jpg")
    (tmp_path / "note.jpg").write_text("no picture")
    line = refused("predict", trained / "run", tmp_path / "note.jpg", "--out", tmp_path / "out")
    assert "note.jpg" in line
    assert not list((tmp_path / "out").glob("*"))


def test_device(trained, refused):
    assert "--device cuda:77" in refused("eval", trained / "run", "--device", "cuda:77")


@pytest.mark.parametrize("hub_id", ["a/b/c", "../x/y", "a b/c"])
def test_hub_ids(hub_id, refused, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert hub_id in refused("pull", hub_id)


def test_a_run_is_not_overwritten_by_accident(trained, refused):
    line = refused("train", *on(trained / "data"), *TINY, f"out={trained}", "name=run")
    assert "resume=auto" in line
    assert "overwrite=true" in line


def test_resume_with_other_settings(trained, refused):
    base = [
        "train",
        *on(trained / "data"),
        *TINY,
        "trainer.steps=2",
        "trainer.save_every=1",
        f"out={trained}",
        "name=run",
    ]
    assert "learning_rate" in refused(*base, "resume=auto", "trainer.learning_rate=0.5")
    assert "gone" in refused(*base, f"resume={trained / 'gone'}")


def test_no_space_left(refused, folder, tmp_path, monkeypatch):
    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "model.safetensors")

    monkeypatch.setattr("vlplatform.engine.checkpoint.write_synced", full)
    line = refused("train", *on(folder), *TINY, f"out={tmp_path / 'runs'}", "name=full")
    assert "space" in line
    assert not [p for p in (tmp_path / "runs" / "full" / "checkpoints").glob("*") if p.is_dir()]


def test_listing(refused):
    assert "--cost" in refused("list", "attn", "--socket", "local", "--cost", "256")
    assert "--socket" in refused("list", "attn", "--cost", "8x8x8")


def test_unknown_command(refused):
    assert "did you mean 'train'" in refused("trian")


def test_a_traceback_only_with_debug(capsys):
    assert main(["train", "attn=bilatral"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert main(["train", "attn=bilatral", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_output_folder_that_is_a_file(refused, folder, tmp_path):
    (tmp_path / "file").write_text("")
    line = refused("train", *on(folder), *TINY, f"out={tmp_path / 'file'}", "name=x")
    assert str(tmp_path / "file") in line


def test_a_folder_of_model_save_is_scored_when_data_are_named(trained, refused, tmp_path, capsys):
    load(trained / "run").save(tmp_path / "bare")  # type: ignore[operator]
    assert "data=NAME" in refused("eval", tmp_path / "bare")
    assert main(["eval", str(tmp_path / "bare"), "data=folder", f"data.root={trained / 'data'}", "--json"]) == 0
    assert "miou" in json.loads(capsys.readouterr().out)["values"]
