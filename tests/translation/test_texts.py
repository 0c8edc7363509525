"""Lines to numbers and back: every choice of the settings, every file that others made, every fault in one sentence."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from vlp_translation.readers import Pair, ParallelData, open_data
from vlp_translation.texts import Texts, TextSettings
from vlp_translation.texts.bpe import Bpe
from vlp_translation.texts.codes import read_codes
from vlp_translation.texts.dictionary import of_counts, read_dictionary
from vlp_translation.texts.moses import Moses
from vlp_translation.texts.side import Side
from vlp_translation.texts.truecase import Casing, Truecaser
from vlp_translation.texts.wording import Wording
from vlplatform.errors import UserError
from vlplatform.settings import parse
from vlplatform.text.subwords import join

pytest.importorskip("sacremoses")
pytest.importorskip("tokenizers")

LINES = [
    ("A red dog runs.", "Ein roter Hund läuft."),
    ("The dog doesn't bark, but runs.", "Der Hund bellt nicht, sondern läuft."),
    ("Two dogs see the red ball.", "Zwei Hunde sehen den roten Ball."),
    ("", "Leer."),
    ("A well-known player throws the ball.", "Ein bekannter Spieler wirft den Ball."),
]


def data_of(lines: Iterable[tuple[str, str | None]] = LINES, name: str = "x") -> ParallelData:
    lines = list(lines)

    def read(split: str) -> Iterable[Pair]:
        return (Pair(str(n), a, b, f"{split}.en, line {n},") for n, (a, b) in enumerate(lines, 1))

    return ParallelData(name=name, languages=("en", "de"), read=read, fingerprint=lambda split: repr(lines))


def learn(cache: Path, lines: Iterable[tuple[str, str | None]] = LINES, **values: Any) -> Texts:
    return Texts.learn(data_of(lines), parse(TextSettings, values, "task.text"), cache)


def refused(message: str):
    return pytest.raises(UserError, match=message)


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8", newline="\n")
    return str(path)


# Words


def test_moses() -> None:
    moses = Moses("en")
    assert moses.words("Don't stop, U.S. & Mr. X!") == ["Don", "&apos;t", "stop", ",", "U.S.", "&amp;", "Mr.", "X", "!"]
    assert Moses("en", escape=False).words("don't [x]") == ["don", "'t", "[", "x", "]"]
    assert Moses("en", hyphens=True).words("well-known") == ["well", "@-@", "known"]
    assert moses.words("well-known") == ["well-known"]
    assert moses.words(" ") == moses.words("") == []
    assert Moses("vela").words("e.g. x.") == moses.words("e.g. x.")
    for line in ("Don't stop, please!", 'He said: "yes" (twice).'):
        assert moses.joined(moses.words(line)) == line
    hyphens = Moses("de", hyphens=True)
    assert hyphens.joined(hyphens.words("Der rot-weiße Ball & mehr.")) == "Der rot-weiße Ball & mehr."


def test_wording() -> None:
    assert Wording("de", lower=True).words("Der  ÄRGER ist GROẞ.") == ["der", "ärger", "ist", "groß", "."]
    assert Wording("en", punctuation=True, escape=False).words("“a” – b") == ['"', "a", '"', "-", "b"]
    assert Wording("en", moses=False).words("a b,\u2028c\xa0d ") == ["a", "b,", "c", "d"]
    assert Wording("en", moses=False).line(["a", "b,"]) == "a b,"


def test_truecase() -> None:
    casing = Casing()
    for line in (
        "The man in Rome . the Man sees the man",
        "( The man . They see US and us and us",
        "Rome is big",
        "1 2",
    ):
        casing.add(line.split())
    truecaser = casing.truecaser()
    assert truecaser(["The", "Man", "in", "ROME", "(", ".", "The", "US", "and", "They", "in"]) == [
        "the",
        "Man",
        "in",
        "Rome",
        "(",
        ".",
        "the",
        "US",
        "and",
        "They",
        "in",
    ]
    assert truecaser(["MAN", "Unseen", "UNSEEN"]) == ["man", "Unseen", "UNSEEN"]
    assert "they" not in truecaser.best, "a word seen only where sentences begin tells nothing"
    again = Truecaser.from_dict(json.loads(json.dumps(truecaser.as_dict())))
    assert (again.best, again.known) == (truecaser.best, truecaser.known)
    assert again.undone(['"', "the", "man", ".", "in", "Rome"]) == ['"', "The", "man", ".", "In", "Rome"]


@given(st.lists(st.lists(st.text(min_size=1, max_size=3), max_size=6), max_size=6))
def test_truecase_changes_nothing_but_case(lines: list[list[str]]) -> None:
    casing = Casing()
    for line in lines:
        casing.add(line)
    truecaser = casing.truecaser()
    for line in lines:
        assert [word.lower() for word in truecaser(line)] == [word.lower() for word in line]


# Pieces

WORDS = "low low low low low lower lower newest newest newest newest newest newest widest widest widest ünd ünd"


def test_bpe_learns_the_example_of_the_paper() -> None:
    bpe = Bpe.learn(Counter(WORDS.split()), 6)
    assert bpe.merges[:2] == ("e s", "es t</w>")
    assert len(bpe.merges) == 6
    assert len(Bpe.learn(Counter(WORDS.split()), 500).merges) < 30, "no pair that occurs once is merged"
    assert bpe.split(["lowest", "xyz"]) == ["lo@@", "w@@", "est", "x@@", "y@@", "z"]
    assert Bpe.from_dict(json.loads(json.dumps(bpe.as_dict()))).merges == bpe.merges


@given(st.lists(st.text(alphabet="abc@</w>é\u200d𝄞", min_size=1, max_size=12), min_size=1))
def test_bpe_joins_again_whatever_it_was_learnt_from(words: list[str]) -> None:
    bpe = Bpe.learn(Counter(WORDS.split() + words[::2]), 20)
    pieces = bpe.split(words)
    assert join(pieces, "bpe") == words
    assert all(bpe.split(words[i : i + 1]) for i in range(len(words)))


def test_a_word_that_looks_like_a_piece() -> None:
    bpe = Bpe(["@ @</w>", "a @", "a@ @</w>"])
    for words in (["@@", "x"], ["a@@", "x"], ["@", "x"], ["@@@@", "x"], ["</w>", "x"]):
        assert join(bpe.split(words), "bpe") == words


@given(st.lists(st.text(alphabet="lowernstid", min_size=1, max_size=14), min_size=1))
def test_bpe_merges_as_merges_one_after_the_other(words: list[str]) -> None:
    bpe = Bpe.learn(Counter(WORDS.split()), 15)
    for word in words:
        symbols = [*word[:-1], word[-1] + "</w>"]
        for merge in bpe.merges:
            left, right = merge.split(" ")
            place = 0
            while place + 1 < len(symbols):
                if (symbols[place], symbols[place + 1]) == (left, right):
                    symbols[place : place + 2] = [left + right]
                place += 1
        symbols[-1] = symbols[-1].removesuffix("</w>")
        assert [piece.removesuffix("@@") for piece in bpe.split([word])] == symbols


def test_bpe_learns_the_same_again() -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop\U000f0000", k=draw.randint(1, 9))) for _ in range(3000)]
    first = Bpe.learn(Counter(words), 400).merges  # most pairs occur as often as many others
    assert len(first) == 400
    assert not any(letter >= "\U000f0001" for merge in first for letter in merge)
    for seed in range(6):
        random.Random(seed).shuffle(words)
        assert Bpe.learn(Counter(words), 400).merges == first


def test_a_word_of_ten_thousand_letters() -> None:
    bpe = Bpe.learn(Counter(WORDS.split()), 20)
    word = "lowest" * 2000
    assert join(bpe.split([word]), "bpe") == [word]
    old = Bpe(bpe.merges, end_apart=True)
    assert join(old.split([word[:1000]]), "bpe") == [word[:1000]]


def test_codes_of_others(tmp_path: Path) -> None:
    new = read_codes(Path(write(tmp_path / "new", "#version: 0.2\ne s\nes t</w>\n")))
    assert new.split(["best", "es"]) == ["b@@", "est", "e@@", "s"]
    old = read_codes(Path(write(tmp_path / "old", "e s\nes t\nest </w>\n")))
    assert old.split(["best", "es", "estes"]) == ["b@@", "est", "es", "est@@", "es"]
    assert Bpe.from_dict(old.as_dict()).split(["est"]) == ["est"]
    fast = read_codes(Path(write(tmp_path / "fast", "e s 100\nes t</w> 90\n")))
    assert fast.merges == new.merges
    for text, said in (
        ("#version: 0.9\na b\n", "of version 0.9: give merges of 0.1 or 0.2"),
        ("a b\nabc\n", "line 2, is 'abc': two symbols"),
        ("", "has no merges"),
    ):
        with refused(said):
            read_codes(Path(write(tmp_path / "bad", text)))
    with refused("none cannot be read"):
        read_codes(tmp_path / "none")


# Dictionaries


def test_numbers_are_those_of_fairseq(tmp_path: Path) -> None:
    vocabulary = of_counts(Counter(["b", "b", "a", "a", "c", "<s>", "<s>", "<s>"]), 2, "words")
    assert vocabulary.words == ("<s>", "<pad>", "</s>", "<unk>", "a", "b")
    assert (vocabulary.bos, vocabulary.pad, vocabulary.eos, vocabulary.unk) == (0, 1, 2, 3)
    assert vocabulary.encode(["a", "c", "<s>", "<unk>"]) == [4, 3, 3, 3]
    read = read_dictionary(Path(write(tmp_path / "dict.txt", "the@@ 9\n, 8\nmadeupword0000 0\n")), "bpe")
    assert read.words[4:] == ("the@@", ",", "madeupword0000")
    assert read.decode([4, 5, 2, 5]) == ["the,"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a 1\nb\n", "dict.txt, line 2, is 'b': a word, a blank and its count"),
        ("a 1\nb x\n", "line 2, is 'b x'"),
        ("a 1\nb 2\na 3\n", "line 3, has the word 'a' of line 1 again"),
        ("<pad> 1\n", "has the word '<pad>' of the special symbols again"),
        ("<s> #fairseq:overwrite\n", "line 1, is"),
        ("", "has no words"),
    ],
)
def test_faulty_dictionaries(tmp_path: Path, text: str, said: str) -> None:
    with refused(said):
        read_dictionary(Path(write(tmp_path / "dict.txt", text)), "words")


def test_entries_of_a_dictionary_that_overwrite_others(tmp_path: Path) -> None:
    text = "a 4\n<s> 3 #fairseq:overwrite\nb 2 #fairseq:overwrite\na 1 #fairseq:overwrite\n"
    read = read_dictionary(Path(write(tmp_path / "dict.txt", text)), "words")
    assert len(read) == 4 + 4, "each line has its number, as in fairseq"
    assert read.encode(["a", "b", "<s>"]) == [7, 6, read.unk]
    assert (read.decode([7, 6]), read.words[0]) == (["a", "b"], "<s>")


def test_both_sides_may_be_of_one_language(tmp_path: Path) -> None:
    """Each side's dictionary is judged by its own lines."""
    data = replace(data_of([("a utilised dog", "the used dog")]), languages=("en", "en"))
    files = [write(tmp_path / "long", "a 1\nutilised 1\n"), write(tmp_path / "plain", "the 1\nused 1\n")]
    texts = Texts.learn(
        data, TextSettings(subwords="words", tokenize="none", dictionary=(files[0], files[1])), tmp_path
    )
    assert texts.target.encode("the used") == [4, 5]


def test_a_dictionary_that_does_not_match(tmp_path: Path) -> None:
    codes = write(tmp_path / "codes", "#version: 0.2\nd o\n")
    fits = write(
        tmp_path / "fits.txt", "".join(f"{a}{b} 1\n" for a in "abcdefghiklmnoprstuvwyABDELTSZ.,äö-" for b in ("", "@@"))
    )
    texts = learn(tmp_path, codes=codes, dictionary=fits)
    assert texts.shared
    assert texts.source.pieces("A dog") == ["A", "do@@", "g"]
    assert len(texts.target.vocabulary) == 4 + 2 * 35
    wrong = write(tmp_path / "wrong.txt", "▁the 4\n▁dog 3\n")
    with refused(r"wrong.txt knows 0 of the \d+ words or pieces of the first training lines in de: it does not match"):
        learn(tmp_path, codes=codes, dictionary=[fits, wrong])
    assert (
        not learn(tmp_path, codes=codes, dictionary=[fits, fits], shared=None).source.vocabulary.encode(["▁dog"])[0] > 3
    )


# Both sides


def test_joint_pieces(tmp_path: Path) -> None:
    texts = learn(tmp_path, size=60, lower=True)
    assert texts.shared
    assert texts.source.vocabulary is texts.target.vocabulary
    assert texts.source.splitter is texts.target.splitter
    for source, target in LINES:
        for side, line in zip((texts.source, texts.target), (source, target)):
            assert side.decode(side.encode(line)) == side.words(line)
    assert texts.target.words("Ein roter Hund.") == ["ein", "roter", "hund", "."]
    assert texts.source.detokenised(texts.source.decode(texts.source.encode("The dog doesn't bark, but runs."))) == (
        "the dog doesn't bark, but runs."
    )
    assert texts.source.encode("") == texts.source.encode(" \u2028 ") == []
    assert "▁" not in "".join(texts.source.pieces("dog"))


def test_apart(tmp_path: Path) -> None:
    apart = learn(tmp_path, size=20, joint=False)
    assert not apart.shared
    assert apart.source.pieces("dogs") != apart.target.pieces("dogs")
    one = learn(tmp_path, size=20, joint=True, shared=False)
    assert not one.shared
    assert one.source.pieces("dogs") == one.target.pieces("dogs")
    assert learn(tmp_path, size=20, joint=False, shared=True).shared


def test_words_and_truecase(tmp_path: Path) -> None:
    texts = learn(tmp_path, subwords="words", min_count=2, truecase=True, shared=False)
    assert texts.source.words("The dog.") == ["the", "dog", "."]
    assert texts.source.decode(texts.source.encode("The dog flies.")) == ["the", "dog", "<unk>", "."]
    assert texts.source.detokenised(["the", "dog", "."]) == "The dog."
    assert not texts.shared


def test_sentencepiece(tmp_path: Path) -> None:
    spm = pytest.importorskip("sentencepiece")
    lines = [line for pair in LINES for line in pair if line]
    with (tmp_path / "m.model").open("wb") as file:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=60, model_type="bpe", minloglevel=2
        )
    texts = learn(tmp_path, subwords="sentencepiece", sentencepiece=str(tmp_path / "m.model"), tokenize="none")
    assert texts.shared
    for side in (texts.source, texts.target):
        for line in lines:
            assert side.decode(side.encode(line)) == line.split()
    (tmp_path / "m.model").unlink()
    again = Texts.from_dict(json.loads(json.dumps(texts.as_dict())))
    assert again.source.encode(lines[0]) == texts.source.encode(lines[0])
    assert pickle.loads(pickle.dumps(again)).target.encode(lines[1]) == texts.target.encode(lines[1])
    for content in ("no model", ""):
        with refused("bad.model is no model of sentencepiece"):
            bad = write(tmp_path / "bad.model", content)
            learn(tmp_path, subwords="sentencepiece", sentencepiece=bad, tokenize="none")


@pytest.mark.parametrize(
    "values",
    [
        {"size": 30},
        {"size": 30, "joint": False, "truecase": True, "hyphens": True},
        {"subwords": "words", "lower": True, "tokenize": "none"},
    ],
)
def test_saved_texts_are_the_same(tmp_path: Path, values: dict[str, Any]) -> None:
    texts = learn(tmp_path, **values)
    saved = json.loads(json.dumps(texts.as_dict()))
    for again in (Texts.from_dict(saved), pickle.loads(pickle.dumps(texts)), copy.deepcopy(texts)):
        assert again.as_dict() == texts.as_dict()
        assert (again.digest, again.shared) == (texts.digest, texts.shared)
        for source, target in LINES:
            assert again.source.encode(source) == texts.source.encode(source)
            assert again.target.words(target) == texts.target.words(target)
    if texts.shared:
        assert saved["target"]["vocabulary"] is None, "the common vocabulary is there once"


def test_damaged_texts(tmp_path: Path) -> None:
    saved = learn(tmp_path, size=30).as_dict()
    for values in ({}, {"source": saved["source"]}, {**saved, "source": {}}, {"source": 3, "target": 4}):
        with refused("the saved texts cannot be read"):
            Texts.from_dict(values)
    with refused("split words by 'bpee': did you mean 'bpe'"):
        Side.from_dict({**saved["source"], "splitter": {"kind": "bpee"}})
    (file,) = tmp_path.glob("texts-*/texts.json")
    file.write_text(file.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    with refused(r"the cached texts in .* are damaged"):
        learn(tmp_path, size=30)


@examples(max_examples=30, deadline=None)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=4))
def test_any_line_comes_back(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    lines = [line for line in lines if line.split()] or ["x"]
    cache = tmp_path_factory.mktemp("cache")
    for values in ({"tokenize": "none"}, {}):
        try:
            texts = learn(cache, [(line, line) for line in lines], size=10, **values)
        except UserError as error:
            assert "no word occurs" in str(error), "lines of control characters alone"  # noqa: PT017
            continue
        for line in lines:
            words = texts.source.words(line)
            assert all(word.split() == [word] for word in words)
            if not set(words) & set(texts.source.vocabulary.words[:4]):
                assert texts.source.decode(texts.source.encode(line)) == words


# Faults and interruptions


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"size": 0}, "size=0 and min_count=1 must be at least 1"),
        ({"lower": True, "truecase": True}, "choose one"),
        ({"tokenize": "none", "hyphens": True}, "hyphens=true is a choice of tokenize=moses"),
        ({"subwords": "sentencepiece"}, "need each other"),
        ({"sentencepiece": "m.model"}, "need each other"),
        ({"subwords": "sentencepiece", "sentencepiece": "m.model"}, "reads raw lines: add tokenize=none"),
        ({"subwords": "words", "codes": "c"}, "codes=c are merges of subwords=bpe"),
        ({"dictionary": "d"}, "dictionary=d holds the pieces of certain merges: add codes=FILE"),
        ({"codes": "c", "dictionary": ["d", "e"], "shared": True}, "shared=true needs one dictionary"),
        ({"codes": ["a", "b", "c"]}, "task.text.codes"),
        ({"subwords": "bbpe"}, "did you mean 'bpe'"),
        ({"codes": "none"}, "none cannot be read"),
        ({"min_count": 99}, "no word occurs 99 times in the training text: lower task.text.min_count"),
    ],
)
def test_faulty_settings(tmp_path: Path, values: dict[str, Any], said: str) -> None:
    with refused(said):
        learn(tmp_path, **values)


def test_nothing_to_learn_from(tmp_path: Path) -> None:
    write(tmp_path / "val.jsonl", '{"source": "a", "target": "b"}\n')
    values = {"source": "en", "target": "de", "val_file": str(tmp_path / "val.jsonl")}
    with refused("data=jsonl has no split 'train': valid: val"):
        Texts.learn(open_data("jsonl", values), TextSettings(), tmp_path)
    with refused("data=x has no sentence pair to train on"):
        learn(tmp_path, [("", "a"), ("b", " ")])
    with refused("train.en, line 1, has no translation to learn from"):
        learn(tmp_path, [("a", None)])


@pytest.mark.parametrize(
    ("package", "said"), [("sacremoses", "Moses' tokenisation needs"), ("tokenizers", "byte-pair")]
)
def test_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, said: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with refused(rf"{said}.*pip install vlplatform\[translation\]"):
        learn(tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused("cannot be written"):
        learn(tmp_path / "file")


def test_learning_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Bpe:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bpe, "learn", interrupt)
        with pytest.raises(KeyboardInterrupt):
            learn(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
    assert learn(tmp_path).shared


KILLED = """
import sys, time
from pathlib import Path
from test_texts import learn
from vlp_translation.texts.bpe import Bpe
def endless(*_):
    print("learning", flush=True)
    time.sleep(60)
Bpe.learn = endless
learn(Path(sys.argv[1]))
"""

LEARNER = """
import sys
from pathlib import Path
from test_texts import learn
print(learn(Path(sys.argv[1]), size=50).digest)
"""


def started(code: str, cache: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    command = [sys.executable, "-c", code, str(cache)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)


def test_learning_that_is_killed_starts_again(tmp_path: Path) -> None:
    with started(KILLED, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "learning\n"
        process.send_signal(signal.SIGKILL)
    assert learn(tmp_path).shared
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_processes_agree(tmp_path: Path) -> None:
    both = [started(LEARNER, tmp_path / "together") for _ in range(2)]
    digests = {process.communicate()[0] for process in both}
    assert digests == {f"{learn(tmp_path / 'alone', size=50).digest}\n"}


def test_settings_and_data_decide_what_is_taken_from_the_cache(tmp_path: Path) -> None:
    codes = Path(write(tmp_path / "codes", "#version: 0.2\nd o\n"))
    first = learn(tmp_path, codes=str(codes))
    codes.write_text("#version: 0.2\no g</w>\n", encoding="utf-8")
    second = learn(tmp_path, codes=str(codes))
    assert (first.source.pieces("dog"), second.source.pieces("dog")) == (["do@@", "g"], ["d@@", "og"])
    assert len(list(tmp_path.glob("texts-*/texts.json"))) == 2
    assert learn(tmp_path, LINES[:3], size=9).digest != learn(tmp_path, LINES[1:], size=9).digest


@pytest.mark.shared
def test_real_lines_come_back(shared: Path, tmp_path: Path) -> None:
    data = open_data("multi30k", {"root": str(shared / "data/multi30k")})
    lines = [(pair.source, pair.target) for pair in data.pairs("val")]
    texts = learn(tmp_path, lines, size=1000, lower=True)
    assert 1000 < len(texts.source.vocabulary) < 1200
    for source, target in lines:
        for side, line in ((texts.source, source), (texts.target, target or "")):
            numbers = side.encode(line)
            assert side.decode([*numbers, side.vocabulary.eos]) == side.words(line)
            assert side.vocabulary.unk not in numbers
