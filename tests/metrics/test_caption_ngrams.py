"""BLEU, ROUGE-L, CIDEr and CIDEr-D: the official numbers, slow obvious versions, odd captions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import bleu as slow_bleu
from reference import cider as slow_cider
from reference import rouge as slow_rouge

from vlplatform.metrics.bleu import Bleu
from vlplatform.metrics.cider import Cider, CiderD, Frequencies, numbered
from vlplatform.metrics.rouge import RougeL

CAPTION = st.lists(st.integers(0, 6), max_size=7)
IMAGES = st.lists(st.tuples(CAPTION, st.lists(CAPTION, min_size=1, max_size=4)), min_size=1, max_size=5)
close = {"rtol": 0, "atol": 1e-9}


def cases(shared: Path) -> list[dict[str, Any]]:
    folder = shared / "reference/golden"
    small = json.loads((folder / "metrics_captions_small.json").read_text())["cases"]
    return [json.loads((folder / "metrics_captions.json").read_text()), *small]


@pytest.mark.shared
def test_official_scores(shared: Path) -> None:
    for case in cases(shared):
        truth, images = case["scores"], range(len(case["gts"]))
        references = [[text.split() for text in texts] for texts in case["gts"].values()]
        captions = [case["res"][key][0].split() for key in case["gts"]]
        *numbers, mine = numbered([*references, captions])
        corpus, each = Bleu(references).scores(images, captions)
        np.testing.assert_allclose(corpus, truth["bleu"], **close)
        np.testing.assert_allclose(each.T, truth["bleu_per_image"], **close)
        rouge = RougeL(references).scores(images, captions)
        np.testing.assert_allclose(rouge, truth["rouge_l_per_image"], **close)
        np.testing.assert_allclose(rouge.mean(), truth["rouge_l"], **close)
        for metric, name in (
            (CiderD, "cider_pycocoevalcap"),
            (CiderD, "ciderD_vrama91"),
            (Cider, "cider_plain_vrama91"),
        ):
            scores = metric(numbers).scores(images, mine)
            np.testing.assert_allclose(scores, truth[f"{name}_per_image"], **close)
            np.testing.assert_allclose(scores.mean(), truth[name], **close)


@pytest.mark.shared
@pytest.mark.parametrize("ended", [True, False])
def test_reward_of_xlan(shared: Path, ended: bool) -> None:
    case = json.loads((shared / "reference/golden/metrics_cider_reward.json").read_text())
    references = case["train_refs"] if ended else [[r[:-1] for r in captions] for captions in case["train_refs"]]
    captions = [[*caption, 0, 0, 3] for caption in case["hyp"]]  # what comes behind the end does not count
    scores = CiderD(references, end=0, count_end=True).scores(range(len(captions)), captions)
    np.testing.assert_allclose(scores, case["per_image"], **close)


@given(IMAGES, st.sampled_from(["image", "caption", "given"]))
@settings(max_examples=150, deadline=None)
def test_cider_against_the_formula(pairs: list[tuple[list[int], list[list[int]]]], source: Any) -> None:
    captions, references = [p[0] for p in pairs], [p[1] for p in pairs]
    documents: list[Any] = references
    if source == "caption":
        documents = [[caption] for captions in references for caption in captions]
    if source == "given":
        documents = [*references[:1], [[1, 2, 3, 4, 1, 2], [9, 9]], [[2]]]
    df, size = slow_cider.frequencies(documents), len(documents)
    ours: Any = Frequencies(df, size) if source == "given" else source
    again = [*range(len(pairs)), 0, 0]
    for metric, sigma in ((CiderD, 6.0), (Cider, None)):
        scores = metric(references, df=ours).scores(again, [*captions, [], captions[-1]])
        expected = [
            slow_cider.score(c, references[i], df, size, sigma) for i, c in zip(again, [*captions, [], captions[-1]])
        ]
        np.testing.assert_allclose(scores, expected, **close)


@given(IMAGES)
@settings(max_examples=100, deadline=None)
def test_bleu_and_rouge_against_the_formula(pairs: list[tuple[list[int], list[list[int]]]]) -> None:
    captions, references = [p[0] for p in pairs], [p[1] for p in pairs]
    corpus, each = Bleu(references).scores(range(len(pairs)), captions)
    np.testing.assert_allclose(corpus, slow_bleu.bleu(captions, references), **close)
    np.testing.assert_allclose(each, [slow_bleu.bleu([c], [r]) for c, r in pairs], **close)
    rouge = RougeL(references).scores(range(len(pairs)), captions)
    np.testing.assert_allclose(rouge, [slow_rouge.rouge_l(c, r) for c, r in pairs], **close)


def test_end_symbol() -> None:
    references = [[[5, 6, 7]], [[5, 8]], [[6, 9, 7]]]
    captions, images = [[5, 6, 0, 4], [5, 6, 7], [6, 0]], [0, 0, 2]
    plain = CiderD(references, end=0).scores(images, captions)
    np.testing.assert_array_equal(plain, CiderD(references).scores(images, [[5, 6], [5, 6, 7], [6]]))
    counted = CiderD(references, end=0, count_end=True).scores(images, captions)
    with_end = CiderD([[[*r, 0] for r in captions] for captions in references])
    np.testing.assert_array_equal(counted, with_end.scores(images, [[5, 6, 0], [5, 6, 7], [6, 0]]))


def test_large_numbers_and_no_captions() -> None:
    big = 2**31 - 1
    references = [[[big, big - 1, big, big]], [[3, 4]]]
    scores = CiderD(references).scores([0, 0], [[big, big - 1, big, big], [big - 2] * 5])
    np.testing.assert_allclose(scores, [10.0, 0.0], **close)
    assert CiderD(references).scores([], []).shape == (0,)
    assert CiderD([]).scores([], []).shape == (0,)
    with pytest.raises(ValueError, match="tokens must be in 0"):
        CiderD(references).scores([0], [[big + 1]])


@pytest.mark.parametrize("metric", [CiderD, Cider, Bleu, RougeL])
def test_an_image_without_references(metric: Any) -> None:
    with pytest.raises(ValueError, match="image 1 has no reference"):
        metric([[[1]], []])


def test_wrong_images_and_frequencies() -> None:
    for images, captions, words in (
        ([2], [[1]], "there are 2"),
        ([-1], [[1]], "there are 2"),
        ([0], [], "one for each"),
    ):
        for metric in (CiderD, Bleu, RougeL):
            with pytest.raises(ValueError, match=words):
                metric([[[1, 2]], [[3]]]).scores(images, captions)
    with pytest.raises(ValueError, match="no n-gram"):
        CiderD([[[1]]], df=Frequencies(Counter({(1, 2, 3, 4, 5): 1}), 3))
