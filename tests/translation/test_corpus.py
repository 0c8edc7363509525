"""Splits as numbers on disk, and the batches made of them."""

from __future__ import annotations

import json
import pickle
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from vlp_translation import cache
from vlp_translation.batches import BatchSettings, SentenceRecords, TokenBatches, collate
from vlp_translation.corpus import Corpus
from vlp_translation.readers import Pair, ParallelData, open_data
from vlp_translation.texts import Side, Texts, TextSettings
from vlp_translation.texts.dictionary import of_words
from vlp_translation.texts.whole import WholeWords
from vlp_translation.texts.wording import Wording
from vlplatform.errors import UserError
from vlplatform.settings import parse

LETTERS = "abcdefgh"
EOS, PAD = 2, 1


def texts_of(words: str = LETTERS) -> Texts:
    """Words are letters: a 4, b 5 and so on."""
    sides = (
        Side(Wording(language, moses=False), WholeWords(), of_words(list(words), "words")) for language in ("en", "de")
    )
    return Texts(*sides)


def data_of(pairs: list[tuple[str, str | None]], name: str = "x") -> ParallelData:
    def read(split: str) -> Iterator[Pair]:
        return (Pair(str(n), a, b, f"{split}.en, line {n},") for n, (a, b) in enumerate(pairs, 1))

    return ParallelData(name=name, languages=("en", "de"), read=read, fingerprint=lambda split: repr(pairs))


def line(length: int) -> str:
    return " ".join(LETTERS[i % len(LETTERS)] for i in range(length))


def opened(cache: Path, pairs: list[tuple[str, str | None]], split: str = "train", **values: Any) -> Corpus:
    return Corpus.open(data_of(pairs), split, texts_of(), BatchSettings(**values), cache)


def lengths_of(*lengths: tuple[int, int]) -> list[tuple[str, str | None]]:
    return [(line(a), line(b)) for a, b in lengths]


def refused(message: str):
    return pytest.raises(UserError, match=message)


def test_numbers(tmp_path: Path) -> None:
    corpus = opened(tmp_path, [("a b ü", "c"), ("h", "a a")])
    assert len(corpus) == 2
    id, source, target = corpus[1]
    assert (id, source.tolist(), target.tolist()) == ("2", [11], [4, 4])
    assert corpus[-2][1].tolist() == [4, 5, 3]
    assert source.dtype == np.int32
    assert corpus.lengths.tolist() == [[3, 1], [1, 2]]
    assert (corpus.line(0), corpus.reference(0), corpus.notes) == ("", None, ())
    for index in (2, -3):
        with pytest.raises(IndexError):
            corpus[index]
    with pytest.raises(ValueError, match="read-only"):
        source[0] = 1
    again = pickle.loads(pickle.dumps(corpus))
    assert again[0][1].tolist() == [4, 5, 3]
    assert len(pickle.dumps(corpus)) < 1000, "a worker maps the files itself"


def test_what_is_left_out_of_training(tmp_path: Path) -> None:
    pairs = [
        *lengths_of((3, 3), (0, 2), (2, 0), (10_000, 4), (21, 20), (2, 7)),
        (" \u2028", "b"),
        *lengths_of((20, 20)),
    ]
    corpus = opened(tmp_path, pairs, max_length=20, max_ratio=3)
    assert [corpus[i][0] for i in range(len(corpus))] == ["1", "8"]
    assert corpus.notes == (
        "training pairs left out: 3 empty (the first: train.en, line 2)",
        "training pairs left out: 2 longer than max_length=20 (the first: train.en, line 4)",
        "training pairs left out: 1 more unequal than max_ratio=3 (the first: train.en, line 6)",
    )
    assert len(opened(tmp_path, pairs, max_length=20, max_ratio=None)) == 3
    with refused(
        r"data=x has no sentence pair for its split 'train': training pairs left out: 1 longer than max_length=2"
    ):
        opened(tmp_path, lengths_of((9, 9)), max_length=2)


def test_evaluation_keeps_everything(tmp_path: Path) -> None:
    pairs: list[tuple[str, str | None]] = [("a\u2028 b", "c"), ("", ""), (line(10_000), "d"), ("ü", None)]
    corpus = opened(tmp_path, pairs, "test", max_length=20)
    assert corpus.lengths.tolist() == [[2, 1], [0, 0], [10_000, 1], [1, 0]]
    assert [(corpus.line(i), corpus.reference(i)) for i in range(4)] == pairs
    assert corpus.notes == ("pairs of test that are kept: 1 empty (the first: test.en, line 2)",)
    records = SentenceRecords(corpus)
    assert [records[i]["id"] for i in range(len(records))] == ["3", "1", "4", "2"]
    batch = collate([records[i] for i in (1, 2, 3)], texts_of())
    assert batch["ids"] == ["1", "4", "2"]
    assert batch["source"].tolist() == [[4, 5, EOS], [3, EOS, PAD], [EOS, PAD, PAD]]
    assert batch["targets"].tolist() == [[6, EOS], [EOS, PAD], [EOS, PAD]]
    assert batch["read"].tolist() == [[EOS, 6], [EOS, PAD], [EOS, PAD]]
    assert (batch["lines"], batch["references"]) == (["a\u2028 b", "ü", ""], ["c", None, ""])
    with refused("data=x has no sentence pair for its split 'val': it has no lines"):
        opened(tmp_path, [], "val")
    with refused("data=x has no split 'dev'"):
        opened(tmp_path, pairs, "dev")


def test_blank_lines_of_json_are_told(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"source": "a", "target": "b"}\n\n \n{"source": "", "target": "b"}\n')
    data = open_data("jsonl", {"source": "en", "target": "de", "val_file": str(tmp_path / "x.jsonl")})
    assert Corpus.open(data, "val", texts_of(), BatchSettings(), tmp_path / "cache").notes == (
        f"pairs of val that are kept: 1 empty (the first: {tmp_path / 'x.jsonl'}, line 4)",
        f"blank lines left out: 2 (the first: {tmp_path / 'x.jsonl'}, line 2)",
    )


def test_a_long_wait_is_explained(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path, lengths_of((3, 3)))
    assert capsys.readouterr().err == "", "nothing is said of what takes no time"
    monkeypatch.setattr(cache, "SILENT_SECONDS", 0.01)
    cache.built_once(tmp_path / "slow", lambda _: time.sleep(0.3), "preparing data=x, val: lines become numbers, once")
    assert capsys.readouterr().err == "preparing data=x, val: lines become numbers, once …\n"


def test_ids_of_evaluation_are_told_apart(tmp_path: Path) -> None:
    twice = [Pair("1", "a", "a", "f, line 1,"), Pair("1", "b", "b", "f, line 2,")]
    data = ParallelData(name="x", languages=("en", "de"), read=lambda _: iter(twice), fingerprint=lambda _: "")
    with refused("f, line 2, has the id 1 of an earlier line"):
        Corpus.open(data, "val", texts_of(), BatchSettings(), tmp_path)
    assert len(Corpus.open(data, "train", texts_of(), BatchSettings(), tmp_path)) == 2


@examples(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=60),
    st.integers(14, 40),
    st.none() | st.integers(1, 5),
    st.integers(0, 3),
)
def test_batches_hold_each_pair_once_and_no_more_tokens_than_fit(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[tuple[int, int]],
    max_tokens: int,
    max_sentences: int | None,
    seed: int,
) -> None:
    settings = BatchSettings(max_tokens, max_sentences, max_length=12, max_ratio=None, seed=seed)
    corpus = Corpus.open(data_of(lengths_of(*lengths)), "train", texts_of(), settings, tmp_path_factory.mktemp("cache"))
    batches = TokenBatches(corpus, settings)
    seen = []
    for index in range(len(batches)):
        record = batches[index]
        batch = collate([record], texts_of())
        seen += batch["ids"]
        count = len(batch["ids"])
        longest = max(batch["source"].shape[1], batch["targets"].shape[1])
        assert 1 <= count <= (max_sentences or count)
        assert count * longest <= max_tokens
        assert batch["tokens"] == sum(len(target) + 1 for _, _, target in record["pairs"])
        assert batch["read"].shape == batch["targets"].shape
    assert sorted(map(int, seen)) == list(range(1, len(lengths) + 1))
    sources = [max(len(s) for _, s, _ in batches[i]["pairs"]) for i in range(len(batches))]
    assert sources == sorted(sources)


def test_batches_are_full(tmp_path: Path) -> None:
    settings = BatchSettings(max_tokens=24, max_length=12)
    corpus = opened(tmp_path, lengths_of(*[(3, 2)] * 13, (7, 3), (3, 7)))
    batches = TokenBatches(corpus, settings)
    # 24 / 4 = 6 pairs of length 3 with their end; the pair (3, 7) widens the third batch to 8: 24 / 8 = 3.
    assert np.diff(batches.starts).tolist() == [6, 6, 3]
    wide_first = TokenBatches(opened(tmp_path, lengths_of((1, 7), *[(3, 2)] * 12)), settings)
    assert np.diff(wide_first.starts).tolist() == [3, 6, 4], "a batch is as wide as its own pairs, not as earlier ones"
    assert batches.notes[0].startswith("15 training pairs in 3 batches of 5 pairs and 24 tokens on average")


def test_composition_is_seeded_and_fixed(tmp_path: Path) -> None:
    corpus = opened(tmp_path, lengths_of(*[(3, 3)] * 200))

    def ids(seed: int) -> list[list[str]]:
        batches = TokenBatches(corpus, BatchSettings(300, seed=seed))
        return [[pair[0] for pair in batches[i]["pairs"]] for i in range(len(batches))]

    assert ids(0) == ids(0) != ids(1)
    assert sorted(chain(*ids(0))) == sorted(chain(*ids(1)))
    with pytest.raises(IndexError):
        TokenBatches(corpus, BatchSettings(300))[99]


def test_several_batches_are_collated_as_one(tmp_path: Path) -> None:
    batches = TokenBatches(
        opened(tmp_path, lengths_of((1, 2), (3, 1)), max_sentences=1), BatchSettings(max_sentences=1)
    )
    batch = collate([batches[0], batches[1]], texts_of())
    assert batch["source"].tolist() == [[4, EOS, PAD, PAD], [4, 5, 6, EOS]]
    assert batch["read"].tolist() == [[EOS, 4, 5], [EOS, 4, PAD]]
    assert batch["targets"].tolist() == [[4, 5, EOS], [4, EOS, PAD]]
    assert batch["source"].dtype == torch.int64
    assert "lines" not in batch


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_tokens": 250}, "max_tokens=250 must be above max_length=250"),
        ({"max_length": 0}, "must be at least 1"),
        ({"max_sentences": 0}, "must be at least 1"),
        ({"max_ratio": 0.5}, "max_ratio=0.5 must be at least 1"),
    ],
)
def test_faulty_settings(values: dict[str, Any], said: str) -> None:
    with refused(said):
        parse(BatchSettings, values, "task.batches")


# The cache


def test_what_the_cache_depends_on(tmp_path: Path) -> None:
    pairs = lengths_of((1, 2), (3, 1))

    def folders() -> int:
        return len(list(tmp_path.glob("corpus-*/about.json")))

    opened(tmp_path, pairs)
    opened(tmp_path, pairs, seed=3, max_tokens=999)
    assert folders() == 1
    opened(tmp_path, pairs, max_ratio=2)
    opened(tmp_path, pairs, "val")
    opened(tmp_path, pairs, "val", max_ratio=2)
    assert folders() == 3
    Corpus.open(data_of(pairs), "val", texts_of(LETTERS[::-1]), BatchSettings(), tmp_path)
    assert folders() == 4


def test_damaged_caches(tmp_path: Path) -> None:
    opened(tmp_path, lengths_of((3, 2)))
    (folder,) = tmp_path.glob("corpus-train-*/")
    whole = (folder / "source").read_bytes()
    (folder / "source").write_bytes(whole[:-4])
    with refused(r"the cached corpus in .* is damaged \(source has 8 bytes, not 12\): delete that folder"):
        opened(tmp_path, lengths_of((3, 2)))
    (folder / "source").write_bytes(whole)
    assert len(opened(tmp_path, lengths_of((3, 2)))) == 1
    for content in ("{", "[]", json.dumps({"split": "train", "notes": []})):
        (folder / "about.json").write_text(content)
        with refused("is damaged"):
            opened(tmp_path, lengths_of((3, 2)))


@pytest.mark.parametrize("fault", [KeyboardInterrupt, UserError("line 3 is not UTF-8.")])
def test_an_interrupted_build_leaves_nothing(tmp_path: Path, fault: Any) -> None:
    def read(_: str) -> Iterator[Pair]:
        yield Pair("1", "a", "b", "f, line 1,")
        raise fault

    data = ParallelData(name="x", languages=("en", "de"), read=read, fingerprint=lambda _: "")
    with pytest.raises(type(fault) if isinstance(fault, UserError) else fault):
        Corpus.open(data, "train", texts_of(), BatchSettings(), tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


def test_who_asks_at_once_waits_for_the_first(tmp_path: Path) -> None:
    reads: list[str] = []

    def read(split: str) -> Iterator[Pair]:
        reads.append(split)
        for n, (source, target) in enumerate(lengths_of(*[(1 + n % 7, 1 + n % 5) for n in range(3000)])):
            yield Pair(str(n), source, target, f"line {n},")

    data = ParallelData(name="x", languages=("en", "de"), read=read, fingerprint=lambda _: "")
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(Corpus.open, data, "train", texts_of(), BatchSettings(), tmp_path) for _ in range(4)]
    assert [len(corpus.result()) for corpus in asked] == [3000] * 4
    assert reads == ["train"]


def test_memory_does_not_grow_with_the_lines(tmp_path: Path) -> None:
    count = 4000
    long = line(200)  # 400 bytes a side: 3 MB of text and 6 MB of numbers

    def read(_: str) -> Iterator[Pair]:
        return (Pair(str(n), long, long, f"line {n},") for n in range(count))

    data = ParallelData(name="x", languages=("en", "de"), read=read, fingerprint=lambda _: "")
    texts = Texts.learn(data, TextSettings(subwords="words", tokenize="none"), tmp_path)  # the imports, not measured
    tracemalloc.start()
    Texts.learn(data, TextSettings(subwords="words", tokenize="none", min_count=2), tmp_path)
    corpus = Corpus.open(data, "train", texts, BatchSettings(), tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(corpus) == count
    assert corpus.lengths.sum() == count * 400
    assert peak < 1_000_000, peak


@pytest.mark.shared
def test_multi30k_from_lines_to_batches(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    data = open_data("multi30k", {"root": str(shared / "data/multi30k")})
    texts = Texts.learn(data_of([(p.source, p.target) for p in data.pairs("val")]), TextSettings(size=800), tmp_path)
    corpus = Corpus.open(data, "test", texts, BatchSettings(), tmp_path)
    records = SentenceRecords(corpus)
    assert len(corpus) == 1000
    batch = collate([records[i] for i in range(1000)], texts)
    for row, said in zip(batch["targets"].tolist(), batch["references"]):
        words = texts.target.decode(row)
        assert words == texts.target.words(said) or "<unk>" in " ".join(words)
    assert (batch["source"] == texts.source.vocabulary.eos).sum() == 1000
