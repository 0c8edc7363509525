"""Greedy decoding and sampling against the slow ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import agree, toy
from reference import beam as slow

from vlplatform.decoding import Limits, SamplingSettings, Symbols, greedy, sample
from vlplatform.errors import UserError

SYMBOLS = Symbols(0, 1, 2, 3)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([(1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 3, 1.0), (1.3, 0, 0.8), (1.0, 4, 0.5), (2.0, 99, 0.01)]),
    st.sampled_from([SYMBOLS, Symbols(0, 0, 0), Symbols(1, 2, 2, 3)]),
    st.sampled_from([(None, 0.0, 0), ((), 0.5, 1), ((0, 4), 0.0, 2)]),
    st.tuples(st.integers(3, 6), st.integers(1, 3), st.integers(1, 3), st.integers(5, 9), st.integers(0, 10**6)),
)
def test_samples_equal_the_slow_ones(how, symbols, limits, sizes):
    (heat, top_k, top_p), (forbid, penalty, least) = how, limits
    length, items, count, words, seed = sizes
    model = toy(seed, items, words)
    given_settings = SamplingSettings(
        max_length=length,
        min_length=least,
        forbid=forbid,
        unk_penalty=penalty,
        samples=count,
        temperature=heat,
        top_k=top_k,
        top_p=top_p,
    )
    draws = torch.rand(items, count, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = sample(model.step, model.start(), items, given_settings, symbols, draws=draws)
    tasks = [model.task(i, given_settings, symbols) for i in range(items)]
    agree(
        found, [[slow.sampled(t, d, heat, top_k, top_p) for d in of_item] for t, of_item in zip(tasks, draws.tolist())]
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(5, 9), st.integers(0, 10**6), st.sampled_from([0.0, 2.0]))
def test_greedy_equals_the_slow_one(length, items, words, seed, penalty):
    model, limits = toy(seed, items, words), Limits(max_length=length, unk_penalty=penalty)
    found = greedy(model.step, model.start(), items, limits, SYMBOLS)
    agree(found, [[slow.greedy(model.task(i, limits, SYMBOLS))] for i in range(items)])


def test_words_come_as_often_as_their_probabilities_say():
    model = toy(1, 2, 6)
    given_settings = SamplingSettings(max_length=1, samples=20000, forbid=())
    generator = torch.Generator().manual_seed(0)
    found = sample(model.step, model.start(), 2, given_settings, SYMBOLS, generator=generator)
    share = torch.nn.functional.one_hot(found.tokens[..., 0], 6).double().mean(1)
    torch.testing.assert_close(share, model.tables[:, 0, 1].exp(), rtol=0, atol=0.015)


def test_a_generator_repeats_the_samples():
    def run(seed):
        model = toy(1, 3, 9)
        generator = torch.Generator().manual_seed(seed)
        given_settings = SamplingSettings(max_length=8, samples=4)
        return sample(model.step, model.start(), 3, given_settings, SYMBOLS, generator=generator).tokens

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_items_leave_when_all_their_rows_have_ended_and_are_independent():
    model, count = toy(3, 6, 8, sharp=3), 3
    given_settings = SamplingSettings(max_length=14, samples=count)
    draws = torch.rand(6, count, 14, generator=torch.Generator().manual_seed(0))
    together = sample(model.step, model.start(), 6, given_settings, SYMBOLS, draws=draws)
    longest = together.lengths.amax(1)
    assert model.rows == [6] + [count * int((longest > made).sum()) for made in range(1, int(longest.max()))]
    for i in range(6):
        alone = toy(3, 6, 8, sharp=3)
        alone.tables = alone.tables[i : i + 1]
        found = sample(alone.step, alone.start(), 1, given_settings, SYMBOLS, draws=draws[i : i + 1])
        assert found.hypotheses()[0] == together.hypotheses()[i]


def test_gradients_of_the_samples_log_probabilities():
    model = toy(3, 3, 8)
    model.tables.requires_grad_()
    given_settings = SamplingSettings(max_length=6, samples=2, temperature=0.5, unk_penalty=0.1, min_length=1)
    found = sample(model.step, model.start(), 3, given_settings, SYMBOLS)
    found.log_probs.sum().backward()
    assert model.tables.grad is not None
    assert model.tables.grad.sum() == found.lengths.sum()
    assert not found.scores.requires_grad


def test_single_precision_never_draws_what_is_forbidden():
    model = toy(3, 2, 8, dtype=torch.float32)
    given_settings = SamplingSettings(max_length=4, samples=3, forbid=(7, 6, 0, 1))
    draws = torch.full((2, 3, 4), 1 - 2.0**-53, dtype=torch.float64)
    found = sample(model.step, model.start(), 2, given_settings, SYMBOLS, draws=draws)
    assert (found.tokens[..., 0] == 5).all()
    assert found.log_probs.isfinite().all()


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_closed_sequence_ends_with_the_end_symbol(length, dtype):
    model = toy(5, 3, 9, dtype=dtype)
    model.tables[..., SYMBOLS.eos] -= 20  # none ends of itself
    draws = torch.rand(3, 4, length, generator=torch.Generator().manual_seed(0))
    broken, closed = (
        sample(model.step, model.start(), 3, SamplingSettings(length, samples=4, close=close), SYMBOLS, draws=draws)
        for close in (False, True)
    )
    assert torch.equal(broken.tokens[..., :-1], closed.tokens[..., :-1])
    assert (closed.tokens[..., -1] == SYMBOLS.eos).all()
    assert (closed.log_probs[..., -1] < -15).all(), "the model's own log-probability of the end"
    torch.testing.assert_close(closed.scores, closed.log_probs.sum(-1))


def test_faults_are_told():
    model = toy(3, 2, 8)
    with pytest.raises(UserError, match="draws has shape"):
        sample(model.step, model.start(), 2, SamplingSettings(), SYMBOLS, draws=torch.rand(2, 1, 3))
    with pytest.raises(UserError, match="no word can follow"):
        sample(model.step, model.start(), 2, SamplingSettings(forbid=tuple(range(8))), SYMBOLS)
    model.tables[1, 0, 1, 5] = torch.nan
    with pytest.raises(UserError, match="NaN"):
        sample(model.step, model.start(), 2, SamplingSettings(), SYMBOLS)
    with pytest.raises(UserError, match="NaN"):
        greedy(model.step, model.start(), 2, Limits(), SYMBOLS)
    with pytest.raises(UserError, match="at least one"):
        greedy(model.step, model.start(), 0, Limits(), SYMBOLS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"samples": 0}, "samples"),
        ({"temperature": 0.0}, "greedy"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
    ],
)
def test_settings_out_of_range(wrong, message):
    with pytest.raises(ValueError, match=message):
        SamplingSettings(**wrong)
