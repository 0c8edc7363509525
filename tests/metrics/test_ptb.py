"""The caption tokeniser: the official cases, our rules against the Java tool, and what happens without it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from vlplatform.errors import UserError
from vlplatform.metrics import java
from vlplatform.text import ptb

needs_java = pytest.mark.skipif(java.missing(ptb._JAR) is not None, reason="no Java or no pycocoevalcap")

# Texts in which the rules meet; what they become was asked of the Java tool.
CASES = {
    "y'all o'clock rock'n'roll ma'am s'mores": "y' all o'clock rock 'n' roll ma'am s'mores",
    "don't-know bird's-eye it's-a BANANA'S": "do n't know bird 's eye it 's a banana 's",
    "'tis the '90s, 'til 5'10\"": "'t is the '90s 'til 5 10",
    "mother-in-law's 2-year-old x--y -known": "mother-in-law 's 2-year-old x y known",
    "Mr. Smith Jr. No. 5 no. 5 a no. in. mass. Mass.": "mr. smith jr. no. 5 no. 5 a no in mass mass.",
    "12th Ave S. The dog, 12th Ave S. Dog": "12th ave s the dog 12th ave s. dog",
    "2 1/2 cups 5:54pm 3.5-inch 10:30-11:30 $5.00": "2\xa01/2 cups 5:54 pm 3.5-inch 10:30 -11:30 $ 5.00",
    "hello!!! what?? a :) b :( <3 x@y.com #tag": "hello !!! what ?? a :-rrb- b :-lrb- < 3 x@y.com #tag",
    "R&B b&b and/or a/b/c/d C# &amp; <br/>": "r&b b & b and/or a/b/c / d c# & <br/>",
    "“smart” ‘single’ it’s don’t 5° ½ — – €5 £5 🙂": "smart single it 's do n't 5 ° 1/2 $ 5 # 5",
    "end.Begin U.S.-based a.m. a.b.c sidewalk.": "end.begin u.s.-based a.m. a.b.c sidewalk",
}


def captions_of(folder: Path) -> list[str]:
    """Every caption of the two photograph sets."""
    found = []
    for name in ("captions_train.json", "captions_val.json", "captions_val2017_textonly.json.gz"):
        raw = (folder / "coco-mini" / name).read_bytes()
        text = gzip.decompress(raw) if name.endswith(".gz") else raw
        found += [each["caption"] for each in json.loads(text)["annotations"]]
    lines = gzip.decompress((folder / "flickr8k-mini" / "Flickr8k.token.train_dev.txt.gz").read_bytes()).decode()
    return found + [line.split("\t", 1)[1] for line in lines.splitlines()]


@pytest.mark.shared
@pytest.mark.parametrize("who", ["never", pytest.param("require", marks=needs_java)])
def test_official_cases(shared: Path, who: str) -> None:
    cases = json.loads((shared / "reference/golden/metrics_ptb.json").read_text())["cases"]
    found = ptb.tokenize([case["raw"] for case in cases], java=who)  # pyright: ignore[reportArgumentType]
    assert found.captions == [case["tokens"] for case in cases]
    assert found.tokenizer == (ptb.PYTHON if who == "never" else ptb.JAVA)


@pytest.mark.parametrize("who", ["never", pytest.param("require", marks=needs_java)])
def test_where_rules_meet(who: str) -> None:
    assert ptb.tokenize(list(CASES), java=who).captions == list(CASES.values())  # pyright: ignore[reportArgumentType]


@pytest.mark.shared
@needs_java
def test_real_captions(shared: Path) -> None:
    captions = captions_of(shared / "data")[::9]  # all 61,954 agree; a ninth keeps the test short
    assert ptb.tokenize(captions, java="never").captions == ptb.tokenize(captions, java="require").captions


@pytest.mark.parametrize("who", ["never", pytest.param("require", marks=needs_java)])
def test_odd_captions(who: str) -> None:
    odd = ["", " ", "\n", "a\nb", "a\u2028b", "...", "🙂", "a\x00b"[:1], "x" * 5000, ""]
    found = ptb.tokenize(odd, java=who).captions  # pyright: ignore[reportArgumentType]
    assert found == ["", "", "", "a b", "a b", "", "", "a", "x" * 5000, ""]
    assert ptb.tokenize([], java=who).captions == []  # pyright: ignore[reportArgumentType]


def test_known_differences() -> None:
    """Nonsense that the rules cut otherwise than the Java tool does ("cann t a", "caf é"), for the record."""
    assert ptb.tokenize(["cann'tA", "@café"], java="never").captions == ["can n'ta", "@café"]


def test_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert ptb.tokenize(["A dog."]) == ptb.Tokenized(["a dog"], ptb.PYTHON)
    with pytest.raises(UserError, match="no Java on this machine"):
        ptb.tokenize(["A dog."], java="require")


def test_without_pycocoevalcap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "java", lambda: "java")
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install pycocoevalcap"):
        ptb.tokenize(["A dog."], java="require")


def stand_in(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `java` that does something else."""
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder))


@needs_java
def test_a_java_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "echo 'no memory' >&2; exit 3", monkeypatch)
    with pytest.raises(UserError, match=r"exit code 3\); it said: no memory"):
        ptb.tokenize(["A dog."])


@needs_java
def test_a_java_that_drops_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "echo 'a dog'", monkeypatch)
    with pytest.raises(UserError, match="returned 2 lines for 3 captions"):
        ptb.tokenize(["A dog.", "A cat.", "A cow."])


def test_a_java_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "exec sleep 60", monkeypatch)
    job = java.Job("the tool", [], seconds=0.2)
    with pytest.raises(UserError, match=r"did not finish within 0\.2 s"):
        job.wait()
    assert not job.folder.exists()


def test_a_java_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "", monkeypatch)
    (tmp_path / "bin" / "java").write_text("no program")
    with pytest.raises(UserError, match=r"the tool cannot run: .* does not start"):
        java.Job("the tool", [], seconds=1)
