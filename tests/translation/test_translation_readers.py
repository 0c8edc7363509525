"""Readers of parallel texts: small layouts made here, the real one where it is, and every fault in one sentence."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlp_translation.lines import measure, read_lines
from vlp_translation.readers import DATA_SETS, READERS, Pair, ParallelData, open_data
from vlp_translation.readers.wmt14 import CORPORA
from vlplatform.data.scenes import ScenesSettings, scene
from vlplatform.errors import UserError

TEXT = {"source": "en", "target": "de"}


def refused(message: str):
    return pytest.raises(UserError, match=message)


def write(path: Path, *lines: str, raw: bytes | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode() if raw is None else raw
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def both(data: ParallelData, split: str) -> list[tuple[str, str | None]]:
    return [(pair.source, pair.target) for pair in data.pairs(split)]


# Lines


@pytest.mark.parametrize("name", ["a.en", "a.en.gz"])
def test_lines_end_at_line_feeds_alone(tmp_path: Path, name: str) -> None:
    raw = "\ufeffone\u2028still one\x85\x0b\x0c\x1c\r\n\n\ufefftwo\rtwo\n three".encode()
    path = write(tmp_path / name, raw=raw)
    assert list(read_lines(path)) == [
        (1, "one\u2028still one\x85\x0b\x0c\x1c"),
        (2, ""),
        (3, "\ufefftwo\rtwo"),
        (4, " three"),
    ]
    assert measure(path)[1] == 4
    assert measure(write(tmp_path / name.replace("a", "b"), "a", "b"))[1] == 2
    assert (list(read_lines(write(tmp_path / "none"))), measure(tmp_path / "none")[1]) == ([], 0)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n")).filter(lambda s: not s.endswith("\r"))))
def test_any_line_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    if lines and lines[0].startswith("\ufeff"):
        lines[0] = "x" + lines[0]
    path = write(tmp_path_factory.mktemp("lines") / "a", *lines)
    assert [line for _, line in read_lines(path)] == lines
    assert measure(path)[1] == len(lines)


def test_the_same_content_has_the_same_hash_packed_or_not(tmp_path: Path) -> None:
    assert measure(write(tmp_path / "a", "x", "y")) == measure(write(tmp_path / "a.gz", "x", "y"))
    before = measure(tmp_path / "a")
    write(tmp_path / "a", "x", "z ")
    assert measure(tmp_path / "a") != before


def test_damaged_files(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.en", raw=b"fine\ncaf\xe9 x\n")
    with refused(r"a.en, line 2, is not UTF-8 \(byte 4 is 0xe9\): convert the file to UTF-8"):
        list(read_lines(plain))
    assert next(read_lines(plain)) == (1, "fine"), "lines are read one by one"
    with refused(r"b.en.gz, line 1, is not UTF-8 \(byte 1 is 0xff\)"):
        list(read_lines(write(tmp_path / "b.en.gz", raw="\ufeffa\n".encode("utf-16-le").replace(b"\n", b"\r"))))
    cut = write(tmp_path / "c.gz", *map(str, range(9999)))
    cut.write_bytes(cut.read_bytes()[:-200])
    for read in (lambda: list(read_lines(cut)), lambda: measure(cut)):
        with refused("c.gz cannot be read .*: check that it is whole"):
            read()
    (tmp_path / "d.gz").write_bytes(b"no gzip")
    with refused("d.gz cannot be read"):
        list(read_lines(tmp_path / "d.gz"))
    with refused(r"none cannot be read \(No such file"):
        measure(tmp_path / "none")


# A user's own files


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_text(tmp_path: Path, packed: str) -> None:
    write(tmp_path / f"train.en{packed}", "a", "", "c\u2028d")
    write(tmp_path / f"train.de{packed}", "x", "y", "z")
    source = write(tmp_path / "t.txt", "only")
    values = {**TEXT, "train": str(tmp_path / "train"), "test": [str(source)], "licence": "mine"}
    data = open_data("text", values)
    assert data.splits == ("train", "test")
    assert (data.languages, data.licence) == (("en", "de"), "mine")
    assert list(data.pairs("train"))[2] == Pair("3", "c\u2028d", "z", f"{tmp_path}/train.en{packed}, line 3,")
    assert both(data, "train")[:2] == [("a", "x"), ("", "y")]
    assert both(data, "test") == [("only", None)]
    data.check()
    with refused("data=text has no split 'val': valid: test, train"):
        data.pairs("val")
    files = [str(tmp_path / f"train.{language}") for language in ("de", "en")]
    assert both(open_data("text", {**TEXT, "val": files}), "val")[0] == ("x", "a")


def test_text_of_unequal_lengths(tmp_path: Path) -> None:
    write(tmp_path / "train.en", "a", "b", "c")
    write(tmp_path / "train.de", "x", "y")
    data = open_data("text", {**TEXT, "train": str(tmp_path / "train")})
    said = r"train.en has 3 lines, but .*train.de has 2: line i of one must translate line i of the other"
    for look in (data.check, lambda: data.check(["train"]), lambda: data.fingerprint("train")):
        with refused(said):
            look()
    with refused(said):
        list(data.pairs("train"))
    assert len(list(islice(data.pairs("train"), 2))) == 2, "pairs are read one by one"


def test_faults_of_text(tmp_path: Path) -> None:
    write(tmp_path / "a.en", "a")
    with refused("data.source must be given"):
        open_data("text", {"target": "de"})
    with refused("data.train, data.val or data.test must be given"):
        open_data("text", TEXT)
    with refused(r"data.train: there is no file .*a.de \(nor .*a.de.gz\)"):
        open_data("text", {**TEXT, "train": str(tmp_path / "a")})
    for given_ in (["x"], ["x", "y", "z"], []):
        with refused(r"data.train=.* must name two files"):
            open_data("text", {**TEXT, "train": given_})
    with refused(r"data.test=\[\] must name two files"):
        open_data("text", {**TEXT, "test": []})


def test_fingerprints_follow_contents(tmp_path: Path) -> None:
    write(tmp_path / "a.en", "a")
    write(tmp_path / "a.de", "x")
    values = {**TEXT, "train": str(tmp_path / "a")}
    first = open_data("text", values).fingerprint("train")
    assert open_data("text", values).fingerprint("train") == first
    write(tmp_path / "a.de", "yy")
    assert open_data("text", values).fingerprint("train") != first


def test_jsonl(tmp_path: Path) -> None:
    rows = [
        {"source": "a\u2028", "target": "x"},
        {"translation": {"en": "b", "de": "y", "fr": "?"}, "id": 7},
        {"source": "c", "target": ""},
    ]
    path = write(
        tmp_path / "a.jsonl", json.dumps(rows[0]), "", *(json.dumps(row, ensure_ascii=False) for row in rows[1:])
    )
    test = write(tmp_path / "t.jsonl.gz", '{"source": "only", "id": "t1"}', '{"source": "this", "target": null}')
    data = open_data("jsonl", {**TEXT, "file": str(path), "test_file": str(test)})
    assert both(data, "train") == [("a\u2028", "x"), ("b", "y"), ("c", "")]
    assert [pair.id for pair in data.pairs("train")] == ["1", "7", "4"]
    assert [(pair.id, pair.target) for pair in data.pairs("test")] == [("t1", None), ("2", None)]
    assert data.splits == ("train", "test")
    data.check()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1, is no JSON .*: write"),
        ("[1]", "line 1, is no JSON object"),
        ('{"sorce": "a"}', "has the key 'sorce': did you mean 'source'"),
        ('{"source": "a"}', "line 1, has no translation into de"),
        ('{"target": "a"}', r"has no text under 'source' \(it has target\)"),
        ('{"source": "a", "target": 3}', "has no text under 'target'"),
        ('{"translation": {"en": "a"}}', "line 1, has no translation into de"),
        ('{"translation": {"fr": "a"}}', r"has no text under 'en' \(it has fr\)"),
        ('{"translation": "a"}', "has a translation that is no object"),
        ('{"source": "\\ud800", "target": "a"}', "half of a surrogate pair"),
        ('{"source": "a", "target": "a", "id": "\\udfff"}', "line 1, has half of a surrogate pair"),
        (f'{{"source": "a", "target": "a", "id": {"9" * 5000}}}', "line 1, is no JSON that can be read"),
    ],
)
def test_faulty_rows(tmp_path: Path, line: str, said: str) -> None:
    data = open_data("jsonl", {**TEXT, "file": str(write(tmp_path / "a.jsonl", line))})
    with refused(said):
        list(data.pairs("train"))


def test_jsonl_without_files(tmp_path: Path) -> None:
    with refused("data.file, data.val_file or data.test_file must be given"):
        open_data("jsonl", TEXT)
    with refused("there is no file .*none"):
        open_data("jsonl", {**TEXT, "file": str(tmp_path / "none")})


# Published data


def test_multi30k(tmp_path: Path) -> None:
    for name, packed in (("train", ".gz"), ("val", ""), ("test_2016_flickr", ""), ("test_2017_mscoco", ".gz")):
        for language in ("en", "de"):
            write(tmp_path / f"{name}.{language}{packed}", f"{name} in {language}")
    write(tmp_path / "test_2018_flickr.en", "no German")
    data = open_data("multi30k", {"root": str(tmp_path)})
    assert data.splits == ("train", "val", "test", "test_2016_flickr", "test_2017_mscoco", "test_2018_flickr")
    assert (
        both(data, "test") == both(data, "test_2016_flickr") == [("test_2016_flickr in en", "test_2016_flickr in de")]
    )
    assert both(data, "test_2018_flickr") == [("no German", None)]
    other = open_data("multi30k", {"root": str(tmp_path), "source": "de", "target": "en", "test": "test_2017_mscoco"})
    assert both(other, "test") == [("test_2017_mscoco in de", "test_2017_mscoco in en")]
    for values, said in (
        ({"target": "fr"}, r"lacks train.fr \(or train.fr.gz\): add it"),
        ({"target": "en"}, "source=en and target=en must differ"),
        ({"target": "dee"}, "target=dee is not a language of Multi30k: did you mean 'de'"),
        ({"test": "test_2018_flickr"}, "lacks test_2018_flickr.de"),
        ({"root": str(tmp_path / "none")}, "is not a folder"),
    ):
        with refused(said):
            open_data("multi30k", {"root": str(tmp_path), **values})


def test_multi30k_trains_without_its_test_set(tmp_path: Path) -> None:
    for name in ("train", "val"):
        for language in ("en", "de"):
            write(tmp_path / f"{name}.{language}", f"{name} in {language}")
    assert open_data("multi30k", {"root": str(tmp_path)}).splits == ("train", "val")
    with refused("lacks test_2018_flickr.en"):
        open_data("multi30k", {"root": str(tmp_path), "test": "test_2018_flickr"})
    write(tmp_path / "test_2016_flickr.en", "no German")
    with refused("lacks test_2016_flickr.de"):
        open_data("multi30k", {"root": str(tmp_path)})


@pytest.mark.shared
@pytest.mark.parametrize("target", ["de", "fr"])
def test_multi30k_as_published(shared: Path, target: str) -> None:
    data = open_data("multi30k", {"root": str(shared / "data/multi30k"), "target": target})
    data.check()
    assert [sum(1 for _ in data.pairs(split)) for split in ("train", "val", "test")] == [29_000, 1014, 1000]
    first = next(data.pairs("train"))
    assert first.source == "Two young, White males are outside near many bushes."
    assert first.where.endswith("train.en.gz, line 1,")


def talks(root: Path, sentences: int = 50) -> None:
    for language, word in (("de", "das"), ("en", "the")):
        head = ["<url>http</url>", "<keywords>k</keywords>", f"<title>{word} title</title>", "<talkid>1</talkid>"]
        lines = [f"{word} {n} ." for n in range(sentences)]
        lines[3] = f"{word} " * (176 if language == "de" else 170)
        lines[5] = f"{word} " * (6 if language == "de" else 3)
        write(root / f"train.tags.de-en.{language}", *head, f" <description>{word} d.</description>", *lines)
        for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010"):
            body = ["<?xml?>", "<doc>", f'<seg id="1"> {word}’s {name} </seg>', f'  <seg id="2">{word}</seg>', "</doc>"]
            write(root / f"IWSLT14.{name}.de-en.{language}.xml", *body)


def test_iwslt14(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sacremoses")
    monkeypatch.setenv("VLP_CACHE", str(tmp_path / "cache"))
    talks(tmp_path / "de-en")
    data = open_data("iwslt14", {"root": str(tmp_path / "de-en")})
    lines = [("das title", "the title"), (" das d.", " the d.")]
    lines += [(f"das {n} .", f"the {n} .") for n in range(50) if n not in (3, 5)]
    assert both(data, "val") == [lines[22], lines[45]]
    assert both(data, "train") == [line for n, line in enumerate(lines, 1) if n % 23]
    assert both(data, "test")[:3] == [
        ("das's TED.dev2010", "the's TED.dev2010"),
        ("das", "the"),
        ("das's TEDX.dev2012", "the's TEDX.dev2012"),
    ]
    assert len(both(data, "test")) == 6
    assert data.notes[0].startswith("the test set lacks TED.tst2011, TED.tst2012")
    assert len({data.fingerprint(split) for split in data.splits}) == 3
    assert list((tmp_path / "cache").rglob("kept.npy")), "what is clean is counted once"
    backwards = open_data("iwslt14", {"root": str(tmp_path / "de-en"), "source": "en", "target": "de", "clean": False})
    assert len(both(backwards, "train")) + len(both(backwards, "val")) == 52
    assert both(backwards, "test")[1] == ("the", "das")
    markup = tmp_path / "de-en" / "IWSLT14.TED.tst2010.de-en.de.xml"
    markup.write_text(f"<translator>somebody</translator>\n{markup.read_text()}")
    data.check(["test"])  # segments run parallel, not lines
    markup.write_text(f'{markup.read_text()}<seg id="3">das</seg>\n')
    with refused("de-en.de.xml has 3 lines, but .*de-en.en.xml has 2"):
        data.check(["test"])


def test_faults_of_iwslt14(tmp_path: Path) -> None:
    with refused("is empty: it must hold train.tags.de-en.de"):
        open_data("iwslt14", {"root": str(tmp_path)})
    write(tmp_path / "train.tags.de-en.de", "a")
    with refused("lacks train.tags.de-en.de or its translation"):
        open_data("iwslt14", {"root": str(tmp_path)})
    write(tmp_path / "train.tags.de-en.en", "a", "<url>")
    with refused("has no IWSLT14.TED.dev2010.de-en.de.xml"):
        open_data("iwslt14", {"root": str(tmp_path)})
    write(tmp_path / "IWSLT14.TED.tst2010.de-en.de.xml", "<doc>")
    write(tmp_path / "IWSLT14.TED.tst2010.de-en.en.xml", "<doc>")
    data = open_data("iwslt14", {"root": str(tmp_path)})
    with refused(r"tst2010.de-en.de.xml has no line with <seg id="):
        list(data.pairs("test"))
    with refused("de-en.de has 1 lines, but .*de-en.en has 2"):
        data.check()


def test_wmt14(tmp_path: Path) -> None:
    for n, name in enumerate(("training/europarl-v7.de-en", "commoncrawl.de-en", "nc/news-commentary-v9.de-en")):
        for language in ("en", "de"):
            write(tmp_path / f"{name}.{language}", *(f"{language} {n} {i}" for i in range(3)))
    for kind, language in (("src", "en"), ("ref", "de")):
        write(tmp_path / f"test-full/newstest2014-deen-{kind}.{language}.sgm", f'<seg id="1">{language} test</seg>')
        write(tmp_path / f"dev/newstest2013.{language}", f"{language} dev")
    data = open_data("wmt14", {"root": str(tmp_path)})
    assert both(data, "train")[3:5] == [("en 1 0", "de 1 0"), ("en 1 1", "de 1 1")]
    assert [pair.id for pair in data.pairs("train")] == [str(n) for n in range(1, 10)]
    assert (both(data, "val"), both(data, "test")) == ([("en dev", "de dev")], [("en test", "de test")])
    markup = tmp_path / "test-full/newstest2014-deen-ref.de.sgm"
    markup.write_text(f"<refset>\n{markup.read_text()}")
    data.check()  # segments run parallel, not lines
    assert data.notes == ("the training text is europarl-v7.de-en, commoncrawl.de-en, news-commentary-v9.de-en",)
    held = open_data("wmt14", {"root": str(tmp_path), "held_out": 4})
    assert both(held, "val") == [("en 1 0", "de 1 0"), ("en 2 1", "de 2 1")]
    assert len(both(held, "train")) == 7
    assert held.fingerprint("train") != data.fingerprint("train")
    some = open_data("wmt14", {"root": str(tmp_path), "train": ["commoncrawl.de-en"], "source": "de", "target": "en"})
    assert both(some, "train")[0] == ("de 1 0", "en 1 0")
    assert some.splits == ("train", "val")
    for values, said in (
        ({"train": ["undoc"]}, "lacks undoc.en or its translation"),
        ({"target": "fr"}, "holds no files of WMT14 in en and fr"),
        ({"target": "cs"}, "must be en and de, or en and fr"),
        ({"held_out": 1}, "held_out=1 must be at least 2"),
    ):
        with refused(said):
            open_data("wmt14", {"root": str(tmp_path), **values})
    for names in CORPORA["fr-en"]:
        for language in ("en", "fr"):
            write(tmp_path / f"fr/{names[0]}.{language}.gz", f"{language} {names[0]}")
    french = open_data("wmt14", {"root": str(tmp_path), "target": "fr"})
    assert len(both(french, "train")) == 5
    write(tmp_path / "commoncrawl.de-en.de", "one")
    with refused("commoncrawl.de-en.en has 3 lines, but .*commoncrawl.de-en.de has 1"):
        data.check(["train"])


def test_scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLP_CACHE", str(tmp_path))
    small: dict[str, Any] = {"size": 48, "train": 4, "val": 3, "test": 2, "feature_dim": 16}
    data = open_data("scenes", small)
    truth = [pair for index in range(3) for pair in scene(1, index, ScenesSettings(**small)).pairs]
    assert both(data, "val") == truth
    assert len({pair.id for pair in data.pairs("val")}) == len(truth) == 9
    back = open_data("scenes", {**small, "source": "toru", "target": "vela"})
    assert both(back, "val") == [(b, a) for a, b in truth]
    assert data.fingerprint("train") == open_data("scenes", {**small, "val": 9}).fingerprint("train")
    assert data.fingerprint("train") != open_data("scenes", {**small, "seed": 9}).fingerprint("train")
    with refused("target=tora is not a language of Scenes: did you mean 'toru'"):
        open_data("scenes", {"target": "tora"})
    with refused("source=vela and target=vela must differ"):
        open_data("scenes", {"target": "vela"})


def test_names() -> None:
    assert DATA_SETS.keys() == READERS.keys()
    with refused(r"data.name=multi30 is not a reader of parallel texts: did you mean 'multi30k'"):
        open_data("multi30", {})
