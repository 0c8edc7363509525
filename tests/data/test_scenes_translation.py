"""The two invented languages: each parsed back by rules of the test's own, judged against the scene and each other."""

from __future__ import annotations

import dataclasses

import pytest

from vlplatform.data.scenes import SHAPES, ScenesSettings, picture, scene
from vlplatform.data.scenes import translation as t
from vlplatform.data.scenes.relations import RELATIONS, Facts

Meaning = tuple[str, tuple[str, ...], bool]  # shape, adjectives, several
Sentence = list[tuple[Meaning, str | None, Meaning | None]]

VELA_GENDER = {"circle": "oi", "square": "ae", "triangle": "ae", "star": "oi", "ring": "oi", "cross": "ae"}
TORU_CLASS = {
    "circle": "ka ta",
    "square": "mi bi",
    "triangle": "lu zu",
    "star": "ka ta",
    "ring": "mi bi",
    "cross": "lu zu",
}


def _back(table: dict[str, str], word: str) -> str:
    (meaning,) = [k for k, v in table.items() if v == word]
    return meaning


def read_vela(text: str) -> Sentence:
    """Meaning of a Vela sentence; asserts that article, adjectives, noun and verb agree."""

    def phrase(words: list[str]) -> Meaning:
        *front, noun = words
        shape = _back({k: v[0] for k, v in t._VELA_NOUNS.items()}, noun[:-1])
        several = VELA_GENDER[shape].index(noun[-1]) == 1
        assert {w[-1] for w in front} == {noun[-1]}
        assert front[0][:-1] == "l"
        return shape, tuple(_back(t._VELA_ADJECTIVES, w[:-1]) for w in front[1:]), several

    clauses: Sentence = []
    for clause in text.split(" e "):
        words = clause.split()
        verb = next(i for i, w in enumerate(words) if w in ("ta", "tan"))
        if verb == 0:
            subject, relation, object_ = phrase(words[1:]), None, None
        else:
            subject = phrase(words[:verb])
            start = max(i for i, w in enumerate(words) if w in ("lo", "la", "li", "le"))
            relation = _back(t._VELA_RELATIONS, " ".join(words[verb + 1 : start]))
            object_ = phrase(words[start:])
        assert words[verb] == ("tan" if subject[2] else "ta")
        clauses.append((subject, relation, object_))
    return clauses


def read_toru(text: str) -> Sentence:
    """Meaning of a Toru sentence; asserts the prefixes of adjectives and verb."""
    nouns = {k: v[0] for k, v in t._TORU_NOUNS.items()}

    def phrase(words: list[str]) -> tuple[Meaning, str]:
        noun, *behind = words
        shape = _back(nouns, noun[2:])
        several = TORU_CLASS[shape].split().index(noun[:2]) == 1
        assert all(w[:2] == noun[:2] for w in behind)
        return (shape, tuple(_back(t._TORU_ADJECTIVES, w[2:]) for w in reversed(behind)), several), noun[:2]

    clauses: Sentence = []
    for clause in reversed(text.split(" nao ")):
        *words, verb = clause.split()
        if verb.endswith("po"):
            subject, prefix = phrase(words)
            assert verb == prefix + "po"
            clauses.append((subject, None, None))
            continue
        *words, relation = words
        second = [i for i, w in enumerate(words) if w[2:] in nouns.values()][1]
        (subject, one), (object_, two) = phrase(words[:second]), phrase(words[second:])
        assert verb == one + two + "rese"
        clauses.append((subject, _back(t._TORU_RELATIONS, relation), object_))
    return clauses


def test_pairs_mean_the_same_and_are_true() -> None:
    forms = set()
    for index in range(500):
        s = scene(31, index)
        facts = Facts.of(picture(31, index, ScenesSettings()))
        assert len(s.pairs) == 3
        for vela, toru in s.pairs:
            meaning = read_vela(vela)
            assert meaning == read_toru(toru)
            for subject, relation, object_ in meaning:
                these, those = (_fitting(facts, p) for p in (subject, object_))
                if relation is None:
                    assert these
                elif subject[2]:
                    assert len(these) > 1
                    assert any(all(facts.holds(relation, a, b) for a in these) for b in those)
                else:
                    assert any(facts.holds(relation, a, b) for a in these for b in those if a != b)
                forms.add((relation, subject[2]))
    assert forms >= {(r, several) for r in RELATIONS for several in (False, True)} | {(None, False)}


def _fitting(facts: Facts, phrase: Meaning | None) -> list[int]:
    if phrase is None:
        return []
    return [k for k, thing in enumerate(facts.things) if {phrase[0], *phrase[1]} <= set(thing.words)]


def test_two_sentences_by_hand() -> None:
    star = t.Phrase("star", ("large", "red"), False)
    rings = t.Phrase("ring", (), True)
    cross = t.Phrase("cross", ("blue",), False)
    first, second = t.Clause(star, "left of", cross), t.Clause(rings, "above", star)
    assert t.vela([first, second]) == (
        "lo grundo rubo stelo ta sin de la lazura krusa e li anuli tan supra lo grundo rubo stelo"
    )
    assert t.toru([first, second]) == (
        "biwomba kanuri kaseki kakuba ulo bikarese nao kanuri kaseki kakuba lutiza lurawe oste kalurese"
    )


@pytest.mark.parametrize("several", [False, True])
def test_different_phrases_have_different_words(several: bool) -> None:
    base = t.Phrase("circle", (), several)
    phrases = [
        dataclasses.replace(base, shape=s, adjectives=a) for s in SHAPES for a in ((), ("red",), ("small", "red"))
    ]
    for language in (t.vela, t.toru):
        assert len({language([t.Clause(p)]) for p in phrases}) == len(phrases)
