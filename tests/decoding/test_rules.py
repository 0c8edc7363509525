"""Rules, required words and merging."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import agree, toy
from reference import beam as slow

from vlplatform.decoding import (
    BeamSettings,
    DiverseSettings,
    Forbid,
    NoRepeat,
    SamplingSettings,
    Symbols,
    beam_search,
    diverse_beam_search,
    merged,
    sample,
)
from vlplatform.errors import UserError

SYMBOLS = Symbols(0, 1, 2)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(0, 8), st.integers(1, 5), st.integers(2, 4), st.integers(0, 10**6))
def test_no_n_gram_can_come_again(n, made, rows, words, seed):
    tokens = torch.randint(words, (rows, made), generator=torch.Generator().manual_seed(seed))
    out = NoRepeat(n)(torch.zeros(rows, words), tokens)
    for row, so_far in enumerate(tokens.tolist()):
        seen = {tuple(so_far[i : i + n]) for i in range(made - n + 1)}
        for word in range(words):
            gram = tuple([*so_far, word][-n:])
            assert (out[row, word] == -torch.inf) == (len(gram) == n and gram in seen)


def test_rules_hold_in_every_search():
    model = toy(5, 4, 7)
    never_after = Forbid([5, 6], after=[4])
    rules = [NoRepeat(2), never_after, Forbid([3])]

    def fine(tokens):
        pairs = list(itertools.pairwise(tokens))
        return len(set(pairs)) == len(pairs) and not {(4, 5), (4, 6)} & set(pairs) and 3 not in tokens

    for finish in ("beam", "aside"):
        plain = BeamSettings(beam=4, returned=4, max_length=9, finish=finish)
        grouped = DiverseSettings(beam=4, groups=2, returned=4, max_length=9, finish=finish)
        for found in (
            beam_search(model.step, model.start(), 4, plain, SYMBOLS, rules=rules),
            diverse_beam_search(model.step, model.start(), 4, grouped, SYMBOLS, rules=rules),
        ):
            assert all(fine(h.tokens) for of_item in found.hypotheses() for h in of_item)
    found = sample(model.step, model.start(), 4, SamplingSettings(samples=5, max_length=9), SYMBOLS, rules=rules)
    assert all(fine(h.tokens) for of_item in found.hypotheses() for h in of_item)


def test_rules_leave_the_models_tensors_alone():
    model = toy(5, 2, 7)
    before = model.tables.clone()
    beam_search(
        lambda t, s: model.tables[:1, 0, 0].expand(len(t), -1),
        model.start(),
        2,
        BeamSettings(),
        SYMBOLS,
        rules=[NoRepeat(1)],
    )
    assert torch.equal(before, model.tables)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(4, 8), st.integers(0, 10**6))
def test_required_words_appear(data, items, words, seed):
    length = data.draw(st.integers(2, 6))
    required = data.draw(
        st.lists(st.lists(st.integers(3, words - 1), max_size=length - 1), min_size=items, max_size=items)
    )
    beam = data.draw(st.integers(1, 5))
    model, given_settings = (
        toy(seed, items, words),
        BeamSettings(beam=beam, max_length=length, finish="aside", returned=beam),
    )
    found = beam_search(model.step, model.start(), items, given_settings, SYMBOLS, required=required).hypotheses()
    for i, of_item in enumerate(found):
        assert of_item
        for hypothesis in of_item:
            assert not Counter(required[i]) - Counter(hypothesis.tokens)
            assert hypothesis.tokens[-1] == SYMBOLS.eos
            follows, total = model.follows(i, SYMBOLS.bos), 0.0
            for place, word in enumerate(hypothesis.tokens):
                total += follows(hypothesis.tokens[:place])[word]
            assert abs(total - hypothesis.score) < 1e-12


def test_a_wide_beam_finds_the_best_sentence_with_the_words():
    model, given_settings = toy(8, 2, 6), BeamSettings(beam=400, max_length=5, finish="aside", returned=3)
    required = [[4], [5, 5]]
    found = beam_search(model.step, model.start(), 2, given_settings, SYMBOLS, required=required)
    expected = []
    for i, own in enumerate(required):
        all_ = slow.every_sentence(model.task(i, given_settings, SYMBOLS), 6)
        expected.append([h for h in all_ if not Counter(own) - Counter(h.tokens)][:3])
    agree(found, expected)


def test_nothing_required_is_the_ordinary_search():
    model, given_settings = toy(8, 3, 7), BeamSettings(beam=3, max_length=7, finish="aside", returned=3)
    plain = beam_search(model.step, model.start(), 3, given_settings, SYMBOLS)
    bound = beam_search(model.step, model.start(), 3, given_settings, SYMBOLS, required=[[], [], []])
    assert bound.hypotheses() == plain.hypotheses()


@pytest.mark.parametrize(
    ("finish", "required", "message"),
    [
        ("beam", [[3], []], "finish=aside"),
        ("aside", [[3]], "for 1 items; expected 2"),
        ("aside", [[], [3] * 4], "item 1 requires 4 words"),
        ("aside", [[2], []], "end symbol"),
        ("aside", [[0], []], "word 0 is required of item 0 and forbidden"),
        ("aside", [[9], []], "word 9 is required, but the decoder has 7"),
        ("aside", [[-3], []], "hold -3"),
    ],
)
def test_words_that_cannot_be_had_are_told(finish, required, message):
    model = toy(8, 2, 7)
    given_settings = BeamSettings(max_length=4, finish=finish)
    with pytest.raises(UserError, match=message):
        beam_search(model.step, model.start(), 2, given_settings, SYMBOLS, required=required)


def test_equal_words_in_a_row_are_merged():
    assert merged(["a", "a", "man", "man", "a"]) == ["a", "man", "a"]
    assert merged([]) == []
    with pytest.raises(ValueError, match="n=0"):
        NoRepeat(0)
