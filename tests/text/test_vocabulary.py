"""Vocabularies: numbers, special symbols, pieces of words."""

from __future__ import annotations

from pathlib import Path

import pytest

from vlplatform.errors import UserError
from vlplatform.text import Vocabulary
from vlplatform.text.subwords import join, split

SENTENCES = [["a", "red", "star"], ["a", "ring"], ["a", "red", "ring"]]


def test_build_ranks_and_counts() -> None:
    vocabulary = Vocabulary.build(SENTENCES, min_count=2)
    assert vocabulary.words == ("<pad>", "<bos>", "<eos>", "<unk>", "a", "red", "ring")
    assert vocabulary.encode(["a", "blue", "ring"]) == [4, 3, 6]
    assert vocabulary.decode([1, 4, 3, 6, 2, 5]) == ["a", "<unk>", "ring"]
    assert Vocabulary.from_dict(vocabulary.as_dict()) == vocabulary


def test_a_word_that_spells_a_symbol_is_unknown() -> None:
    vocabulary = Vocabulary.build([["<eos>", "a"]])
    assert vocabulary.encode(["<eos>", "a"]) == [3, 4]


def test_one_symbol_for_all() -> None:
    vocabulary = Vocabulary((".", "a", "cat"), pad=0, bos=0, eos=0, unk=None)
    assert vocabulary.encode(["a", "dog", "cat"]) == [1, 2]
    assert vocabulary.decode([1, 2, 0, 1]) == ["a", "cat"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"words": ["a", "a"], "pad": 0, "bos": 0, "eos": 0, "unk": None}, "'a' twice"),
        ({"words": ["a"], "pad": 5, "bos": 0, "eos": 0, "unk": None}, "pad=5"),
        ({"words": ["a"], "pad": "x", "bos": 0, "eos": 0, "unk": None}, "no numbers"),
        ({"words": ["a"]}, "cannot be read"),
    ],
)
def test_faulty_ones_are_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Vocabulary.from_dict(values)


def test_no_word_left() -> None:
    with pytest.raises(UserError, match="no word occurs 9 times"):
        Vocabulary.build(SENTENCES, min_count=9)


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        (["a", "photo", "##graph"], "wordpiece"),
        (["▁a", "▁photo", "graph"], "sentencepiece"),
        (["a", "Ġphoto", "graph"], "bytes"),
    ],
)
def test_pieces_join(pieces: list[str], kind: str) -> None:
    assert join(pieces, kind) == ["a", "photograph"]  # type: ignore[arg-type]


def test_bytes_beyond_ascii() -> None:
    assert join(["cafÃ©"], "bytes") == ["café"]


def test_split_with_a_tokeniser_from_a_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "an", "cat", "##s", "un", "##question", "##ably"]
    words += ["extra", "##ordinary", "photo", "##graph"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    pieces, kind = split(["a cats photograph"], str(tmp_path / "bert"))
    assert kind == "wordpiece"
    assert join(pieces[0], kind) == ["a", "cats", "photograph"]


def test_split_without_the_tokeniser(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UserError, match="cannot be had"):
        split(["a"], str(tmp_path / "nothing"))
