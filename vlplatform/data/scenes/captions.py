"""Five captions of a scene: what a person would say first, in different words, all of it true."""

from __future__ import annotations

from collections import Counter

from vlplatform.data.scenes.dice import Dice
from vlplatform.data.scenes.relations import PLACES, Facts, Look, article, noun, plural

COUNT = 5
NUMBERS: tuple[str, ...] = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")

_SPOKEN = {
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}


def captions(facts: Facts, grounds: tuple[str, ...], dice: Dice) -> tuple[str, ...]:
    """Five different captions. They share a subject: the largest thing, with the thing it relates to."""
    where = f"on {grounds[0]}" if len(grounds) == 1 else f"on {grounds[0]} and {grounds[1]}"
    first = max(facts.numbers, key=lambda k: (facts.area[k], k))
    crowd = inventory(facts)
    made = [
        f"{crowd} {where}",
        f"there are {NUMBERS[len(facts.things)]} shapes {where}",
        f"{_some(facts, first, dice)} {where}",
        f"a picture of {crowd}",
        f"{_some(facts, first, dice)} among {NUMBERS[len(facts.things)]} shapes",
    ]
    related = []
    for other, relation in _relations(facts, first):
        back = PLACES[PLACES.index(relation) ^ 1]
        there, here = dice.choose(_SPOKEN[relation]), dice.choose(_SPOKEN[back])
        related += [
            f"{_some(facts, first, dice)} {there} {_some(facts, other, dice)}",
            f"{_some(facts, other, dice)} {here} {_some(facts, first, dice)} {where}",
            f"there is {_some(facts, first, dice)} {there} {_some(facts, other, dice)} {where}",
        ]
    chosen = [*related[:3], *dice.shuffled(made)]
    return tuple(dice.shuffled(list(dict.fromkeys(chosen))[:COUNT]))


def inventory(facts: Facts) -> str:
    """All things by shape: ``two circles, a star and a ring``, the most frequent first."""
    counts = sorted(Counter(t.shape for t in facts.things).items(), key=lambda pair: (-pair[1], pair[0]))
    parts = [f"{NUMBERS[n]} {plural(shape)}" if n > 1 else article(shape) for shape, n in counts]
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _relations(facts: Facts, first: int) -> list[tuple[int, str]]:
    """The things to which ``first`` clearly stands left, right, above or below; the largest first."""
    others = sorted((k for k in facts.numbers if k != first), key=lambda k: (-facts.area[k], k))
    return [(k, relation) for k in others for relation in PLACES if facts.holds(relation, first, k)]


def _some(facts: Facts, thing: int, dice: Dice) -> str:
    """The thing with an indefinite article and its colour; sometimes its size or pattern too."""
    t = facts.things[thing]
    texture = t.texture if t.texture != "plain" and dice.chance(50) else None
    look: Look = (t.size if dice.chance(30) else None, t.colour, texture, t.shape)
    return article(noun(look))
