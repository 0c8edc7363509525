"""Rewards of self-critical training by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import bleu as slow_bleu
from reference import cider as slow_cider
from reference import rouge as slow_rouge

from vlplatform.errors import UserError
from vlplatform.metrics import rewards

CAPTION = st.lists(st.integers(1, 6), max_size=7)
REFERENCES = [[[5, 6, 7], [5, 7, 8, 9]], [[5, 8]], [[6, 9, 7]]]


@pytest.mark.shared
def test_reward_of_xlan(shared: Path) -> None:
    case = json.loads((shared / "reference/golden/metrics_cider_reward.json").read_text())
    reward = rewards.make("cider_d", case["train_refs"], end=0, count_end=True)
    found = reward(range(len(case["hyp"])), case["hyp"])
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(case["per_image"], abs=1e-9)
    assert found.mean().item() == pytest.approx(case["mean"], abs=1e-9)


@given(
    st.lists(st.lists(CAPTION, min_size=1, max_size=3), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), CAPTION), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_against_the_formulas(references: list[list[list[int]]], samples: list[tuple[int, list[int]]]) -> None:
    images, captions = [i % len(references) for i, _ in samples], [c for _, c in samples]
    ended = [[*caption, 0, 3, 3] for caption in captions]
    df, size = slow_cider.frequencies(references), len(references)
    single = slow_cider.frequencies([[caption] for captions in references for caption in captions])
    singles = sum(map(len, references))
    pairs = [(c, references[i]) for i, c in zip(images, captions)]
    expected = {
        "cider_d": [slow_cider.score(c, r, df, size) for c, r in pairs],
        "bleu4": [slow_bleu.bleu([c], [r])[3] for c, r in pairs],
        "rouge_l": [slow_rouge.rouge_l(c, r) for c, r in pairs],
    }
    for name, values in expected.items():
        reward = rewards.make(name, references, end=0)
        assert reward(images, ended).tolist() == pytest.approx(values, abs=1e-9)
        assert reward(images, captions).shape == (len(captions),)
    mdsan = rewards.make("cider_d", references, df="caption")(images, captions)
    assert mdsan.tolist() == pytest.approx([slow_cider.score(c, r, single, singles) for c, r in pairs], abs=1e-9)
    both = rewards.make({"cider_d": 1.0, "bleu4": 0.5, "rouge_l": -2}, references, end=0)(images, ended)
    sums = [a + 0.5 * b - 2 * c for a, b, c in zip(*expected.values())]
    assert both.tolist() == pytest.approx(sums, abs=1e-9)


def test_a_weight_alone() -> None:
    once, twice = (rewards.make(name, REFERENCES)([0], [[5, 6, 7]]) for name in ("cider_d", {"cider_d": 2}))
    torch.testing.assert_close(2 * once, twice)


def test_every_reward_can_be_made() -> None:
    for name in rewards.REWARDS:
        assert rewards.make(name, REFERENCES)([0, 2], [[5, 6], []]).shape == (2,)
        with pytest.raises(ValueError, match="there are 3"):
            rewards.make(name, REFERENCES)([-1], [[5]])
        with pytest.raises(ValueError, match="one for each"):
            rewards.make(name, REFERENCES)([0, 1], [[5]])


@pytest.mark.parametrize(
    ("name", "references", "words"),
    [
        ("cider", REFERENCES, "no reward 'cider': did you mean 'cider_d'"),
        ({"cider_d": 1, "blue4": 1}, REFERENCES, "did you mean 'bleu4'"),
        ({}, REFERENCES, "no reward is given"),
        ({"cider_d": math.nan}, REFERENCES, "must be a number, not nan"),
        ({"cider_d": "1"}, REFERENCES, "must be a number, not '1'"),
        ("cider_d", [[[1]], []], "training image 1 has no reference"),
    ],
)
def test_bad_settings(name: Any, references: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        rewards.make(name, references)
