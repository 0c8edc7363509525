"""One whole scene: the picture with all its annotations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vlplatform.data.scenes.captions import captions
from vlplatform.data.scenes.dice import Dice
from vlplatform.data.scenes.expressions import Expression, expressions
from vlplatform.data.scenes.features import features
from vlplatform.data.scenes.questions import Question, questions
from vlplatform.data.scenes.relations import Facts
from vlplatform.data.scenes.render import Box, render
from vlplatform.data.scenes.translation import sentence_pairs
from vlplatform.data.scenes.world import (
    CAPTIONS,
    EXPRESSIONS,
    QUESTIONS,
    RENDER,
    TRANSLATION,
    ScenesSettings,
    Thing,
    layout,
)


@dataclass(frozen=True)
class Scene:
    """A scene with everything that is known of it; N things, numbered back to front.

    Attributes:
        id: ``<seed>-<index>``.
        image: RGB, (H, W, 3) uint8.
        labels: Class of each pixel, (H, W) uint8, an index into ``CLASSES``.
        instances: 0 for ground, k + 1 where thing k is seen, (H, W) uint8.
        grounds: The one or two grounds.
        things: The shapes with their attribute words.
        boxes: Per thing, the box of its visible pixels (left, top, right, bottom; right and bottom exclusive).
        features: Noisy vectors of the things' looks, without their places, (N, D) float32.
        captions: Five sentences.
        questions: One of each kind, with ten answers.
        expressions: At most one per thing, each fitting that thing alone.
        pairs: Three (Vela, Toru) sentences.
    """

    id: str
    image: np.ndarray
    labels: np.ndarray
    instances: np.ndarray
    grounds: tuple[str, ...]
    things: tuple[Thing, ...]
    boxes: tuple[Box, ...]
    features: np.ndarray
    captions: tuple[str, ...]
    questions: tuple[Question, ...]
    expressions: tuple[Expression, ...]
    pairs: tuple[tuple[str, str], ...]

    def mask(self, thing: int) -> np.ndarray:
        """The visible pixels of a thing, (H, W) bool."""
        return self.instances == thing + 1


def scene(seed: int, index: int, settings: ScenesSettings | None = None) -> Scene:
    """Scene ``index`` of world ``seed``: the same everywhere for the same arguments (``settings.seed`` plays no part).

    Args:
        seed: Whole number ≥ 0; the splits' own are ``dataset.split_seed``.
        index: Whole number ≥ 0.
        settings: The defaults if None.
    """
    settings = settings or ScenesSettings()
    where = layout(seed, index, settings)
    drawn = render(where, Dice(seed, index, RENDER), settings)
    facts = Facts.of(drawn)
    return Scene(
        id=f"{seed}-{index}",
        image=drawn.image,
        labels=drawn.labels,
        instances=drawn.instances,
        grounds=where.grounds,
        things=drawn.things,
        boxes=drawn.boxes,
        features=features(drawn.things, seed, index, settings),
        captions=captions(facts, where.grounds, Dice(seed, index, CAPTIONS)),
        questions=questions(facts, where.grounds, Dice(seed, index, QUESTIONS)),
        expressions=expressions(facts, Dice(seed, index, EXPRESSIONS)),
        pairs=sentence_pairs(facts, Dice(seed, index, TRANSLATION)),
    )
