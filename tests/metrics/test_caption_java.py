"""METEOR and SPICE: the official numbers where Java is there, and a clear word where they cannot be had."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlplatform.errors import UserError
from vlplatform.metrics import java, meteor, spice

needs_meteor = pytest.mark.skipif(meteor.missing() is not None, reason="METEOR cannot run here")


def golden(shared: Path) -> dict[str, Any]:
    return json.loads((shared / "reference/golden/metrics_captions.json").read_text())


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `java` a shell script and every file of pycocoevalcap present."""

    def make(script: str) -> None:
        program = tmp_path / "bin" / "java"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        monkeypatch.setattr(java, "missing", lambda *paths: None)
        monkeypatch.setattr(java, "tool", lambda path: tmp_path / path)

    return make


@pytest.mark.shared
def test_meteor_from_its_statistics(shared: Path) -> None:
    truth = golden(shared)["scores"]
    statistics = np.array([line.split() for line in truth["meteor_stats_lines"]], np.float64)
    corpus, each = meteor.scores(statistics)
    assert corpus == pytest.approx(truth["meteor"], abs=1e-9)
    np.testing.assert_allclose(each, truth["meteor_per_image"], rtol=0, atol=1e-9)


@pytest.mark.shared
@needs_meteor
def test_meteor(shared: Path) -> None:
    case = golden(shared)
    run = meteor.Meteor([case["res"][key][0] for key in case["gts"]], list(case["gts"].values()), seconds=300)
    corpus, each = run.wait()
    assert corpus == pytest.approx(case["scores"]["meteor"], abs=1e-6)
    np.testing.assert_allclose(each, case["scores"]["meteor_per_image"], rtol=0, atol=1e-6)


def test_meteor_of_nothing_matched() -> None:
    nothing = np.zeros((2, 23))
    nothing[1, :2] = 5, 7
    assert meteor.scores(nothing)[0] == 0
    assert meteor.scores(nothing)[1].tolist() == [0, 0]


def test_meteor_asks_line_by_line(stand_in: Any) -> None:
    stand_in("cat >&2; echo not numbers; exit 0")
    run = meteor.Meteor(["a ||| b\n"], [["c  d", "e\nf"]])
    assert (run._job.folder / "stdin").read_text() == "SCORE ||| c d ||| e f ||| a b\n"
    with pytest.raises(UserError, match="1 lines for 1 images, the last: not numbers"):
        run.wait()


def test_spice(stand_in: Any) -> None:
    scores = json.dumps([{"image_id": i, "scores": {"All": {"f": f}}} for i, f in ((1, 0.5), (0, 0.25))])
    stand_in(f"grep -q cat captions.json && echo '{scores}' > scores.out")
    corpus, each = spice.Spice(["a cat", "a dog"], [["a cat"], ["a dog", "dogs"]]).wait()
    assert (corpus, each.tolist()) == (0.375, [0.25, 0.5])


@pytest.mark.parametrize("written", ["", "[]", '[{"image_id": 0, "scores": {"All": {"f": null}}}]'])
def test_spice_without_scores(stand_in: Any, written: str) -> None:
    stand_in(f"echo '{written}' > scores.out")
    with pytest.raises(UserError, match="SPICE left no readable scores"):
        spice.Spice(["a cat"], [["a cat"]]).wait()


@pytest.mark.parametrize("program", [meteor.Meteor, spice.Spice])
def test_time_limit_and_stop(stand_in: Any, program: Any) -> None:
    stand_in("exec sleep 60")
    run = program(["a"], [["a"]], seconds=0.1)
    with pytest.raises(UserError, match=re.escape("did not finish within 0.1 s")):
        run.wait()
    run = program(["a"], [["a"]])
    run.stop()
    assert run._job._process.returncode is not None
    assert not run._job.folder.exists()


@pytest.mark.parametrize(("module", "program"), [(meteor, meteor.Meteor), (spice, spice.Spice)])
def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, module: Any, program: Any) -> None:
    monkeypatch.setattr(java, "java", lambda: None)
    assert "no Java on this machine" in module.missing()
    with pytest.raises(UserError, match="cannot run: there is no Java"):
        program(["a"], [["a"]])
    monkeypatch.setattr(java, "java", lambda: "java")
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    assert "pip install pycocoevalcap" in module.missing()


def test_models_of_spice_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "java", lambda: "java")
    monkeypatch.setattr(java, "missing", lambda *paths: f"no file {paths[0]}" if "lib" in paths[0] else None)
    reason = spice.missing()
    assert reason
    assert "stanford-corenlp-3.6.0.jar, a part of Stanford CoreNLP 3.6.0" in reason
    assert "get_stanford_models" in reason
