"""Ensembles by mean probability."""

from __future__ import annotations

import pytest
import torch
from random_tables import toy

from vlplatform.decoding import BeamSettings, Ensemble, Symbols, beam_search
from vlplatform.errors import UserError

SYMBOLS, SETTINGS = Symbols(0, 1, 2), BeamSettings(max_length=7, returned=3)


def test_an_ensemble_is_the_model_with_the_mean_probabilities():
    members = [toy(seed, 4, 8) for seed in (1, 2, 3)]
    mean = toy(0, 4, 8)
    mean.tables = torch.stack([member.tables for member in members]).exp().mean(0).log()
    model = Ensemble(members)
    found = beam_search(model.step, model.start([None] * 3), 4, SETTINGS, SYMBOLS)
    expected = beam_search(mean.step, mean.start(), 4, SETTINGS, SYMBOLS)
    assert torch.equal(found.tokens, expected.tokens)
    torch.testing.assert_close(found.log_probs, expected.log_probs, rtol=0, atol=1e-12)
    assert members[0].rows == members[2].rows == mean.rows


def test_impossible_words_and_one_member():
    one, other = toy(1, 2, 8), toy(2, 2, 8)
    one.tables[..., 5] = -torch.inf
    other.tables[..., 5:] = -torch.inf
    model = Ensemble([one, other])
    out = model.step(torch.tensor([1, 1]), model.start([None, None]))
    assert (out[:, 5] == -torch.inf).all()
    assert out[:, :5].isfinite().all()
    alone = Ensemble([one])
    assert torch.equal(
        alone.step(torch.tensor([1, 1]), alone.start([None])), one.step(torch.tensor([1, 1]), one.start())
    )


def test_mistakes_are_told():
    with pytest.raises(UserError, match="at least one model"):
        Ensemble([])
    model = Ensemble([toy(1, 2, 8), toy(2, 2, 9)])
    with pytest.raises(UserError, match="1 memories came for an ensemble of 2"):
        model.start([None])
    with pytest.raises(UserError, match="8 and 9 words"):
        model.step(torch.tensor([1, 1]), model.start([None, None]))
