"""Diverse beam search against the slow one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import agree, toy
from reference import beam as slow

from vlplatform.decoding import BeamSettings, DiverseSettings, Symbols, beam_search, diverse_beam_search
from vlplatform.errors import UserError

SYMBOLS = Symbols(0, 1, 2)


def run(model, given_settings, symbols=SYMBOLS):
    return diverse_beam_search(model.step, model.start(), len(model.tables), given_settings, symbols)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["beam", "aside"]),
    st.sampled_from([(1, 3), (2, 4), (3, 3), (2, 6)]),
    st.sampled_from([0.0, 0.4, 5.0]),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([SYMBOLS, Symbols(0, 0, 0)]),
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(4, 9), st.integers(0, 10**6)),
)
def test_diverse_beams_equal_the_slow_search(finish, shape, diversity, alpha, symbols, sizes):
    (groups, beam), (length, items, words, seed) = shape, sizes
    model = toy(seed, items, words)
    given_settings = DiverseSettings(
        beam=beam,
        groups=groups,
        diversity=diversity,
        max_length=length,
        length_penalty=alpha,
        finish=finish,
        returned=beam,
    )
    found = run(model, given_settings, symbols)
    expected = []
    for i in range(items):
        task = model.task(i, given_settings, symbols, beam, alpha)
        expected.append(slow.diverse(task, groups, diversity, finish))
    if diversity and groups > 1:
        agree(found, expected, alpha)
    else:  # groups that find the same sentence tie: any order
        for ours, theirs in zip(found.hypotheses(), expected):
            assert sorted(h.tokens for h in ours) == sorted(h.tokens for h in theirs)


@pytest.mark.parametrize("finish", ["beam", "aside"])
def test_one_group_is_beam_search(finish):
    for seed in range(10):
        model = toy(seed, 3, 9)
        shared = {"beam": 4, "max_length": 7, "returned": 2, "finish": finish, "length_penalty": 0.5}
        plain = beam_search(model.step, model.start(), 3, BeamSettings(**shared), SYMBOLS)
        assert run(model, DiverseSettings(**shared, groups=1, diversity=3.0)).hypotheses() == plain.hypotheses()


def test_groups_differ_the_more_the_greater_the_penalty():
    def firsts(diversity):
        found = run(toy(2, 20, 12), DiverseSettings(beam=4, groups=4, diversity=diversity, max_length=6, returned=4))
        return sum(len(set(row)) for row in found.tokens[..., 0].tolist())

    assert firsts(0.0) == 20
    assert firsts(0.0) < firsts(0.5) < firsts(100.0) == 80


def test_fewer_returned_are_the_best_of_all():
    model = toy(4, 5, 9, sharp=3)
    whole = run(model, DiverseSettings(beam=6, groups=3, max_length=8, returned=6)).hypotheses()
    rows, model.rows = model.rows, []
    assert [h[:1] for h in whole] == run(model, DiverseSettings(beam=6, groups=3, max_length=8)).hypotheses()
    assert sum(model.rows) <= sum(rows)


def test_bad_settings():
    with pytest.raises(ValueError, match="groups=2 must divide beam=3"):
        DiverseSettings(groups=2)
    with pytest.raises(ValueError, match="diversity"):
        DiverseSettings(diversity=-1.0)
    with pytest.raises(UserError, match="at least one"):
        diverse_beam_search(toy(0, 1, 5).step, toy(0, 1, 5).start(), 0, DiverseSettings(), SYMBOLS)
