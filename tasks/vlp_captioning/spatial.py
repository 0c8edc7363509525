"""Whether captions of Scenes say truly what lies where: the accuracy of spatial words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlplatform.data.scenes.relations import Facts
from vlplatform.data.scenes.world import COLOURS, SHAPES, SIZES, TEXTURES

RELATIONS = {
    "left of": "left of",
    "to the left of": "left of",
    "right of": "right of",
    "to the right of": "right of",
    "above": "above",
    "over": "above",
    "below": "below",
    "under": "below",
}
_SAID = "|".join(sorted(map(re.escape, RELATIONS), key=len, reverse=True))
_NOUN = rf"an? ((?:(?:{'|'.join([*SIZES, *COLOURS, *TEXTURES])}) )*(?:{'|'.join(SHAPES)}))"
_STATEMENT = re.compile(rf"\b{_NOUN} (?:is )?({_SAID}) {_NOUN}\b")


@dataclass(frozen=True)
class Statements:
    """What captions say about places.

    Attributes:
        right: Statements that hold for some pair of things that look as described.
        wrong: Those that hold for none.
        unknown: Those that name a thing which is not there; they say nothing of places and do not count.
    """

    right: int = 0
    wrong: int = 0
    unknown: int = 0

    @property
    def accuracy(self) -> float:
        """Share of the right among right and wrong; NaN without any."""
        told = self.right + self.wrong
        return self.right / told if told else float("nan")

    def __add__(self, other: Statements) -> Statements:
        return Statements(self.right + other.right, self.wrong + other.wrong, self.unknown + other.unknown)


def judge(caption: str, facts: Facts) -> Statements:
    """The statements of one caption against what is true of its scene; unclear relations count as wrong."""
    total = Statements()
    for first, relation, second in _STATEMENT.findall(caption):
        pairs = [(a, b) for a in _like(first, facts) for b in _like(second, facts) if a != b]
        if not pairs:
            total += Statements(unknown=1)
        elif any(facts.holds(RELATIONS[relation], a, b) for a, b in pairs):
            total += Statements(right=1)
        else:
            total += Statements(wrong=1)
    return total


def judge_all(captions: Mapping[str, str], facts: Mapping[str, Facts]) -> Statements:
    """All captions, by the id of their scene."""
    return sum((judge(caption, facts[id]) for id, caption in captions.items()), Statements())


def _like(phrase: str, facts: Facts) -> list[int]:
    said = phrase.split()

    def pick(words: Iterable[Any]) -> str | None:
        return next((word for word in said if word in words), None)

    return facts.like((pick(SIZES), pick(COLOURS), pick(TEXTURES), pick(SHAPES)))


def statements(captions: Sequence[str]) -> list[tuple[str, str, str]]:
    """(thing, relation, thing) of every statement about places."""
    return [(a, RELATIONS[r], b) for caption in captions for a, r, b in _STATEMENT.findall(caption)]
