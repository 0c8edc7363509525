"""Translation scores by name: equal to sacrebleu's, with signatures, and what is skipped."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import vlplatform
from vlplatform.errors import UserError
from vlplatform.metrics.multi_bleu import multi_bleu
from vlplatform.metrics.translation import METRICS, Found, Sentence, score

WORDS = ["Ein well-known Mann geht .", "zwei Hunde , die laufen", "Das Haus ist sehr alt ."]
TEXTS = ["Ein well-known Mann geht.", "zwei Hunde, die laufen", "Das Haus ist sehr alt."]
REFERENCE_WORDS = [
    ["Ein well-known Mann läuft .", "Ein self-made Mann geht ."],
    ["Zwei Hunde , die laufen", "zwei Hunde laufen"],
    ["Das Haus ist alt .", "Dieses Haus ist sehr alt ."],
]
REFERENCE_TEXTS = [
    ["Ein well-known Mann läuft.", "Ein self-made Mann geht."],
    ["Zwei Hunde, die laufen", "zwei Hunde laufen"],
    ["Das Haus ist alt.", "Dieses Haus ist sehr alt."],
]
HYPOTHESES = [Sentence(words.split(), text) for words, text in zip(WORDS, TEXTS)]
REFERENCES = [
    [Sentence(words.split(), text) for words, text in zip(*each)] for each in zip(REFERENCE_WORDS, REFERENCE_TEXTS)
]
ONE = [group[:1] for group in REFERENCES]


@pytest.mark.parametrize("lowercase", [False, True])
def test_tokenised_bleu_is_of_the_words(lowercase: bool) -> None:
    found = score(HYPOTHESES, REFERENCES, metrics=("bleu_split", "bleu"), lowercase=lowercase)
    for name, split in (("bleu", False), ("bleu_split", True)):
        alone = multi_bleu(WORDS, REFERENCE_WORDS, lowercase=lowercase, split=split)
        assert found.values[name] == alone.bleu
        assert found.lines[name] == str(alone)
    assert found.values["bleu"] != found.values["bleu_split"]
    assert list(found.values) == ["bleu", "bleu_split"]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_equal_to_sacrebleu(count: int, lowercase: bool) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    found = score(
        HYPOTHESES, [group[:count] for group in REFERENCES], metrics=("sacrebleu", "chrf"), lowercase=lowercase
    )
    streams = [[group[k] for group in REFERENCE_TEXTS] for k in range(count)]
    for name, metric in (
        ("sacrebleu", sacrebleu.BLEU(lowercase=lowercase)),
        ("chrf", sacrebleu.CHRF(lowercase=lowercase)),
    ):
        theirs = metric.corpus_score(TEXTS, streams)
        assert found.values[name] == theirs.score
        assert found.signatures[name] == str(metric.get_signature())
        assert f"nrefs:{count}|case:{'lc' if lowercase else 'mixed'}" in found.signatures[name]
        assert found.lines[name] == theirs.format(signature=found.signatures[name])
    assert not found.skipped


def test_uneven_numbers_of_references() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    found = score(HYPOTHESES, [REFERENCES[0], REFERENCES[1][:1], REFERENCES[2]])
    streams = [[group[0] for group in REFERENCE_TEXTS], [REFERENCE_TEXTS[0][1], None, REFERENCE_TEXTS[2][1]]]
    assert found.values["sacrebleu"] == sacrebleu.corpus_bleu(TEXTS, streams).score
    assert found.values["chrf"] == sacrebleu.corpus_chrf(TEXTS, streams).score
    assert all(signature.startswith("nrefs:var|") for signature in found.signatures.values())
    assert set(found.values) == set(METRICS)


def test_signatures_of_tokenised_bleu() -> None:
    found = score(HYPOTHESES, ONE, metrics=("bleu",), tokenizer="moses, lower-cased")
    version = f"version:vlplatform {vlplatform.__version__}"
    assert found.signatures == {
        "bleu": f"nrefs:1|case:as given|tok:moses, lower-cased|compounds:whole|smooth:none|{version}"
    }
    found = score(HYPOTHESES, REFERENCES, metrics=("bleu_split",), lowercase=True)
    assert found.signatures == {
        "bleu_split": f"nrefs:2|case:lc|tok:none (words as given)|compounds:split|smooth:none|{version}"
    }


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    found = score(HYPOTHESES, REFERENCES)
    assert set(found.values) == set(found.signatures) == set(found.lines) == {"bleu", "bleu_split"}
    assert set(found.skipped) == {"sacrebleu", "chrf"}
    assert all(reason.endswith("pip install sacrebleu") for reason in found.skipped.values())
    assert score(HYPOTHESES, REFERENCES, metrics=("chrf",)).values == {}


def test_empty_hypotheses() -> None:
    """They count as empty; without any words every score is a true 0."""
    sacrebleu = pytest.importorskip("sacrebleu")
    empty = Sentence([], "")
    found = score([HYPOTHESES[0], empty, HYPOTHESES[2]], ONE)
    assert found.values["bleu"] == multi_bleu([WORDS[0], "", WORDS[2]], [each[:1] for each in REFERENCE_WORDS]).bleu
    first = [[each[0] for each in REFERENCE_TEXTS]]
    assert found.values["sacrebleu"] == sacrebleu.corpus_bleu([TEXTS[0], "", TEXTS[2]], first).score
    assert found.values["chrf"] == sacrebleu.corpus_chrf([TEXTS[0], "", TEXTS[2]], first).score
    nothing = score([empty] * 3, ONE)
    assert nothing.values == dict.fromkeys(METRICS, 0.0)
    assert "hyp_len=0" in nothing.lines["bleu"]


def test_nothing_asked_for() -> None:
    assert score(HYPOTHESES, REFERENCES, metrics=()) == Found()


@pytest.mark.parametrize("metric", list(METRICS))
@pytest.mark.parametrize(
    ("hypotheses", "references", "words"),
    [
        (HYPOTHESES[:2], REFERENCES, "2 hypotheses but references of 3 sentences"),
        ([], [], "no sentence to score"),
        (HYPOTHESES, [REFERENCES[0], [], REFERENCES[2]], "references of sentence 2 of 3 must be a list"),
        (HYPOTHESES[:1], [[Sentence([], "")]], r"no reference of the 1 sentence\(s\) has a word"),
    ],
)
def test_bad_input_is_told(metric: str, hypotheses: Any, references: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        score(hypotheses, references, metrics=(metric,))


def test_unknown_metric_is_told() -> None:
    with pytest.raises(UserError, match=r"no translation metric 'sacreblue': did you mean 'sacrebleu'\?"):
        score(HYPOTHESES, REFERENCES, metrics=("sacreblue",))
