"""``vlp eval`` of captioners: scores with what they depend on, captions, and result files for the COCO server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import TINY

from vlp_captioning.plugin import plugin
from vlp_captioning.task import CaptioningTask
from vlplatform.cli.main import main
from vlplatform.engine import TrainerSettings, train
from vlplatform.errors import UserError
from vlplatform.hub import save_model
from vlplatform.metrics import meteor

SAID = ["a red circle", "a circle above a blue square"]


@pytest.fixture
def sections(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Ten images with features, three of them without captions (split test)."""
    rng = np.random.default_rng(0)
    (tmp_path / "features").mkdir()
    lines = []
    for number in range(10):
        np.save(tmp_path / f"features/{number}.npy", rng.normal(size=(4, 6)).astype(np.float32))
        split = "train" if number < 4 else "val" if number < 7 else "test"
        said = [] if split == "test" else SAID
        lines.append(json.dumps({"id": str(number), "image": f"{number}.png", "captions": said, "split": split}))
    (tmp_path / "captions.jsonl").write_text("\n".join(lines))
    return {
        "task": {"text": {"min_count": 1}, "decode": {"max_length": 6}, "scores": ["bleu", "cider_d"]},
        "attn": {"name": "auto"},
        "model": {"name": "transformer", "dim": 16, **TINY["transformer"]},
        "data": {
            "name": "jsonl",
            "file": str(tmp_path / "captions.jsonl"),
            "features": str(tmp_path / "features"),
        },
    }


@pytest.fixture
def model(sections: dict[str, dict[str, Any]], tmp_path: Path) -> Path:
    made = plugin.build(sections)
    torch.manual_seed(0)
    return save_model(made.build_model(), tmp_path / "model", task="captioning", sections=made.sections)


def evaluate(model: Path, *arguments: str) -> int:
    return main(["eval", str(model), *arguments, "--device", "cpu"])


def test_scores_and_captions(model, tmp_path, capsys):
    assert evaluate(model, "--out", str(tmp_path / "scores.json")) == 0
    printed = capsys.readouterr().out
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert set(scores["values"]) == {"bleu1", "bleu2", "bleu3", "bleu4", "cider_d", "words"}
    (note,) = scores["notes"]
    assert note.startswith("signature: tokenizer: ")
    assert "document frequencies: references of these 3 images | references: 2 | images: 3 | version: vlpl" in note
    assert note in printed
    assert printed.splitlines()[-1] == str(tmp_path / "scores.captions.json")
    told = json.loads((tmp_path / "scores.captions.json").read_text())
    assert [each["id"] for each in told] == ["4", "5", "6"]
    assert told[0]["references"] == SAID
    assert set(told[0]["scores"]) == {"bleu1", "bleu2", "bleu3", "bleu4", "cider_d"}
    mean = np.mean([each["scores"]["cider_d"] for each in told])
    assert scores["values"]["cider_d"] == pytest.approx(mean)
    assert evaluate(model, "--json") == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [note]


def test_missing_scores_are_explained(model, monkeypatch, capsys):
    monkeypatch.setattr("vlplatform.metrics.captions._JAVA", {"meteor": (lambda: "there is no Java", meteor.Meteor)})
    assert evaluate(model, "task.scores=[meteor,cider_d]") == 0
    assert "meteor: not available: there is no Java" in capsys.readouterr().out


@pytest.mark.parametrize("best", ["cider_d", "words"])
def test_val_without_captions_is_told_before_the_training(sections, monkeypatch, tmp_path, best):
    lines = [json.loads(line) for line in (tmp_path / "captions.jsonl").read_text().splitlines()]
    for line in lines:
        line["captions"] = [] if line["split"] == "val" else line["captions"]
    (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    sections["task"] |= {"best": best, "submission": str(tmp_path / "mine")}
    made = plugin.build(sections)

    def fit(**changes: Any) -> Any:
        settings = TrainerSettings(steps=2, batch_size=2, **changes)
        return train(made, settings, tmp_path / "run", resolved={**made.sections}, seed=0)

    if best == "cider_d":
        with pytest.raises(
            UserError, match=r"data=jsonl has no captions in its split 'val' to score .*task\.best=cider"
        ):
            fit(eval_every=1)
        assert not (tmp_path / "run").exists()
        fit(eval_every=0)
    else:
        assert set(fit(eval_every=1)["values"]) == {"words"}


def test_what_a_training_tells_first(sections, tmp_path, capsys):
    sections["task"] |= {"text": {"min_count": 5}, "stages": ["cross_entropy", "self_critical"]}
    sections["task"] |= {"self_critical": {"max_length": 6}}
    made: Any = plugin.build(sections)
    train(made, TrainerSettings(steps=2, batch_size=2), tmp_path / "run", resolved={**made.sections}, seed=0)
    told = capsys.readouterr().out
    # "a red circle" and "a circle above a blue square", four times each: only a and circle come five times or more.
    assert "the vocabulary has 2 words, and 44.4% of the training captions' words are <unk>" in told
    assert "lower it for few captions" in told
    assert told.count("self-critical training has the learning rate 0.01, no smaller than that of cross-entropy") == 1
    assert "cross_entropy · loss" in told
    assert "self_critical · reward" in told
    slower = TrainerSettings(steps=2, stages={"self_critical": {"learning_rate": 1e-5}})
    assert len(made.before_training(slower)) == 1
    sections["task"]["text"] = {"min_count": 1}
    made = plugin.build(sections)
    assert made.before_training(slower) == []


def test_what_vlp_predict_takes_is_told(sections, tmp_path):
    made: Any = plugin.build(sections)
    assert made.predict_hint.startswith("features.npz, made as those it was trained on; photo.jpg")
    del sections["data"]["features"]
    for number in range(10):
        Image.new("RGB", (16, 16)).save(tmp_path / f"{number}.png")
    made = plugin.build(sections)
    assert made.predict_hint == "photo.jpg"


def test_submission(model, tmp_path, capsys):
    (tmp_path / "results").mkdir()
    prefix = f"task.submission={tmp_path / 'results/mine'}"
    assert evaluate(model, prefix) == 0
    file = tmp_path / "results/captions_val_mine_results.json"
    assert f"submission: {file}" in capsys.readouterr().out
    assert [each["image_id"] for each in json.loads(file.read_text())] == [4, 5, 6]

    # A split without captions can be submitted, but not scored.
    assert evaluate(model, prefix, "--split", "test", "--out", str(tmp_path / "s.json")) == 0
    assert set(json.loads((tmp_path / "s.json").read_text())["values"]) == {"words"}
    assert len(json.loads((tmp_path / "results/captions_test_mine_results.json").read_text())) == 3
    assert len(json.loads((tmp_path / "s.captions.json").read_text())) == 3
    capsys.readouterr()
    assert evaluate(model, "--split", "test") == 2
    assert "give task.submission=PREFIX" in capsys.readouterr().err
    assert evaluate(model, f"task.submission={tmp_path / 'nowhere/x'}") == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_submission_that_fails_leaves_the_scores(sections, monkeypatch, tmp_path):
    made = plugin.build({**sections, "task": {**sections["task"], "submission": str(tmp_path / "x")}})
    assert isinstance(made, CaptioningTask)
    made.records("val")
    predictions = [{"id": id, "caption": caption, "log_prob": 0.0} for id, caption in zip("456", ("a", "", "a"))]
    score = made.score(predictions)
    assert "cider_d" in score.values
    assert score.notes[-1] == "no submission: the caption of image 5 is '': the server wants text."


def test_ids_that_are_no_numbers(sections, model, tmp_path, capsys):
    file = Path(sections["data"]["file"])
    file.write_text(file.read_text().replace('"id": "5"', '"id": "five"'))
    capsys.readouterr()
    assert evaluate(model, f"task.submission={tmp_path / 'x'}") == 2
    assert "the image id 'five' is no number, and the COCO server takes" in capsys.readouterr().err


def test_a_run_tells_what_its_scores_depend_on(sections, tmp_path):
    made = plugin.build(sections)
    settings = TrainerSettings(steps=1, warmup=0, batch_size=2, eval_every=1)
    metrics = train(made, settings, tmp_path / "run", resolved={**made.sections}, seed=0)
    (note,) = metrics["notes"]
    assert note.startswith("signature: tokenizer: ")
    assert json.loads((tmp_path / "run/metrics.json").read_text())["notes"] == [note]
    assert "references of these 3 images" in (tmp_path / "run/report.html").read_text()


class Slow:
    """In place of METEOR's program; its scores are 0.5."""

    waited = 0

    def __init__(self, captions: list[str], references: list[list[str]], *, seconds: float) -> None:
        self.images = len(captions)

    def wait(self) -> tuple[float, Any]:
        Slow.waited += 1
        return 0.5, np.full(self.images, 0.5)

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("best", ["cider_d", "meteor"])
def test_java_runs_beside_the_training(sections, monkeypatch, tmp_path, best):
    monkeypatch.setattr("vlplatform.metrics.captions._JAVA", {"meteor": (lambda: None, Slow)})
    sections["task"] |= {"scores": ["cider_d", "meteor"], "best": best}
    made = plugin.build(sections)
    settings = TrainerSettings(steps=2, warmup=0, batch_size=2, eval_every=1)
    metrics = train(made, settings, tmp_path / "run", resolved={**made.sections}, seed=0)
    assert metrics["values"]["meteor"] == 0.5
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    late = [line["values"] for line in lines if line["kind"] == "late"]
    assert late == ([{"meteor": 0.5}] * 2 if best == "cider_d" else [])  # what chooses the best model is waited for
    assert evaluate(tmp_path / "run", "--out", str(tmp_path / "scores.json")) == 0
    assert json.loads((tmp_path / "scores.json").read_text())["values"]["meteor"] == 0.5
    told = json.loads((tmp_path / "scores.captions.json").read_text())
    assert [each["scores"]["meteor"] for each in told] == [0.5] * 3
