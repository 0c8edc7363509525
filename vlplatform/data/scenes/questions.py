"""Questions about a scene, one of each kind, each with ten people's answers of which most are right."""

from __future__ import annotations

from dataclasses import dataclass

from vlplatform.data.scenes.dice import Dice
from vlplatform.data.scenes.expressions import point_out
from vlplatform.data.scenes.relations import RELATIONS, Facts, Look, article, noun, plural
from vlplatform.data.scenes.world import COLOURS, GROUNDS, SHAPES, TEXTURES

KINDS: tuple[str, ...] = ("yes/no", "number", "colour", "other")
ANNOTATORS = 10

_ALIKE = {  # what a hasty eye takes one for another
    "red": "orange",
    "orange": "yellow",
    "yellow": "orange",
    "green": "blue",
    "blue": "purple",
    "purple": "blue",
    "white": "yellow",
    "black": "purple",
    "circle": "ring",
    "ring": "circle",
    "square": "cross",
    "cross": "star",
    "star": "triangle",
    "triangle": "star",
    "waves": "sand",
    "sand": "tiles",
    "tiles": "waves",
    "yes": "no",
    "no": "yes",
}


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        kind: One of :data:`KINDS`.
        text: The question.
        answer: The right answer, one word or a number in digits.
        answers: What ten annotators said; at least six of them the right answer.
    """

    kind: str
    text: str
    answer: str
    answers: tuple[str, ...]


def questions(facts: Facts, grounds: tuple[str, ...], dice: Dice) -> tuple[Question, ...]:
    """One question of each kind."""
    made = {
        "yes/no": _yes_no(facts, grounds, dice),
        "number": _number(facts, dice),
        "colour": _colour(facts, dice),
        "other": _other(facts, grounds, dice),
    }
    return tuple(Question(kind, asked[0], asked[1], _annotators(asked[1], dice)) for kind, asked in made.items())


def _annotators(answer: str, dice: Dice) -> tuple[str, ...]:
    """Ten answers in random order: six to ten right ones, the rest likely mistakes."""
    wrong = dice.choose((0, 0, 0, 1, 1, 2, 2, 3, 4))
    said = [answer] * (ANNOTATORS - wrong)
    for _ in range(wrong):
        if answer.isdigit():
            said.append(str(abs(int(answer) + dice.choose((-1, 1)))))
        else:
            said.append(_ALIKE[answer])
    return tuple(dice.shuffled(said))


def _yes_no(facts: Facts, grounds: tuple[str, ...], dice: Dice) -> tuple[str, str]:
    """Is there such a thing, does a relation hold, is a thing patterned so, is there such a ground."""
    wanted, form = dice.chance(50), dice.below(4)
    answer = "yes" if wanted else "no"
    if form == 0:
        return f"is there {dice.choose(grounds if wanted else _absent(grounds))}?", answer
    thing = dice.below(len(facts.things))
    if form == 1:
        for relation in dice.shuffled(RELATIONS):
            other = dice.choose([k for k in facts.numbers if k != thing])
            if facts.holds(relation, thing, other) is wanted:
                return f"is the {noun(facts.name(thing))} {relation} the {noun(facts.name(other))}?", answer
    bare = facts.name(thing, "texture")
    if form == 2 and facts.like(bare) == [thing]:
        own = facts.things[thing].texture
        said = own if wanted else dice.choose([t for t in TEXTURES if t != own])
        return f"is the {noun(bare)} {said}?", answer
    t = facts.things[thing]
    if wanted:
        return f"is there {article(noun((None, t.colour, None, t.shape)))}?", answer
    missing = [(None, c, None, t.shape) for c in COLOURS if not facts.like((None, c, None, t.shape))]
    return f"is there {article(noun(dice.choose(missing)))}?", answer


def _absent(grounds: tuple[str, ...]) -> list[str]:
    return [g for g in GROUNDS if g not in grounds]


def _number(facts: Facts, dice: Dice) -> tuple[str, str]:
    """How many of a shape, of a colour, of both, in all, or on one side of a thing."""
    form = dice.below(5)
    t = dice.choose(facts.things)
    if form == 0:
        anchor = dice.below(len(facts.things))
        relation = dice.choose(RELATIONS)
        verdicts = [facts.holds(relation, k, anchor) for k in facts.numbers if k != anchor]
        if None not in verdicts:
            return f"how many shapes are {relation} the {noun(facts.name(anchor))}?", str(sum(map(bool, verdicts)))
    if form == 1:
        return "how many shapes are there?", str(len(facts.things))
    if form == 2:
        return f"how many {t.colour} shapes are there?", str(len(facts.like((None, t.colour, None, None))))
    shape = t.shape if dice.chance(85) else dice.choose(SHAPES)
    look: Look = (None, t.colour if form == 3 else None, None, shape)
    colour = f"{t.colour} " if form == 3 else ""
    return f"how many {colour}{plural(shape)} are there?", str(len(facts.like(look)))


def _colour(facts: Facts, dice: Dice) -> tuple[str, str]:
    """The colour of a thing that is pointed out without naming any colour, by geometry as often as may be."""
    pointed = point_out(facts, dice.below(len(facts.things)), dice, without="colour")
    return f"what colour is {pointed.text}?", facts.things[pointed.target].colour


def _other(facts: Facts, grounds: tuple[str, ...], dice: Dice) -> tuple[str, str]:
    """Which shape stands in a relation, is nearest, between, or larger of two; or what the ground is."""
    for _ in range(8):
        anchor, second, *_ = dice.shuffled(facts.numbers)
        others = [k for k in facts.numbers if k != anchor]
        name, second_name = noun(facts.name(anchor)), noun(facts.name(second))
        form = dice.choose(("relation", "relation", "relation", "nearest", "between", "larger"))
        if form == "larger":
            larger = facts.holds("larger than", anchor, second)
            smaller = facts.holds("smaller than", anchor, second)
            if facts.things[anchor].shape != facts.things[second].shape and (larger or smaller):
                text = f"which is larger, the {name} or the {second_name}?"
                return text, facts.things[anchor if larger else second].shape
            continue
        if form == "relation":
            relation = dice.choose(RELATIONS)
            found = _single({k: facts.holds(relation, k, anchor) for k in others})
            text = f"what shape is {relation} the {name}?"
        elif form == "between":
            found = _single({k: facts.between(k, anchor, second) for k in others if k != second})
            text = f"what shape is between the {name} and the {second_name}?"
        else:
            found = facts.nearest(anchor, others)
            text = f"what shape is nearest to the {name}?"
        if found is not None:
            return text, facts.things[found].shape
    if len(grounds) == 1:
        return "what is the ground made of?", grounds[0]
    known = dice.below(2)
    return f"what lies beside the {grounds[known]}?", grounds[1 - known]


def _single(verdicts: dict[int, bool | None]) -> int | None:
    """The only thing for which a relation clearly holds, if it clearly fails for all others."""
    holding = [k for k, verdict in verdicts.items() if verdict]
    return holding[0] if len(holding) == 1 and None not in verdicts.values() else None
