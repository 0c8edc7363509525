"""Models into folders and back: what is written, what is checked, and that nothing is ever half there."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy import Toy

import vlplatform
from vlplatform.hub import atomic, export, loading, save_model
from vlplatform.hub import saving as saving_module
from vlplatform.hub.atomic import written_aside

Refused = Callable[..., str]


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def exchange_weights(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Other weights, with a config.json that vouches for them."""
    save_file(tensors, folder / "model.safetensors")
    change_config(folder, sha256=export.sha256_of(folder / "model.safetensors"))


@pytest.fixture
def saved(model: Toy, tmp_path: Path) -> Path:
    return model.save(tmp_path / "saved")


def test_a_loaded_model_gives_equal_outputs(model: Toy, saved: Path, x: Tensor):
    loaded = vlplatform.load(saved)
    assert isinstance(loaded, Toy)
    assert not loaded.training
    assert torch.equal(loaded(x), model(x))
    assert loaded.first.weight is loaded.second.weight
    assert loaded.loaded_config["model"] == {"width": 4, "bias": True}
    again = loaded.save(saved.with_name("again"))
    assert (again / "model.safetensors").read_bytes() == (saved / "model.safetensors").read_bytes()


def test_the_files(model: Toy, tmp_path: Path):
    folder = save_model(model, tmp_path / "deep" / "er", task="toy", sections={"attn": {"name": "conv"}})
    assert sorted(p.name for p in folder.iterdir()) == sorted(export.FILES)
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("sha256") == export.sha256_of(folder / "model.safetensors")
    assert config == {
        "format": "vlplatform",
        "format_version": 1,
        "vlplatform": vlplatform.__version__,
        "task": "toy",
        "model": {"width": 4, "bias": True},
        "sections": {"attn": {"name": "conv"}},
    }
    stored = load_file(folder / "model.safetensors")
    assert len({"first.weight", "second.weight"} & set(stored)) == 1  # tied weights once


def test_transposed_and_strided_weights(model: Toy, tmp_path: Path):
    model.first.weight = model.second.weight = torch.nn.Parameter(torch.randn(3, 4).t())
    both = torch.randn(8)
    model.norm.running_mean, model.norm.running_var = both[::2], both[1::2].square()
    loaded = vlplatform.load(model.save(tmp_path / "m")).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded[name], tensor), name


def test_the_model_card(model: Toy, tmp_path: Path):
    card = {
        "scores": {"miou": 0.81234, "nothing": float("nan"), "iou": {"road | path": 0.9}},
        "data": {"name": "CamVid", "licence": "research only", "classes": ["road", "sky"]},
        "licence": "apache-2.0",
        "citation": ["@book{one,\n title={One}}", "@book{two}"],
        "settings": {"lr": 0.01},
        "budget": {"updates": 900},
    }
    text = (model.save(tmp_path / "m", card) / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    meta = yaml.safe_load(front)
    assert meta["library_name"] == "vlplatform"
    assert meta["tags"] == ["vlplatform", "toy"]
    assert meta["license"] == "apache-2.0"
    assert meta["metrics"] == ["miou"]
    assert meta["model-index"][0]["results"][0]["metrics"] == [{"type": "miou", "value": 0.81234}]
    for line in (
        "| miou | 0.8123 |",
        "| nothing | – |",
        "| iou: road \\| path | 0.9000 |",
        "- name: CamVid",
        "- licence: research only",
        "- classes: road, sky",
        '  "lr": 0.01',
        "- updates: 900",
        "@book{one,",
        "@book{two}",
        'model = vlplatform.load("this folder, or its hub id")  # in evaluation mode, on the CPU',
    ):
        assert line in body.splitlines(), line
    text = (model.save(tmp_path / "m", {"licence": "Ask: us\n# first"}) / "README.md").read_text()
    meta = yaml.safe_load(text.split("---\n")[1])
    assert (meta["license"], meta["license_name"]) == ("other", "Ask: us\n# first")
    assert '"width": 4' in text


def test_saving_again_replaces_and_a_failure_changes_nothing(model: Toy, saved: Path, monkeypatch, x: Tensor):
    with torch.no_grad():
        model.first.bias.add_(1)
    model.save(saved)
    wanted = model(x)
    assert torch.equal(vlplatform.load(saved)(x), wanted)

    def full(*args: object, **kwargs: object) -> None:
        Path(str(args[1])).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving_module, "save_file", full)
    for folder in (saved, saved.with_name("new")):
        with pytest.raises(OSError, match="No space"):
            model.save(folder)
    assert torch.equal(vlplatform.load(saved)(x), wanted)
    assert [p.name for p in saved.parent.iterdir() if p.name.startswith(("saved", "new", "."))] == ["saved"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_in_one_step_or_put_back(tmp_path: Path, monkeypatch, exchange: bool):
    if not exchange:
        monkeypatch.setattr("vlplatform.hub.atomic._exchange", lambda a, b: False)
    leftover = tmp_path / ".it.0123.part"
    leftover.mkdir()
    for text in ("one", "two"):
        with written_aside(tmp_path / "it") as aside:
            (aside / "file").write_text(text)
        assert (tmp_path / "it" / "file").read_text() == text
    if not exchange:
        rename = Path.rename

        def only_away(self: Path, target: Path) -> Path:
            if target == tmp_path / "it" and "old" not in self.name:
                raise OSError("no")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", only_away)
        with pytest.raises(OSError, match="no"), written_aside(tmp_path / "it") as aside:
            (aside / "file").write_text("three")
        assert (tmp_path / "it" / "file").read_text() == "two"
    assert [p.name for p in tmp_path.iterdir() if "it" in p.name] == ["it"]


def test_settings_that_json_cannot_hold_stop_before_anything_is_written(model: Toy, tmp_path: Path, monkeypatch):
    for bad in ({"dtype": torch.float32}, {"scale": float("inf")}):
        monkeypatch.setattr(model, "settings", lambda bad=bad: bad)
        with pytest.raises((TypeError, ValueError)):
            model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_saving_never_deletes_other_files(model: Toy, tmp_path: Path, refused: Refused):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    assert "thesis.tex" in refused(model.save, tmp_path / "home")
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years of work"
    assert "is a file" in refused(model.save, tmp_path / "home" / "thesis.tex")


def test_a_run_stands_for_its_best(saved: Path, tmp_path: Path, x: Tensor, model: Toy, refused: Refused):
    run = tmp_path / "run"
    run.mkdir()
    assert "no exported model" in refused(vlplatform.load, run)
    saved.rename(run / "best")
    assert torch.equal(vlplatform.load(str(run))(x), model(x))
    (run / "best" / "model.safetensors").unlink()
    assert "has no model.safetensors" in refused(vlplatform.load, run)


def test_sources_that_are_nothing(saved: Path, tmp_path: Path, monkeypatch, refused: Refused):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "pull", lambda *_, **__: pytest.fail("a path went to the hub"))
    for path in ("runs/nothing", "./nothing", "../nothing/here", "~/nothing", "/nothing", "no/such/folder"):
        assert f"no such folder: {path}" in refused(vlplatform.load, path)
    assert f"no such folder: {tmp_path / 'nothing'}" in refused(vlplatform.load, tmp_path / "nothing")
    assert "neither a folder here nor a hub id" in refused(vlplatform.load, "nothing")
    assert "is not a folder" in refused(vlplatform.load, saved / "config.json")
    assert "has no revision" in refused(vlplatform.load, saved, revision="v1")
    (tmp_path / "mine").mkdir()
    assert "no typo in it" in refused(vlplatform.load, "mine/typo")  # and not: pull it from the hub
    assert "is not a device" in refused(vlplatform.load, saved, device="gpu")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("\udcff", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "does not describe"),
        ('{"format": "other"}', "does not describe"),
        ('{"format": "vlplatform"}', "format_version is None"),
        ('{"format": "vlplatform", "format_version": "1"}', "format_version is '1'"),
        ('{"format": "vlplatform", "format_version": 2}', "update vlplatform"),
        ('{"format": "vlplatform", "format_version": 1}', "the key task"),
    ],
)
def test_broken_configs(saved: Path, refused: Refused, text: str, words: str):
    (saved / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    sentence = refused(vlplatform.load, saved)
    assert words in sentence
    assert "config.json" in sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "tpy"}, "valid: toy"),
        ({"task": None}, "the key task"),
        ({"model": "wide"}, "the key model"),
        ({"sha256": None}, "the key sha256"),
        ({"model": {"widht": 4}}, "no model can be rebuilt"),
        ({"sha256": "0" * 64}, "damaged or was exchanged"),
    ],
)
def test_configs_with_a_wrong_value(saved: Path, refused: Refused, changes: dict[str, Any], words: str):
    change_config(saved, **changes)
    assert words in refused(vlplatform.load, saved)


def test_truncated_and_tampered_weights(saved: Path, refused: Refused):
    weights = saved / "model.safetensors"
    whole = weights.read_bytes()
    for body in (whole[:-1], whole[:100], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        weights.write_bytes(body)
        assert "sha256" in refused(vlplatform.load, saved)
    for body in (whole[:-4], b"", b"\x80\x04N."):  # and where config.json vouches for the broken file
        weights.write_bytes(body)
        change_config(saved, sha256=export.sha256_of(weights))
        assert "not a whole safetensors file" in refused(vlplatform.load, saved)


def test_weights_must_fit_exactly(saved: Path, refused: Refused):
    tensors = load_file(saved / "model.safetensors")
    exchange_weights(saved, {k: v for k, v in tensors.items() if k != "norm.weight"})
    assert "missing: norm.weight" in refused(vlplatform.load, saved)
    exchange_weights(saved, {**tensors, "extra": torch.zeros(1)})
    assert "unexpected: extra" in refused(vlplatform.load, saved)
    exchange_weights(saved, {**tensors, "norm.bias": torch.zeros(5)})
    assert "norm.bias [5], not [4]" in refused(vlplatform.load, saved)
    exchange_weights(saved, {})
    assert "and 4 more" in refused(vlplatform.load, saved)
    exchange_weights(saved, tensors)
    vlplatform.load(saved)


def test_killed_while_saving_there_is_always_a_whole_folder(tmp_path: Path):
    program = (
        "import runpy, sys, itertools, pathlib\n"
        "written_aside = runpy.run_path(sys.argv[1])['written_aside']\n"
        "for i in itertools.count():\n"
        "    with written_aside(pathlib.Path(sys.argv[2])) as aside:\n"
        "        for name in 'abc':\n"
        "            (aside / name).write_text(str(i) * 5000)\n"
        "    print(i, flush=True)\n"
    )
    folder = tmp_path / "it"
    for pause in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", program, atomic.__file__, str(folder)], stdout=subprocess.PIPE
        ) as saver:
            assert saver.stdout is not None
            saver.stdout.readline()
            threading.Event().wait(pause * 0.0017)
            saver.kill()
        texts = {path.name: path.read_text() for path in folder.iterdir()}
        assert sorted(texts) == ["a", "b", "c"]
        assert len(set(texts.values())) == 1
    with written_aside(folder):
        pass
    assert [p.name for p in tmp_path.iterdir() if "it" in p.name] == ["it"]  # no leftovers of the killed
