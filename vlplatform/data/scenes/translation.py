"""True sentences about a scene in two small invented languages, Vela and Toru.

Vela puts the verb in the middle; article, adjectives and noun agree in gender and number by their endings, adjectives
stand before the noun, size first. Toru puts the verb last, marks noun and adjectives by a prefix of the noun's class
and number, lets the adjectives follow in the opposite order, and has the verb agree with subject **and** object. Of two
clauses Toru says the second first. So a translation needs agreement over a distance and reordering at three levels,
and each Vela sentence has exactly one Toru sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlplatform.data.scenes.dice import Dice
from vlplatform.data.scenes.relations import RELATIONS, Facts

LANGUAGES: tuple[str, str] = ("vela", "toru")
COUNT = 3

_VELA_NOUNS = {  # stem, gender
    "circle": ("kirl", "m"),
    "square": ("vadr", "f"),
    "triangle": ("tris", "f"),
    "star": ("stel", "m"),
    "ring": ("anul", "m"),
    "cross": ("krus", "f"),
}
_VELA_ENDINGS = {("m", False): "o", ("m", True): "i", ("f", False): "a", ("f", True): "e"}
_VELA_ADJECTIVES = {
    "red": "rub",
    "orange": "naran",
    "yellow": "zald",
    "green": "verd",
    "blue": "lazur",
    "purple": "morad",
    "white": "bland",
    "black": "nokt",
    "small": "pik",
    "large": "grund",
    "striped": "lini",
    "dotted": "pint",
}
_VELA_RELATIONS = {
    "left of": "sin de",
    "right of": "des de",
    "above": "supra",
    "below": "subto",
    "larger than": "mas ke",
    "smaller than": "min ke",
}

_TORU_NOUNS = {  # stem, class
    "circle": ("dunga", 0),
    "square": ("peko", 1),
    "triangle": ("salu", 2),
    "star": ("nuri", 0),
    "ring": ("womba", 1),
    "cross": ("tiza", 2),
}
_TORU_PREFIXES = (("ka", "ta"), ("mi", "bi"), ("lu", "zu"))  # per class: one, several
_TORU_ADJECTIVES = {
    "red": "seki",
    "orange": "hola",
    "yellow": "jano",
    "green": "fumi",
    "blue": "rawe",
    "purple": "goda",
    "white": "yepu",
    "black": "niku",
    "small": "dogi",
    "large": "kuba",
    "striped": "sasa",
    "dotted": "tonto",
}
_TORU_RELATIONS = {
    "left of": "oste",
    "right of": "ante",
    "above": "ulo",
    "below": "ini",
    "larger than": "zaidu",
    "smaller than": "pungu",
}


@dataclass(frozen=True)
class Phrase:
    """One thing, or all things of a shape: its attribute words (size, colour, texture; some unsaid) and number."""

    shape: str
    adjectives: tuple[str, ...]
    several: bool


@dataclass(frozen=True)
class Clause:
    """``subject`` stands in ``relation`` to ``object``; without them, it merely is there."""

    subject: Phrase
    relation: str | None = None
    object: Phrase | None = None


def sentence_pairs(facts: Facts, dice: Dice) -> tuple[tuple[str, str], ...]:
    """Three true (Vela, Toru) sentences of one or two clauses."""
    pairs = []
    for _ in range(COUNT):
        clauses = [_clause(facts, dice) for _ in range(2 if dice.chance(35) else 1)]
        pairs.append((vela(clauses), toru(clauses)))
    return tuple(pairs)


def vela(clauses: list[Clause]) -> str:
    """The Vela sentence: clauses in order, joined by ``e``."""
    return " e ".join(map(_vela_clause, clauses))


def toru(clauses: list[Clause]) -> str:
    """The Toru sentence: the last clause first, joined by ``nao``."""
    return " nao ".join(map(_toru_clause, reversed(clauses)))


def _clause(facts: Facts, dice: Dice) -> Clause:
    """A clause that is true of the scene."""
    things = facts.things
    for _ in range(5):
        first, relation = dice.below(len(things)), dice.choose(RELATIONS)
        second = dice.choose([k for k in facts.numbers if k != first])
        alike = facts.like((None, None, None, things[first].shape))
        if len(alike) > 1 and second not in alike and all(facts.holds(relation, k, second) for k in alike):
            return Clause(Phrase(things[first].shape, (), True), relation, _one(facts, second, dice))
        if facts.holds(relation, first, second):
            return Clause(_one(facts, first, dice), relation, _one(facts, second, dice))
    return Clause(_one(facts, dice.below(len(things)), dice))


def _one(facts: Facts, thing: int, dice: Dice) -> Phrase:
    t = facts.things[thing]
    said = [t.size] * dice.chance(45) + [t.colour] * dice.chance(65)
    if t.texture != "plain" and dice.chance(50):
        said.append(t.texture)
    return Phrase(t.shape, tuple(said), False)


def _vela_clause(clause: Clause) -> str:
    copula = "tan" if clause.subject.several else "ta"
    if clause.object is None:
        return f"{copula} {_vela_phrase(clause.subject)}"
    relation = _VELA_RELATIONS[clause.relation or ""]
    return f"{_vela_phrase(clause.subject)} {copula} {relation} {_vela_phrase(clause.object)}"


def _vela_phrase(phrase: Phrase) -> str:
    noun, gender = _VELA_NOUNS[phrase.shape]
    stems = ["l", *(_VELA_ADJECTIVES[word] for word in phrase.adjectives), noun]
    return " ".join(stem + _VELA_ENDINGS[gender, phrase.several] for stem in stems)


def _toru_clause(clause: Clause) -> str:
    subject = _toru_phrase(clause.subject)
    if clause.object is None:
        return f"{subject} {_toru_prefix(clause.subject)}po"
    verb = f"{_toru_prefix(clause.subject)}{_toru_prefix(clause.object)}rese"
    return f"{subject} {_toru_phrase(clause.object)} {_TORU_RELATIONS[clause.relation or '']} {verb}"


def _toru_phrase(phrase: Phrase) -> str:
    stems = [_TORU_NOUNS[phrase.shape][0], *(_TORU_ADJECTIVES[word] for word in reversed(phrase.adjectives))]
    return " ".join(_toru_prefix(phrase) + stem for stem in stems)


def _toru_prefix(phrase: Phrase) -> str:
    return _TORU_PREFIXES[_TORU_NOUNS[phrase.shape][1]][phrase.several]
