"""``--with``: several checkpoints answer together; and settings of decoding on the command line of ``vlp predict``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import VOCABULARY, WIDTH, make

from vlp_captioning.models.ensemble import generate
from vlplatform import registry
from vlplatform.cli.main import main
from vlplatform.hub import save_model
from vlplatform.text import Vocabulary


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Two captioners with the same words, of different kinds, and features to look at."""
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(4, WIDTH)).astype(np.float32))
    saved = []
    for seed, name in enumerate(("transformer", "updown")):
        model = make(name, seed=seed).float()
        saved.append(save_model(model, tmp_path / name, task="captioning", sections={"task": {"name": "captioning"}}))
    return saved


def predict(tmp_path: Path, *words: Any) -> list[str]:
    return [caption["text"] for caption in found(tmp_path, *words)]


def found(tmp_path: Path, *words: Any) -> list[dict[str, Any]]:
    assert main(["predict", *map(str, words), "--out", str(tmp_path / "out"), "--device", "cpu"]) == 0
    (told,) = json.loads((tmp_path / "out/captions.json").read_text())
    return told["captions"]


def refused(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    capsys.readouterr()
    assert main([*map(str, words), "--device", "cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_predict_together(models: list[Path], tmp_path: Path) -> None:
    features = torch.from_numpy(np.load(tmp_path / "a.npy"))[None]
    members = [make(name, seed=seed).float() for seed, name in enumerate(("transformer", "updown"))]
    want = generate(members, [features], beam=3, returned=3)[0]
    together = found(tmp_path, models[0], tmp_path / "a.npy", "--with", models[1])
    assert [caption["text"] for caption in together] == [caption.text for caption in want]
    assert [caption["score"] for caption in together] == pytest.approx([caption.score for caption in want], abs=1e-5)
    assert found(tmp_path, models[0], "--with", models[1], tmp_path / "a.npy") == together
    assert found(tmp_path, models[0], tmp_path / "a.npy") != together


def test_predict_with_settings(models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = tmp_path / "a.npy"
    short = predict(tmp_path, models[0], photo, "task.decode.max_length=3", "task.decode.beam=2")
    assert len(short) == 2
    assert all(len(text.split()) <= 3 for text in short)
    must = predict(tmp_path, models[0], photo, "task.decode.required=[red,above]", "task.decode.beam=6")
    assert all({"red", "above"} <= set(text.split()) for text in must)
    assert len(predict(tmp_path, models[0], photo, "task.decode.samples=5", "task.decode.top_p=0.8")) == 3
    for word, message in (
        ("task.decode.bean=3", "task.decode.bean is not a setting of task.decode: did you mean 'beam'"),
        ("task.scores=[bleu]", "'task.scores=[bleu]' has no part in predicting: of captioning task.decode.KEY="),
        ("data.root=x", "'data.root=x' has no part in predicting"),
        ("task.decode.top_p=0.5", "say how often with samples=N"),
        ("task.decode.required=[zebra]", "the word 'zebra' is required, and this model does not know it"),
    ):
        assert message in refused(capsys, "predict", models[0], photo, word, "--out", tmp_path / "no")
    assert "needs files to predict" in refused(capsys, "predict", models[0], "task.decode.beam=2")


def test_eval_together(models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", np.random.default_rng(number).normal(size=(4, WIDTH)).astype(np.float32))
        split = "train" if number == 0 else "val"
        lines.append(json.dumps({"image": f"{number}.png", "captions": ["a red circle"], "split": split}))
    (tmp_path / "captions.jsonl").write_text("\n".join(lines))
    (tmp_path / "features").mkdir()
    for number in range(4):
        (tmp_path / f"{number}.npy").rename(tmp_path / f"features/{number}.npy")
    data = ["data=jsonl", f"data.file={tmp_path / 'captions.jsonl'}", f"data.features={tmp_path / 'features'}"]
    out = tmp_path / "scores.json"
    words = ["--with", models[1], *data, "task.decode.beam=2", "--out", out, "--device", "cpu"]
    assert main(["eval", *map(str, [models[0], *words])]) == 0
    assert json.loads(out.read_text())["with"] == [str(models[1])]
    told = json.loads((tmp_path / "scores.captions.json").read_text())
    members = [make(name, seed=seed).float() for seed, name in enumerate(("transformer", "updown"))]
    for row in told:
        features = torch.from_numpy(np.load(tmp_path / f"features/{row['id']}.npy"))[None]
        assert row["caption"] == generate(members, [features], beam=2)[0][0].text


def test_what_cannot_answer_together(models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = tmp_path / "a.npy"
    other = make("transformer", vocabulary=Vocabulary((*VOCABULARY.words, "more"))).float()
    words = save_model(other, tmp_path / "words", task="captioning")
    assert "model 2 of the ensemble has other words" in refused(capsys, "predict", models[0], photo, "--with", words)
    assert "no such folder" in refused(capsys, "predict", models[0], photo, "--with", tmp_path / "nowhere")


def test_a_task_without_ensembles(
    models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(type(registry.task("captioning")), "ensemble")
    told = refused(capsys, "predict", models[0], tmp_path / "a.npy", "--with", models[1])
    assert "task=captioning knows no ensembles: leave out --with" in told
