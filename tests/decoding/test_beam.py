"""Beam search against the slow one, hypothesis by hypothesis."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import agree, toy
from reference import beam as slow

from vlplatform.decoding import BeamSettings, DiverseSettings, Symbols, beam_search
from vlplatform.decoding.candidates import top
from vlplatform.errors import UserError
from vlplatform.settings import describe, parse

SYMBOLS = st.sampled_from([Symbols(0, 1, 2, 3), Symbols(0, 0, 0), Symbols(1, 2, 2, 3), Symbols(0, 2, 3)])


@st.composite
def searches(draw: st.DrawFn, finish: str) -> tuple[BeamSettings, Symbols, int, int, int]:
    length, beam = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    given_settings = BeamSettings(
        max_length=length,
        min_length=draw(st.integers(0, length - 1)),
        forbid=draw(st.sampled_from([None, (), (1,)])),
        unk_penalty=draw(st.sampled_from([0.0, 0.7])),
        beam=beam,
        returned=draw(st.integers(1, beam)),
        length_penalty=draw(st.sampled_from([0.0, 0.6, 1.0, 2.0])),
        finish=finish,
    )
    return given_settings, draw(SYMBOLS), draw(st.integers(1, 4)), draw(st.integers(4, 9)), draw(st.integers(0, 10**6))


def run(model, given_settings, symbols, **rest):
    return beam_search(model.step, model.start(), len(model.tables), given_settings, symbols, **rest)


@settings(max_examples=120, deadline=None)
@given(searches("beam"))
def test_in_the_beam_equals_the_slow_search_that_makes_all_steps(search):
    given_settings, symbols, items, words, seed = search
    model = toy(seed, items, words)
    beam, alpha = given_settings.beam, given_settings.length_penalty
    tasks = [model.task(i, given_settings, symbols, beam, alpha) for i in range(items)]
    expected = [slow.in_beam(task)[: given_settings.returned] for task in tasks]
    agree(run(model, given_settings, symbols), expected, alpha)


@settings(max_examples=120, deadline=None)
@given(searches("aside"), st.booleans())
def test_put_aside_equals_the_slow_search(search, early):
    given_settings, symbols, items, words, seed = search
    model = toy(seed, items, words)
    beam, alpha = given_settings.beam, given_settings.length_penalty
    tasks = [model.task(i, given_settings, symbols, beam, alpha) for i in range(items)]
    expected = [slow.aside(task, early=early)[: given_settings.returned] for task in tasks]
    agree(run(model, given_settings, symbols), expected, alpha)


@pytest.mark.parametrize("finish", ["beam", "aside"])
def test_items_are_independent_and_leave_when_they_are_done(finish):
    model, symbols = toy(3, 6, 8, sharp=3), Symbols(0, 1, 2)
    given_settings = BeamSettings(beam=3, max_length=12, finish=finish)
    together = run(model, given_settings, symbols)
    rows = model.rows
    assert rows[0] == 6
    assert rows[1:] == sorted(rows[1:], reverse=True)
    assert max(rows) > rows[-1] > 0
    assert all(count % 3 == 0 for count in rows[1:])
    steps = 0
    for i in range(6):
        alone = toy(3, 6, 8, sharp=3)
        alone.tables = alone.tables[i : i + 1]
        found = run(alone, given_settings, symbols)
        assert found.hypotheses()[0] == together.hypotheses()[i]
        steps += sum(alone.rows)
    assert steps == sum(rows)  # together no more work than one by one


@pytest.mark.parametrize("finish", ["beam", "aside"])
def test_fewer_returned_hypotheses_are_the_best_of_more(finish):
    for seed in range(10):
        model, symbols = toy(seed, 4, 9, sharp=2), Symbols(0, 1, 2)
        whole = BeamSettings(beam=5, max_length=10, finish=finish, returned=5, length_penalty=0.7)
        few = dataclasses.replace(whole, returned=2)
        all_, best = run(model, whole, symbols).hypotheses(), run(model, few, symbols).hypotheses()
        assert [hypotheses[:2] for hypotheses in all_] == best


def test_a_beam_of_one_is_greedy():
    model, symbols = toy(5, 4, 9), Symbols(0, 1, 2)
    given_settings = BeamSettings(beam=1, max_length=9)
    agree(
        run(model, given_settings, symbols), [[slow.greedy(model.task(i, given_settings, symbols))] for i in range(4)]
    )


def test_a_wide_beam_finds_the_best_sentence():
    model, symbols = toy(6, 2, 5), Symbols(0, 1, 2)
    given_settings = BeamSettings(beam=200, max_length=4, finish="aside", length_penalty=1.0, returned=3)
    tasks = [model.task(i, given_settings, symbols, alpha=1.0) for i in range(2)]
    agree(run(model, given_settings, symbols), [slow.every_sentence(task, 5)[:3] for task in tasks], 1.0)


def test_tensors_are_padded_behind_the_end():
    model, symbols = toy(3, 6, 8, sharp=3), Symbols(0, 1, 2)
    found = run(model, BeamSettings(beam=3, max_length=12, returned=3), symbols)
    assert found.tokens.shape == found.log_probs.shape == (6, 3, 12)
    behind = torch.arange(12) >= found.lengths[..., None]
    assert (found.tokens[behind] == 0).all()
    assert (found.log_probs[behind] == 0).all()
    torch.testing.assert_close(found.log_probs.sum(-1), found.scores)


@pytest.mark.parametrize("finish", ["beam", "aside"])
def test_gradients_reach_the_tables(finish):
    model, symbols = toy(3, 3, 8), Symbols(0, 1, 2)
    model.tables.requires_grad_()
    found = run(model, BeamSettings(beam=3, max_length=6, returned=3, finish=finish, unk_penalty=0.1), symbols)
    found.log_probs.sum().backward()
    with torch.no_grad():
        assert torch.equal(
            found.tokens,
            run(toy(3, 3, 8), BeamSettings(beam=3, max_length=6, returned=3, finish=finish), symbols).tokens,
        )
    assert model.tables.grad is not None
    assert model.tables.grad.sum() == found.lengths.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types(dtype):
    model, symbols = toy(3, 3, 8, dtype=dtype), Symbols(0, 1, 2)
    found = run(model, BeamSettings(beam=3, max_length=6), symbols)
    assert found.scores.dtype == found.log_probs.dtype == torch.float32
    exact = toy(3, 3, 8)
    exact.tables = model.tables.double()
    assert torch.equal(run(exact, BeamSettings(beam=3, max_length=6), symbols).tokens, found.tokens)


@settings(max_examples=30, deadline=None)
@given(st.integers(16, 40), st.integers(300, 1200), st.integers(1, 12), st.integers(0, 10**6))
def test_the_best_of_chunks_are_the_best(rows, size, count, seed):
    values = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = values.topk(count)
    best, place = top(values, count)
    assert torch.equal(best, expected.values)
    assert torch.equal(place, expected.indices)


def test_what_a_step_returns_is_not_written_to():
    model, symbols = toy(3, 3, 8), Symbols(0, 1, 2, 3)
    before = model.tables.clone()
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def step(tokens, state):
        out = model.step(tokens, state)
        kept.append((out, out.clone()))
        return out

    beam_search(step, model.start(), 3, BeamSettings(max_length=5, unk_penalty=1.0, min_length=2), symbols)
    assert torch.equal(before, model.tables)
    assert all(torch.equal(*pair) for pair in kept)


def test_words_without_number_and_broken_decoders_are_told():
    model = toy(3, 2, 8)
    with pytest.raises(UserError, match="number 9"):
        run(model, BeamSettings(), Symbols(0, 1, 9))
    with pytest.raises(UserError, match="at least one"):
        beam_search(model.step, model.start(), 0, BeamSettings(), Symbols(0, 1, 2))
    with pytest.raises(UserError, match=r"shape \(2, 1, 8\); expected \(2, words\)"):
        beam_search(lambda t, s: model.step(t, s)[:, None], model.start(), 2, BeamSettings(), Symbols(0, 1, 2))
    model.tables[1, 0, 1, 4] = torch.nan
    with pytest.raises(UserError, match="NaN"):
        run(model, BeamSettings(), Symbols(0, 1, 2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam": 0}, "beam=0"),
        ({"returned": 4}, "returned=4"),
        ({"max_length": 0}, "max_length=0"),
        ({"min_length": 20}, "min_length=20"),
        ({"length_penalty": -1.0}, "length_penalty"),
        ({"finish": "now"}, "beam, aside"),
        ({"forbid": (-1,)}, "forbid"),
        ({"unk_penalty": float("nan")}, "unk_penalty"),
    ],
)
def test_settings_out_of_range(wrong, message):
    with pytest.raises(ValueError, match=message):
        BeamSettings(**wrong)


def test_settings_come_from_a_mapping():
    values = {"beam": 5, "forbid": [0, 1], "finish": "aside", "length_penalty": 1}
    assert parse(BeamSettings, values, "beam") == BeamSettings(
        beam=5, forbid=(0, 1), finish="aside", length_penalty=1.0
    )
    with pytest.raises(UserError, match="beam: returned=9 must be from 1 to beam=5"):
        parse(BeamSettings, values | {"returned": 9}, "beam")
    assert all("help" in entry for entry in describe(DiverseSettings).values())


def test_many_forbidden_words_and_a_forbidden_unknown():
    model, symbols = toy(3, 3, 40), Symbols(0, 1, 2, 3)
    for forbid, penalty in ((tuple(range(5, 35)), 0.0), ((0, 1), float("inf"))):
        given_settings = BeamSettings(max_length=6, forbid=forbid, unk_penalty=penalty, returned=3)
        never = (*forbid, 3) if penalty else forbid
        tasks = [
            model.task(i, dataclasses.replace(given_settings, forbid=never, unk_penalty=0), symbols, 3)
            for i in range(3)
        ]
        agree(run(model, given_settings, symbols), [slow.in_beam(task) for task in tasks])
