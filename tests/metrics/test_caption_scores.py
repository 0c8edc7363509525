"""Caption scores by name, with signature and what is missing; submission files; the alignment score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vlplatform.errors import UserError
from vlplatform.metrics import java, meteor
from vlplatform.metrics.alignment import alignment
from vlplatform.metrics.captions import METRICS, score, start
from vlplatform.metrics.submission import write_submission

OWN = ("bleu", "rouge_l", "cider", "cider_d")
CANDIDATES = {7: "A dog runs.", "b": "two cats"}
REFERENCES = {"b": ["Two cats.", "Cats, two!"], 7: ["A dog is running.", "a dog runs", "the dog"]}


@pytest.mark.shared
def test_official_scores(shared: Path) -> None:
    case = json.loads((shared / "reference/golden/metrics_captions.json").read_text())
    candidates, truth = {key: case["res"][key][0] for key in case["gts"]}, case["scores"]
    found = score(candidates, case["gts"], metrics=OWN, tokenizer="none")
    for place in range(4):
        assert found.values[f"bleu{place + 1}"] == pytest.approx(truth["bleu"][place], abs=1e-9)
    for name, theirs in (
        ("rouge_l", "rouge_l"),
        ("cider_d", "cider_pycocoevalcap"),
        ("cider", "cider_plain_vrama91"),
    ):
        assert found.values[name] == pytest.approx(truth[theirs], abs=1e-9)
        assert list(found.per_image[name]) == list(case["gts"])
        assert list(found.per_image[name].values()) == pytest.approx(truth[f"{theirs}_per_image"], abs=1e-9)
    assert set(found.values) == set(METRICS) - {"meteor", "spice"}
    assert not found.missing


def test_signature_and_order() -> None:
    found = score(CANDIDATES, REFERENCES, metrics=("bleu1", "cider_d"), tokenizer="python")
    assert found.signature["tokenizer"] == "ptb (python)"
    assert found.signature["references"] == "2–3"
    assert found.signature["images"] == "2"
    assert found.signature["document_frequencies"] == "references of these 2 images"
    assert "not comparable" in found.signature["note"]
    assert list(found.per_image["bleu1"]) == ["b", 7]
    assert set(found.values) == {"bleu1", "cider_d"}
    assert found.values["bleu1"] == pytest.approx(1.0)
    told = score(CANDIDATES, REFERENCES, metrics=OWN, tokenizer="none")
    assert told.signature["tokenizer"].startswith("none")
    assert "note" not in told.signature


def test_java_scores_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "java", lambda: None)
    found = score(CANDIDATES, REFERENCES)
    assert found.signature["tokenizer"] == "ptb (python)"
    assert set(found.missing) == {"meteor", "spice"}
    assert found.missing["meteor"].startswith("not available: there is no Java on this machine")
    assert not {"meteor", "spice"} & (set(found.values) | set(found.per_image))
    with pytest.raises(UserError, match="official tokeniser cannot run"):
        score(CANDIDATES, REFERENCES, tokenizer="java")


def test_java_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One Java program answers, the other fails: a value, and a reason."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    record = "5 5 2 2 3 3 2 2 0 0 0 0 0 0 0 0 0 0 0 0 1 5 5"
    answer = f"echo {record}; echo {record}"
    program.write_text(f'#!/bin/sh\ncase "$*" in *meteor*) {answer};; *) echo no graph >&2; exit 1;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(java, "tool", lambda path: tmp_path / path)
    monkeypatch.setattr(java, "missing", lambda *paths: None)
    scoring = start(CANDIDATES, REFERENCES, tokenizer="python")
    assert "bleu4" in scoring.ready.values
    found = scoring.wait()
    assert found.values["meteor"] == pytest.approx(1.0)
    assert found.per_image["meteor"] == pytest.approx({"b": 1.0, 7: 1.0})
    assert found.missing == {"spice": "SPICE failed (Java's exit code 1); it said: no graph."}
    assert scoring.wait() is found
    stopped = start(CANDIDATES, REFERENCES, metrics=("meteor",), tokenizer="python")
    stopped.stop()
    assert set(stopped.wait().missing) == {"meteor"}


@pytest.mark.parametrize(
    ("candidates", "references", "settings", "words"),
    [
        ({}, {}, {}, "no image to score"),
        ({1: "a"}, {1: ["a"], 2: ["b"]}, {}, "image 2 has references but no caption"),
        ({1: "a", 2: "b"}, {1: ["a"]}, {}, "image 2 has a caption but no references"),
        ({1: "a"}, {1: []}, {}, "list of one caption or more"),
        ({1: "a"}, {1: "a dog"}, {}, "list of one caption or more"),
        ({1: None}, {1: ["a"]}, {}, "no text: None"),
        ({1: "a"}, {1: ["a"]}, {"metrics": ["cidr"]}, "did you mean 'cider'"),
        ({1: "a"}, {1: ["a"]}, {"tokenizer": "spacy"}, "no tokeniser 'spacy'"),
    ],
)
def test_bad_input(candidates: Any, references: Any, settings: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        score(candidates, references, **{"metrics": OWN, **settings})


def test_one_image_and_empty_captions() -> None:
    found = score({1: "", 2: "..."}, {1: ["a dog"], 2: ["", "?"]}, metrics=OWN, tokenizer="python")
    assert found.values["bleu4"] < 1e-9
    assert found.per_image["rouge_l"] == {1: 0.0, 2: 1.0}  # an empty caption is one empty token, in the original too
    assert found.values["cider_d"] == 0


@pytest.mark.shared
@pytest.mark.skipif(meteor.missing() is not None, reason="no Java or no pycocoevalcap")
def test_both_tokenizers_on_real_captions(shared: Path) -> None:
    images = json.loads((shared / "data/coco-mini/captions_val.json").read_text())["annotations"]
    texts: dict[int, list[str]] = {}
    for record in images:
        texts.setdefault(record["image_id"], []).append(record["caption"])
    candidates, references = {i: t[0] for i, t in texts.items()}, {i: t[1:] for i, t in texts.items()}
    java_, python = (score(candidates, references, metrics=OWN, tokenizer=who) for who in ("java", "python"))
    assert java_.values == python.values
    assert java_.signature["tokenizer"] == "ptb-3.4.1 (java)"
    assert 0.5 < java_.values["cider_d"] < 1.5  # people against people


def test_submission(tmp_path: Path) -> None:
    path = tmp_path / "captions_val2014_ours_results.json"
    path.write_text("old")
    assert write_submission(path, {391895: "a  man\non a bike", "42": "café"}) == path
    assert json.loads(path.read_text()) == [
        {"image_id": 391895, "caption": "a man on a bike"},
        {"image_id": 42, "caption": "café"},
    ]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("captions", "words"),
    [
        ({}, "no captions to submit"),
        ({"a.jpg": "a"}, "'a.jpg' is no number"),
        ({True: "a"}, "True is no number"),
        ({1: "a", "1": "b"}, "image 1 has two captions"),
        ({1: " "}, "the server wants text"),
        ({1: None}, "the server wants text"),
    ],
)
def test_bad_submissions(tmp_path: Path, captions: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        write_submission(tmp_path / "x.json", captions)
    assert not list(tmp_path.iterdir())


def test_submission_without_its_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        write_submission(tmp_path / "absent" / "x.json", {1: "a"})


def slow_alignment(vision: torch.Tensor, text: torch.Tensor) -> float:
    dots = [[float(v @ t) for t in text] for v in vision]
    pairs = 0
    for i, row in enumerate(dots):
        j = row.index(max(row))
        column = [each[j] for each in dots]
        pairs += column.index(max(column)) == i
    return pairs / min(len(vision), len(text))


@pytest.mark.parametrize("size", [(1, 1), (9, 4), (4, 9), (49, 12)])
def test_alignment(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    vision, text = torch.randn(3, size[0], 8, dtype=torch.double), torch.randn(3, size[1], 8, dtype=torch.double)
    expected = [slow_alignment(v, t) for v, t in zip(vision, text)]
    assert alignment(vision, text).tolist() == pytest.approx(expected)
    # Padding, however large, changes nothing.
    wide_vision = torch.cat([vision, torch.full((3, 2, 8), 1e3, dtype=torch.double)], 1)
    wide_text = torch.cat([text, torch.full((3, 3, 8), 1e3, dtype=torch.double)], 1)
    masks = (torch.arange(n + extra).expand(3, -1) < n for n, extra in zip(size, (2, 3)))
    vision_mask, text_mask = masks
    padded = alignment(wide_vision, wide_text, vision_mask=vision_mask, text_mask=text_mask)
    assert padded.tolist() == pytest.approx(expected)


def test_alignment_limits() -> None:
    eye = torch.eye(5)[None]
    assert alignment(eye, eye).item() == 1
    assert alignment(eye, torch.ones(1, 3, 5)).item() == pytest.approx(1 / 3)  # all alike: one pair of firsts
    assert alignment(eye, eye, text_mask=torch.zeros(1, 5, dtype=torch.bool)).isnan().all()
    assert alignment(eye, torch.ones(1, 0, 5)).isnan().all()
    with pytest.raises(ValueError, match="must be"):
        alignment(eye, torch.ones(2, 3, 5))
    with pytest.raises(ValueError, match="does not fit"):
        alignment(eye, eye, text_mask=torch.ones(1, 4, dtype=torch.bool))


def test_every_metric_has_a_line() -> None:
    assert all("\n" not in summary and len(summary) < 110 for summary in METRICS.values())
