"""BLEU as multi-bleu.perl prints it: its own output, values by hand, odd tokens, the splitting of compounds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import bleu as slow_bleu

from vlplatform.errors import UserError
from vlplatform.metrics.multi_bleu import from_statistics, multi_bleu, split_compounds, statistics

WORD = st.sampled_from(["a", "b", "B", "c-d", "e-f-g", "-", "Ä-ö-ü"])
LINE = st.lists(WORD, max_size=8).map(" ".join)
PAIRS = st.lists(st.tuples(LINE, st.lists(LINE, min_size=1, max_size=3)), min_size=1, max_size=5)


def golden(shared: Path) -> dict[str, Any]:
    return json.loads((shared / "reference/golden/metrics_multi_bleu.json").read_text(encoding="utf-8"))


# What the scripts say.


@pytest.mark.shared
def test_output_of_the_script(shared: Path) -> None:
    for case in golden(shared)["cases"]:
        mine, theirs = case["hyp"], case["refs"]
        assert str(multi_bleu(mine, theirs)) == case["multi_bleu"]
        assert str(multi_bleu(mine, theirs, lowercase=True)) == case["multi_bleu_lc"]
        split = multi_bleu(mine, theirs, split=True)
        assert str(split) == case["multi_bleu_compound_split"]
        assert split == multi_bleu(case["hyp_split"], case["refs_split"])
        exact = case["exact_compound_split"]
        assert split.bleu == pytest.approx(exact["score"], abs=1e-6)
        assert split.precisions == pytest.approx(exact["precisions"], abs=1e-6)
        assert split.brevity_penalty == pytest.approx(exact["bp"], abs=1e-6)
        assert (split.hypothesis_length, split.reference_length) == (exact["sys_len"], exact["ref_len"])
        assert split.ratio == exact["sys_len"] / exact["ref_len"]


@pytest.mark.shared
def test_splits_of_the_script(shared: Path) -> None:
    told = golden(shared)
    for case in told["split_cases"]:
        assert split_compounds(case["raw"]) == case["split"]
    for case in told["cases"]:
        assert [split_compounds(line) for line in case["hyp"]] == case["hyp_split"]
        assert [[split_compounds(line) for line in lines] for lines in case["refs"]] == case["refs_split"]


@pytest.mark.parametrize(
    ("line", "split"),
    [
        ("high-quality", "high ##AT##-##AT## quality"),
        ("state-of-the-art", "state ##AT##-##AT## of ##AT##-##AT## the ##AT##-##AT## art"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # b is taken as what follows the first hyphen
        ("ä-ö-ü", "ä ##AT##-##AT## ö ##AT##-##AT## ü"),  # ö is two bytes: one follows a hyphen, the other precedes one
        ("a--b", "a ##AT##-##AT## -b"),
        ("- -x x- x - y", "- -x x- x - y"),
        ("x\xa0-y", "x\xa0 ##AT##-##AT## y"),
    ],
)
def test_splits(line: str, split: str) -> None:
    assert split_compounds(line) == split


# By hand.

HYPOTHESIS = "a well-known man sees the old house"
REFERENCE = "a well-known man sees the very old house"


def test_value_by_hand() -> None:
    """7 tokens against 8; all n-grams are right but those with "the old" in them.

    1-grams: 7 of 7.
    2-grams: 5 of 6, without: the old.
    3-grams: 3 of 5, without: sees the old, the old house.
    4-grams: 2 of 4, without: man sees the old, sees the old house.
    Product 1 · 5/6 · 3/5 · 1/2 = 1/4, its fourth root 1/√2 = 0.70711; brevity penalty exp(1 − 8/7) = 0.86688;
    BLEU 100 · 0.70711 · 0.86688 = 61.30.
    """
    found = multi_bleu([HYPOTHESIS], [[REFERENCE]])
    assert found.bleu == pytest.approx(100 * math.sqrt(1 / 2) * math.exp(-1 / 7), abs=1e-10)
    assert found.precisions == pytest.approx([100, 500 / 6, 60, 50])
    assert str(found) == "BLEU = 61.30, 100.0/83.3/60.0/50.0 (BP=0.867, ratio=0.875, hyp_len=7, ref_len=8)"


def test_value_by_hand_with_compounds_split() -> None:
    """Three tokens, well ##AT##-##AT## known, in place of well-known: 9 against 10, and two more n-grams of each order.

    1-grams: 9 of 9; 2-grams: 7 of 8; 3-grams: 5 of 7; 4-grams: 4 of 6, without those named above.
    Product 7/8 · 5/7 · 4/6 = 5/12, its fourth root 0.80343; brevity penalty exp(1 − 10/9) = 0.89484;
    BLEU 100 · 0.80343 · 0.89484 = 71.89.
    """
    found = multi_bleu([HYPOTHESIS], [[REFERENCE]], split=True)
    assert found.bleu == pytest.approx(100 * (5 / 12) ** 0.25 * math.exp(-1 / 9), abs=1e-10)
    assert str(found) == "BLEU = 71.89, 100.0/87.5/71.4/66.7 (BP=0.895, ratio=0.900, hyp_len=9, ref_len=10)"


def test_several_references_by_hand() -> None:
    """Counts are clipped by the reference that has most; of equally close lengths the shorter counts.

    Sentence 1, 4 tokens, references of 5 and 3: "the" counts 2 of 4 times (twice in one reference, never 3 times);
    closest length 3. Sentence 2: all of 4 1-grams, 3 2-grams, 2 3-grams and 1 4-gram; length 4.
    1-grams: 2 + 4 of 8; 2-grams: 0 + 3 of 6 ("the the" is in none); 3-grams: 0 + 2 of 4; 4-grams: 0 + 1 of 2.
    8 tokens against 7: no penalty. Product 3/4 · (1/2)³ = 3/32, its fourth root 0.55334.
    """
    references = [["the cat and the dog", "the cat ."], ["a b c d", "a b"]]
    found = multi_bleu(["the the the the", "a b c d"], references)
    assert found.bleu == pytest.approx(100 * (3 / 32) ** 0.25)
    assert str(found) == "BLEU = 55.33, 75.0/50.0/50.0/50.0 (BP=1.000, ratio=1.143, hyp_len=8, ref_len=7)"


# By definition.


@given(PAIRS)
@settings(max_examples=100, deadline=None)
def test_against_one_ngram_after_the_other(pairs: list[tuple[str, list[str]]]) -> None:
    mine, theirs = [pair[0].split() for pair in pairs], [[line.split() for line in pair[1]] for pair in pairs]
    if not any(line for lines in theirs for line in lines):
        return
    found = multi_bleu([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    assert found.hypothesis_length == sum(map(len, mine))
    assert found.reference_length == sum(slow_bleu.closest(m, t) for m, t in zip(mine, theirs))
    counts = [[slow_bleu.statistics(m, t, order) for m, t in zip(mine, theirs)] for order in (1, 2, 3, 4)]
    shares = [sum(r for r, _ in each) / max(sum(g for _, g in each), 1) for each in counts]
    if not found.reference_length:
        assert found.bleu == 0
        return
    assert found.precisions == pytest.approx([100 * share for share in shares])
    penalty = min(1.0, math.exp(1 - found.reference_length / found.hypothesis_length)) if any(mine) else 0.0
    assert found.brevity_penalty == pytest.approx(penalty)
    assert found.bleu == pytest.approx(100 * penalty * math.prod(shares) ** 0.25)


def test_statistics_add_up() -> None:
    hypotheses, references = ["a b c d e", "x y", "a b x y z"], [["a b c d"], ["x"], ["b x y z", "a b"]]
    rows = statistics(hypotheses, references)
    assert rows.shape == (3, 10)
    assert rows[1].tolist() == [1, 0, 0, 0, 2, 1, 0, 0, 2, 1]
    assert from_statistics(rows) == multi_bleu(hypotheses, references)
    drawn = np.array([2, 0, 2])
    again = multi_bleu([hypotheses[i] for i in drawn], [references[i] for i in drawn])
    assert from_statistics(rows[drawn]) == again


# Odd input.


def test_tokens_are_split_at_ascii_blanks() -> None:
    assert multi_bleu(["a  b\tc d "], [["a b c d"]]).bleu == pytest.approx(100)
    assert multi_bleu(["a\xa0b c"], [["a b c"]]).hypothesis_length == 2
    assert multi_bleu(["a\u2003b\x1cc"], [["a b c"]]).hypothesis_length == 1


def test_case() -> None:
    assert multi_bleu(["A B c D"], [["a b c d"]]).precisions[0] == 25
    assert multi_bleu(["A B c D"], [["a b C d"]], lowercase=True).bleu == pytest.approx(100)
    assert multi_bleu(["Ä b c d"], [["ä b c d"]], lowercase=True).precisions[0] == 75  # the script knows ASCII alone


def test_no_smoothing() -> None:
    found = multi_bleu(["a b c x d"], [["a b c y d"]])
    assert found.bleu == 0
    assert str(found) == "BLEU = 0.00, 80.0/50.0/33.3/0.0 (BP=1.000, ratio=1.000, hyp_len=5, ref_len=5)"


def test_empty_lines() -> None:
    assert str(multi_bleu(["", "a b c d"], [["x y"], ["a b c d"]])) == (
        "BLEU = 60.65, 100.0/100.0/100.0/100.0 (BP=0.607, ratio=0.667, hyp_len=4, ref_len=6)"  # exp(1 − 6/4)
    )
    assert str(multi_bleu([""], [["a b"]])) == (
        "BLEU = 0.00, 0.0/0.0/0.0/0.0 (BP=0.000, ratio=0.000, hyp_len=0, ref_len=2)"
    )
    closest = multi_bleu(["a b c d"], [["", "a b c d e f g h i"]])  # 0 is closer to 4 than 9
    assert str(closest) == "BLEU = 0, 0/0/0/0 (BP=0, ratio=0, hyp_len=0, ref_len=0)"
    assert closest.bleu == 0


@pytest.mark.parametrize(
    ("hypotheses", "references", "words"),
    [
        (["a", "b"], [["a"]], "2 hypotheses but references of 1 sentences"),
        ([], [], "no sentence to score"),
        (["a", "b"], [["a"], []], r"references of sentence 2 of 2 must be a list of one line or more, not \[\]"),
        (["a"], ["a"], "references of sentence 1 of 1 must be a list .* not 'a'"),
        (["a", "b"], [[""], [" ", "\t"]], r"no reference of the 2 sentence\(s\) has a word"),
    ],
)
def test_bad_input_is_told(hypotheses: Any, references: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        multi_bleu(hypotheses, references)
