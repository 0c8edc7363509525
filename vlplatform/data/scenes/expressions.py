"""Referring expressions: words that fit exactly one thing of the scene, most of them only by where it stands."""

from __future__ import annotations

from dataclasses import dataclass

from vlplatform.data.scenes.dice import Dice
from vlplatform.data.scenes.relations import RELATIONS, Facts, Look, noun

EXTREMES: tuple[str, ...] = ("leftmost", "rightmost", "topmost", "bottommost", "largest", "smallest")
KINDS: tuple[str, ...] = ("looks", "relation", "nearest", "between", "extreme")

_ATTEMPTS = 14


@dataclass(frozen=True)
class Expression:
    """Words for one thing.

    Attributes:
        text: The expression, ``the red circle left of the star``.
        target: The number of the only thing it fits.
        kind: One of :data:`KINDS`; ``looks`` needs no geometry, the others do.
    """

    text: str
    target: int
    kind: str


def expressions(facts: Facts, dice: Dice) -> tuple[Expression, ...]:
    """One expression for each thing, in random order; by geometry wherever one is found soon."""
    return tuple(point_out(facts, target, dice) for target in dice.shuffled(facts.numbers))


def point_out(facts: Facts, target: int, dice: Dice, without: str = "") -> Expression:
    """Words that fit the target alone; with ``without="colour"`` they name no colour.

    By geometry in nine of ten cases if some attempts find such words, else by looks.
    """
    if dice.chance(90):
        for _ in range(_ATTEMPTS):
            made = _by_geometry(facts, target, dice, without)
            if made is not None:
                return made
    return Expression(f"the {noun(facts.name(target, without))}", target, "looks")


def _by_geometry(facts: Facts, target: int, dice: Dice, without: str) -> Expression | None:
    """One attempt at words that fit other things too but for a place, distance or size beside other things."""
    t = facts.things[target]
    look: Look = dice.choose(
        (
            (None, None, None, t.shape),
            (None, None if without == "colour" else t.colour, None, t.shape),
            (t.size, None, None, None),
            (None, None, None, None),
        )
    )
    rivals = facts.like(look)
    if len(rivals) == 1:
        return None
    kind = dice.choose(("relation", "relation", "relation", "nearest", "between", "between", "extreme"))
    if kind == "extreme":
        word = dice.choose(EXTREMES)
        if facts.extreme(word, rivals) != target or (look[0] and word in EXTREMES[4:]):
            return None
        return Expression(f"the {word} {noun(look)}", target, kind)
    anchor, second = dice.shuffled([k for k in facts.numbers if k != target])[:2]
    if kind == "nearest":
        if facts.nearest(anchor, rivals) != target:
            return None
        return Expression(f"the {noun(look)} nearest to the {noun(facts.name(anchor, without))}", target, kind)
    if kind == "between":
        if not _only(target, {k: facts.between(k, anchor, second) for k in rivals if k not in (anchor, second)}):
            return None
        ends = f"the {noun(facts.name(anchor, without))} and the {noun(facts.name(second, without))}"
        return Expression(f"the {noun(look)} between {ends}", target, kind)
    relation = dice.choose(RELATIONS)
    if not _only(target, {k: facts.holds(relation, k, anchor) for k in rivals if k != anchor}):
        return None
    return Expression(f"the {noun(look)} {relation} the {noun(facts.name(anchor, without))}", target, kind)


def _only(target: int, answers: dict[int, bool | None]) -> bool:
    """Whether a relation clearly holds for the target, and clearly for none of its rivals."""
    return all(answer is (k == target) for k, answer in answers.items())
