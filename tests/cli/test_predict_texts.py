"""``vlp predict`` for tasks that read texts: which words are texts, files, standard input, settings and checkpoints."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vlplatform import registry
from vlplatform.cli.main import main
from vlplatform.hub import SaveMixin


class Echo(SaveMixin, nn.Module):
    """A model of a task that reads texts."""

    task = "echo"

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def settings(self) -> dict[str, Any]:
        return {}


class EchoPlugin:
    """It tells the inputs that it got."""

    name, summary, reads_text, predict_settings = "echo", "tells its inputs", True, ("decode",)

    def rebuild(self, model_settings: Mapping[str, Any]) -> nn.Module:
        return Echo()

    def predict_texts(
        self, model: Any, inputs: Sequence[str | Path], out: Path | None, device: torch.device
    ) -> list[Path]:
        for each in inputs:
            print(f"{type(each).__name__}: {each}")
        print(model.loaded_config["sections"].get("task", {}))
        return []


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved model of it."""
    known = registry.task
    monkeypatch.setattr(registry, "task", lambda name: EchoPlugin() if name == "echo" else known(name))
    return Echo().save(tmp_path / "echo")


def told(capsys: pytest.CaptureFixture[str], *words: Any) -> list[str]:
    capsys.readouterr()
    assert main(["predict", *map(str, words), "--device", "cpu"]) == 0
    return capsys.readouterr().out.splitlines()


def test_texts_files_and_settings(echo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("ein Satz\n")
    words = ["zwei Sätze", tmp_path / "a.txt", "x=3 ist wahr", "-", "y=2", "lang " * 200, "task.decode.beam=7"]
    short = ["z.B", "und/oder", "und/oder.", "1/2.5", "und/z.B", "zwei a/b.de"]  # no names of files
    *inputs, section = told(capsys, echo, *words, *short)
    inputs, found = inputs[: -len(short)], inputs[-len(short) :]
    assert found == [f"str: {word}" for word in short]
    assert inputs[0] == "str: zwei Sätze"
    assert inputs[1].endswith("a.txt")
    assert not inputs[1].startswith("str")
    assert inputs[2:] == ["str: x=3 ist wahr", "str: -", "str: y=2", f"str: {'lang ' * 200}"]
    assert "'beam': 7" in section


def test_no_input_is_standard_input(echo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (section,) = told(capsys, echo, "task.decode.beam=2")
    assert "'beam': 2" in section


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_is_utf_8_whatever_the_system_says(echo: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding))
    assert main(["predict", str(echo), "Männer – 男", "--device", "cpu"]) == 0
    sys.stdout.flush()
    assert raw.getvalue().decode("utf-8").splitlines()[0] == "str: Männer – 男"


def test_what_is_refused(echo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["Satz", "missing.txt"], "missing.txt is not a file"),
        (["./missing.de"], "./missing.de is not a file"),
        (["corpus/test.de"], "corpus/test.de is not a file"),
        (["Satz", "data.root=x"], "'data.root=x' has no part in predicting"),
        (["Satz", "--with", str(echo)], "task=echo knows no ensembles"),
    ):
        assert main(["predict", str(echo), *words, "--device", "cpu"]) == 2
        assert message in capsys.readouterr().err
