"""``vlp predict`` of translators: sentences, files, standard input, in order; what cannot be read or written."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
import torch

from vlp_translation.ensemble import best_translations
from vlp_translation.models import TransformerSettings, Translation, Translator
from vlp_translation.predict import as_decoded
from vlp_translation.task import DecodeSettings
from vlp_translation.texts import Side, Texts
from vlp_translation.texts.dictionary import of_words
from vlp_translation.texts.whole import WholeWords
from vlp_translation.texts.wording import Wording
from vlplatform.cli.main import main
from vlplatform.hub import save_model

WORDS = ("a", "dog", "two", "dogs", "männer", "ein", "hund")
LINES = ["a dog", "", "two dogs dogs a", "männer", "a", "dog dog dog", " "]
DECODE = {"beam": 2, "max_length_a": 0.0, "max_length_b": 4, "no_repeat": 1}


def made(seed: int = 0) -> Translator:
    torch.manual_seed(seed)
    sides = (Side(Wording(code, moses=False), WholeWords(), of_words(list(WORDS), "words")) for code in ("en", "de"))
    sizes = TransformerSettings(dim=16, heads=2, hidden=24, encoder_layers=1, decoder_layers=1, share_embeddings="none")
    return Translator(Texts(*sides), {"name": "sa"}, sizes).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / "model"
    return save_model(made(), place, task="translation", sections={"task": {"decode": DECODE}})


@pytest.fixture(scope="module")
def wanted() -> list[str]:
    model = made()
    return [best_translations([model], [line], DecodeSettings(**DECODE))[0].text for line in LINES]


def predict(folder: Path, *words: str | Path) -> int:
    return main(["predict", str(folder), *map(str, words), "--device", "cpu"])


def given(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *words: str | Path) -> str:
    capsys.readouterr()
    assert predict(folder, *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_sentences(folder: Path, wanted: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert len(set(wanted)) > 3, "else no order could be seen"
    assert wanted[1] == wanted[6] == ""
    assert predict(folder, *LINES) == 0
    assert capsys.readouterr().out.splitlines() == wanted


def test_standard_input(
    folder: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone or as ``-``; ends of lines of any system, none behind the last; a mark of byte order."""
    for words, end, mark in (([], "\n", b""), (["-"], "\r\n", b"\xef\xbb\xbf")):
        given(monkeypatch, mark + end.join(LINES).encode())
        assert predict(folder, *words) == 0
        assert capsys.readouterr().out.splitlines() == wanted
    given(monkeypatch, b"")
    assert predict(folder) == 0
    assert capsys.readouterr().out == ""
    many = LINES * 900  # more than is read at once, and than is translated together
    given(monkeypatch, "".join(f"{line}\n" for line in many).encode())
    assert predict(folder) == 0
    assert capsys.readouterr().out.splitlines() == wanted * 900


def test_lines_before_a_fault_are_written(
    folder: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, b"a dog\n\nM\xe4nner\ndog\n")
    assert predict(folder) == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines() == wanted[:2]
    assert captured.err == "error: standard input, line 3, is not UTF-8: convert it (iconv -t utf-8).\n"


def test_lines_before_one_too_long_are_written(
    folder: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, b"a dog\n\n" + b"dog " * 2000 + b"\ndog\n")
    assert predict(folder) == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines() == wanted[:2]
    assert captured.err.startswith("error: standard input, line 3, has 2000 words or pieces")


def test_a_sentence_without_a_translation_keeps_its_line(
    folder: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forced = [f"task.decode.{pair}" for pair in ("max_length_b=20", "min_length=16", "no_repeat=1")]
    given(monkeypatch, b"a dog\n\ntwo\n")
    assert predict(folder, *forced) == 0  # there are 11 words in all
    captured = capsys.readouterr()
    assert captured.out == "\n\n\n"
    told = [line.partition(" has no translation")[0] for line in captured.err.splitlines()]
    assert told == ["note: standard input, line 1,", "note: standard input, line 3,"]
    assert best_translations([made()], ["a"], DecodeSettings(**{**DECODE, "max_length_b": 20, "min_length": 16}))[
        0
    ] == (Translation("", -math.inf, [], [], []))


def test_an_evaluation_tells_of_sentences_without_a_translation(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for code, lines in (("en", "a dog\ntwo\n"), ("de", "ein hund\nzwei\n")):
        (tmp_path / f"x.{code}").write_text(lines)
    data = ["data=text", "data.source=en", "data.target=de", f"data.train={tmp_path}/x", f"data.val={tmp_path}/x"]
    forced = [f"task.decode.{pair}" for pair in ("max_length_b=20", "min_length=16", "no_repeat=1")]
    out = ["--split", "val", "--out", str(tmp_path / "scores.json"), "--device", "cpu"]
    assert main(["eval", str(folder), *data, *forced, "task.scores=[bleu]", *out]) == 0
    assert "no translation ends within the lengths and rules of task.decode for 2 sentences" in capsys.readouterr().out
    rows = json.loads((tmp_path / "scores.translations.json").read_text())
    assert [(row["translation"], row["score"]) for row in rows] == [("", None), ("", None)]


def test_names_of_files_that_are_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("newstest.en", "valid.bpe.de"):
        assert f"the input {word} is not a file" in refused(capsys, folder, word)
    assert predict(folder, "z.B", "a newstest.en", "dog.fr") == 0


def test_files(folder: Path, wanted: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.en").write_bytes("\r\n".join(LINES).encode())
    (tmp_path / "empty").write_bytes(b"")
    out = tmp_path / "deep" / "out"
    assert predict(folder, "a dog", tmp_path / "x.en", tmp_path / "empty", "--out", out) == 0
    assert capsys.readouterr().out.splitlines() == [wanted[0], str(out / "x.en.de"), str(out / "empty.de")]
    assert (out / "x.en.de").read_text() == "".join(f"{line}\n" for line in wanted)
    assert (out / "empty.de").read_text() == ""
    assert sorted(path.name for path in out.iterdir()) == ["empty.de", "x.en.de"]


def test_what_cannot_be_read_or_written(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("a dog\n")
    (tmp_path / "latin").write_bytes(b"a dog\nM\xe4nner\n")
    (tmp_path / "long").write_text("a dog\n" + "dog " * 10_000 + "\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_text("a dog\n")
    out = tmp_path / "out"
    told = refused(capsys, folder, tmp_path / "x", tmp_path / "latin", "--out", out)
    assert f"{tmp_path / 'latin'}, line 2, is not UTF-8 (byte 2 is 0xe4)" in told
    told = refused(capsys, folder, tmp_path / "long", "--out", out)
    assert f"{tmp_path / 'long'}, line 2, has 10000 words or pieces, more than task.decode.max_source=1024" in told
    told = refused(capsys, folder, tmp_path / "x", tmp_path / "other" / "x", "--out", out)
    assert f"would both be translated into {out / 'x.de'}" in told
    assert not out.exists()
    assert "has 10000 words or pieces" in refused(capsys, folder, "dog " * 10_000)
    told = refused(capsys, folder, tmp_path / "x", "--out", tmp_path / "latin")
    assert told.startswith(f"error: {tmp_path / 'latin' / 'x.de'} cannot be written (")
    (out / "x.de").mkdir(parents=True)
    assert f"{out / 'x.de'} cannot be written (" in refused(capsys, folder, tmp_path / "x", "--out", out)
    assert [path.name for path in out.iterdir()] == ["x.de"], "nothing half-written is left"


def test_settings_of_decoding(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made()
    assert as_decoded(model) == DecodeSettings()
    given(monkeypatch, b"a dog\n\ntwo")
    assert predict(folder, "task.decode.returned=2", "task.decode.length_penalty=0") == 0
    rows = [line.split(" ||| ") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "1", "2", "2"]
    best = model.generate(["a dog"], beam=2, max_length_b=4, no_repeat=1, returned=2, length_penalty=0)[0]
    assert [(row[1], float(row[2])) for row in rows[:2]] == [(b.text, pytest.approx(b.score, abs=1e-5)) for b in best]
    assert "beam=0" in refused(capsys, folder, "a", "task.decode.beam=0")
    assert "has no part in predicting" in refused(capsys, folder, "a", "task.label_smoothing=0.1")


def test_drawn_translations(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*words: str) -> list[list[str]]:
        assert predict(folder, *words) == 0
        return [line.split(" ||| ") for line in capsys.readouterr().out.splitlines()]

    drawing = ["task.decode.samples=3", "task.decode.top_k=5", "task.decode.no_repeat=0"]
    found = rows("a dog", "", "two dogs dogs a", *drawing)
    assert [row[0] for row in found] == ["0", "0", "0", "1", "2", "2", "2"]
    scores = [float(row[2]) for row in found[:3]]
    assert scores == sorted(scores, reverse=True)
    assert [row[1:] for row in rows("two dogs dogs a", "a dog", *drawing)[3:]] == [row[1:] for row in found[:3]]
    assert rows("a dog", *drawing, "task.decode.seed=1") != found[:3]
    one = rows("a dog", "task.decode.samples=1")
    assert len(one) == 1
    assert len(one[0]) == 1, "a translation alone"
    assert rows("a dog", "task.decode.samples=1", "--with", str(folder)) == one
    assert "say how often with samples=N" in refused(capsys, folder, "a", "task.decode.top_k=5")
    assert "top_p=2.0 must be above 0" in refused(capsys, folder, "a", "task.decode.samples=2", "task.decode.top_p=2")
    assert "samples=-1 must not be negative" in refused(capsys, folder, "a", "task.decode.samples=-1")


def test_bars_in_a_translation_part_no_fields(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlp_translation.texts.wording.Wording.line", lambda *_: "a ||| b")
    assert predict(folder, "a dog", "task.decode.returned=2") == 0
    for line in capsys.readouterr().out.splitlines():
        assert line.split(" ||| ")[1:-1] == ["a &#124;&#124;&#124; b"]
    assert predict(folder, "a dog") == 0
    assert capsys.readouterr().out == "a ||| b\n"


def test_a_line_is_read_once_by_n_best(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = made(), list[str]()
    encode = Side.encode
    monkeypatch.setattr(Side, "encode", lambda side, line: read.append(line) or encode(side, line))
    assert best_translations([model], ["a dog", " ", "a"], DecodeSettings(**DECODE))[1].text == ""
    assert read == ["a dog", " ", "a"]


def test_an_ensemble(folder: Path, tmp_path: Path, wanted: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    other = made(1).save(tmp_path / "other")
    assert predict(folder, *LINES, "--with", folder) == 0
    assert capsys.readouterr().out.splitlines() == wanted
    assert predict(folder, *LINES, "--with", other) == 0
    found = [each.text for each in best_translations([made(), made(1)], LINES, DecodeSettings(**DECODE))]
    assert capsys.readouterr().out.splitlines() == found
    assert found != wanted


def test_help_teaches_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["predict", "--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert 'vlp predict runs/NAME "ein Satz"' in told
    assert "< german.txt > english.txt" in told
    assert "a line each and in their order" in told
