"""Referring expressions: words that fit exactly one thing of the scene, most of them only by where it stands."""

from __future__ import annotations

from dataclasses import dataclass

from vlplatform.data.scenes.dice import Dice
from vlplatform.data.scenes.relations import RELATIONS, Facts, Look, noun

EXTREMES: tuple[str, ...] = ("leftmost", "rightmost", "topmost", "bottommost", "largest", "smallest")
KINDS: tuple[str, ...] = ("looks", "relation", "nearest", "between", "extreme")

_ATTEMPTS = 6


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
    """One expression for each thing that can be told apart, in random order; four fifths try geometry first."""
    found: list[Expression] = []
    for target in dice.shuffled(facts.numbers):
        made = by_geometry(facts, target, dice) if dice.chance(80) else None
        made = made or by_looks(facts, target) or by_geometry(facts, target, dice)
        if made is not None:
            found.append(made)
    return tuple(found)


def by_looks(facts: Facts, target: int, without: str = "") -> Expression | None:
    """``the small red star``, if looks alone single the thing out; ``without`` leaves one attribute unsaid."""
    look = facts.name(target, without)
    return Expression(f"the {noun(look)}", target, "looks") if look else None


def by_geometry(facts: Facts, target: int, dice: Dice, without: str = "") -> Expression | None:
    """An expression in which place or size beside other things decides; None if a few attempts find none.

    The words for the target fit at least one other thing as well, so that geometry is needed.
    """
    t = facts.things[target]
    colour = None if without == "colour" else t.colour
    looks: list[Look] = [(None, None, None, t.shape), (None, colour, None, t.shape), (None, colour, None, None)]
    looks = [look for look in looks if len(facts.like(look)) > 1]
    if not looks:
        return None
    for _ in range(_ATTEMPTS):
        look = dice.choose(looks)
        made = _attempt(facts, target, look, dice, without)
        if made is not None:
            return made
    return None


def _attempt(facts: Facts, target: int, look: Look, dice: Dice, without: str) -> Expression | None:
    rivals = facts.like(look)
    others = [k for k in facts.numbers if k != target]
    kind = dice.choose(("relation", "relation", "relation", "nearest", "between", "extreme"))
    if kind == "extreme":
        word = dice.choose(EXTREMES)
        if facts.extreme(word, rivals) != target:
            return None
        return Expression(f"the {word} {noun(look)}", target, kind)
    anchor = dice.choose(others)
    anchor_look = facts.name(anchor, without)
    if anchor_look is None:
        return None
    if kind == "nearest":
        if anchor in rivals or facts.nearest(anchor, rivals) != target:
            return None
        return Expression(f"the {noun(look)} nearest to the {noun(anchor_look)}", target, kind)
    if kind == "between":
        second = dice.choose(others)
        second_look = facts.name(second, without)
        if second == anchor or second_look is None or not _only(
            target, {k: facts.between(k, anchor, second) for k in rivals if k not in (anchor, second)}
        ):
            return None
        text = f"the {noun(look)} between the {noun(anchor_look)} and the {noun(second_look)}"
        return Expression(text, target, kind)
    relation = dice.choose(RELATIONS)
    if not _only(target, {k: facts.holds(relation, k, anchor) for k in rivals if k != anchor}):
        return None
    return Expression(f"the {noun(look)} {relation} the {noun(anchor_look)}", target, kind)


def _only(target: int, answers: dict[int, bool | None]) -> bool:
    """Whether a relation clearly holds for the target, and clearly for none of its rivals."""
    return all(answer is (k == target) for k, answer in answers.items())
