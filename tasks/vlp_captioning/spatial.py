"""Whether a captioner of Scenes knows what lies where.

Two measures. *Accuracy of spatial words*: of a reference with a statement about places, the four relations are tried in
the place of the true one, and the model says which caption is the likeliest; chance is about a quarter. *Truth*: the
statements in the captions that it writes itself, against the facts of the scene.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlp_captioning.models import Captioner, Images
from vlplatform.data.scenes.relations import PLACES, Facts
from vlplatform.data.scenes.world import COLOURS, SHAPES, SIZES, TEXTURES
from vlplatform.losses import real_words

FORMS: dict[str, tuple[str, str]] = {
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
"""Relation → the two ways in which captions say it."""

_LONGER = 3  # words that a caption may gain by another wording
_RELATION = {form: relation for relation, forms in FORMS.items() for form in forms}
_SAID = "|".join(sorted(map(re.escape, _RELATION), key=len, reverse=True))
_NOUN = rf"an? ((?:(?:{'|'.join([*SIZES, *COLOURS, *TEXTURES])}) )*(?:{'|'.join(SHAPES)}))"
_STATEMENT = re.compile(rf"\b(?={_NOUN} ({_SAID}) {_NOUN}\b)")  # looks ahead: one statement's end may begin another


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
    def truth(self) -> float:
        """Share of the right among right and wrong; NaN without any."""
        told = self.right + self.wrong
        return self.right / told if told else float("nan")

    def __add__(self, other: Statements) -> Statements:
        return Statements(self.right + other.right, self.wrong + other.wrong, self.unknown + other.unknown)


def judge(caption: str, facts: Facts) -> Statements:
    """The statements of one caption against what is true of its scene; unclear relations count as wrong."""
    total = Statements()
    for first, said, second in _STATEMENT.findall(caption):
        pairs = [(a, b) for a in _like(first, facts) for b in _like(second, facts) if a != b]
        if not pairs:
            total += Statements(unknown=1)
        elif any(facts.holds(_RELATION[said], a, b) for a, b in pairs):
            total += Statements(right=1)
        else:
            total += Statements(wrong=1)
    return total


def judge_all(captions: Mapping[str, str], facts: Mapping[str, Facts]) -> Statements:
    """All captions, by the id of their scene."""
    return sum((judge(caption, facts[id]) for id, caption in captions.items()), Statements())


def variants(captions: Iterable[str], facts: Facts) -> tuple[list[str], int] | None:
    """The first caption with a statement, in all eight wordings, and the place of its true relation among the four.

    Two wordings for each relation, side by side, in the order of ``PLACES``. None without a statement. One that would
    be true with another relation, too, of other things that look alike, is passed over: nobody could choose.
    """
    for caption in captions:
        if (match := _STATEMENT.search(caption)) is not None:
            start, end = match.span(2)
            made = [caption[:start] + form + caption[end:] for relation in PLACES for form in FORMS[relation]]
            true, place = [judge(row, facts).right for row in made[::2]], PLACES.index(_RELATION[match[2]])
            if all(true[other] < true[place] for other in range(4) if other != place):
                return made, place
    return None


@torch.no_grad()
def choices(
    model: Captioner, images: Images, captions: Sequence[Sequence[str]], facts: Sequence[Facts]
) -> list[bool | None]:
    """For each image whether the model takes the true relation for the likeliest; None without a statement.

    A relation's probability is the sum of those of the caption's two wordings with it. Captions longer than the model
    can read are left out.

    Args:
        model: The captioner.
        images: B of them.
        captions: Per image what people said of it.
        facts: Per image what is true of it.
    """
    longest = model.model_settings.max_length
    tried = [
        variants((c for c in each if len(c.split()) + _LONGER <= longest), its) for each, its in zip(captions, facts)
    ]
    rows = [row for each in tried for row in (each[0] if each else [""] * 8)]
    vocabulary = model.vocabulary
    numbers = [[vocabulary.bos, *vocabulary.encode(row.split()), vocabulary.eos] for row in rows]
    longest = max(map(len, numbers))
    tokens = torch.tensor([row + [vocabulary.pad] * (longest - len(row)) for row in numbers], device=model.device)
    log_probs = model.log_probs(images, tokens[:, :-1])
    words = log_probs.gather(2, tokens[:, 1:, None]).squeeze(2)
    lengths = torch.tensor([len(row) - 1 for row in numbers], device=model.device)
    real = real_words(lengths, longest - 1)
    total: Tensor = words.masked_fill(~real, 0).sum(1).view(-1, 4, 2).logsumexp(2)
    chosen = total.argmax(1).tolist()
    return [None if each is None else place == each[1] for each, place in zip(tried, chosen)]


def _like(phrase: str, facts: Facts) -> list[int]:
    said = phrase.split()

    def pick(words: Iterable[str]) -> str | None:
        return next((word for word in said if word in words), None)

    return facts.like((pick(SIZES), pick(COLOURS), pick(TEXTURES), pick(SHAPES)))
