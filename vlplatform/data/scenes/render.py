"""From a layout to pixels: the picture, its label map, its instance map and the boxes of what can be seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vlplatform.data.scenes import textures
from vlplatform.data.scenes.dice import Dice
from vlplatform.data.scenes.stamps import stamp
from vlplatform.data.scenes.world import (
    CLASSES,
    COLOURS,
    RENDER,
    TONES,
    Layout,
    ScenesSettings,
    Thing,
    layout,
)

Box = tuple[int, int, int, int]

_LABEL = {name: label for label, name in enumerate(CLASSES)}


@dataclass(frozen=True)
class Picture:
    """A rendered scene.

    Attributes:
        image: RGB, (H, W, 3) uint8.
        labels: Class of each pixel, (H, W) uint8, an index into :data:`~.world.CLASSES`.
        instances: 0 for ground, k + 1 where thing k is seen, (H, W) uint8.
        things: The shapes, back to front.
        boxes: Per thing, the box of its visible pixels: left, top, right, bottom in pixels, right and bottom
            exclusive.
    """

    image: np.ndarray
    labels: np.ndarray
    instances: np.ndarray
    things: tuple[Thing, ...]
    boxes: tuple[Box, ...]


def picture(seed: int, index: int, settings: ScenesSettings) -> Picture:
    """Scene ``index`` as pixels, without its texts: the cheap part, enough for segmentation."""
    return render(layout(seed, index, settings), Dice(seed, index, RENDER), settings)


def render(what: Layout, dice: Dice, settings: ScenesSettings) -> Picture:
    """Draw a layout; ``dice`` decides tones, patterns, light and noise."""
    size = settings.size
    canvas, labels = _ground(what.grounds, dice, size)
    instances = np.zeros((size, size), np.uint8)
    cast = dice.choose((1, 2)) * max(size // 96, 1)
    for number, thing in enumerate(what.things, 1):
        _paint(canvas, labels, instances, thing, number, cast, dice, size)
    canvas *= textures.light(dice.below(textures.STEPS), size)
    canvas >>= 6
    top, left = dice.below(size), dice.below(size)
    canvas += textures.noise(size, settings.noise)[:, top : top + size, left : left + size]
    image = np.ascontiguousarray(canvas.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))
    boxes = tuple(_box(instances, thing, number) for number, thing in enumerate(what.things, 1))
    return Picture(image, labels, instances, what.things, boxes)


def _window(table: np.ndarray, dice: Dice, side: int) -> np.ndarray:
    """A square window at a random place of a pattern."""
    top, left = dice.below(table.shape[0] - side + 1), dice.below(table.shape[1] - side + 1)
    return table[top : top + side, left : left + side]


def _ground(grounds: tuple[str, ...], dice: Dice, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The canvas (3, H, W) int16 with its one or two grounds, and their labels (H, W) uint8."""
    tones = dice.shuffled(TONES)
    layers = []
    for name, tone in zip(grounds, tones):
        figure = _window(textures.pattern(name, dice.below(textures.VARIANTS), size), dice, size)
        contrast = dice.between(20, 34)
        layers.append(((figure * contrast) >> 7) + np.array(tone, np.int16)[:, None, None])
    if len(grounds) == 1:
        return layers[0], np.full((size, size), _LABEL[grounds[0]], np.uint8)
    shift = dice.between(-16 * size // 5, 16 * size // 5)
    far = textures.shore(dice.below(textures.STEPS), size) > shift
    labels = np.where(far, np.uint8(_LABEL[grounds[1]]), np.uint8(_LABEL[grounds[0]]))
    return np.where(far, layers[1], layers[0]), labels


def _paint(
    canvas: np.ndarray,
    labels: np.ndarray,
    instances: np.ndarray,
    thing: Thing,
    number: int,
    cast: int,
    dice: Dice,
    size: int,
) -> None:
    """Draw one thing and its shadow over what is there; shadows fall on the picture, not on the labels."""
    form, side = stamp(thing.shape, thing.extent, thing.turn), 2 * thing.extent + 1
    top, left = thing.y - thing.extent, thing.x - thing.extent
    window = (slice(top, top + side), slice(left, left + side))
    below, right = min(top + cast + side, size), min(left + cast + side, size)
    shaded = canvas[:, top + cast : below, left + cast : right]
    shaded -= (shaded * (form.coverage[: below - top - cast, : right - left - cast] * 5 >> 4)) >> 6
    base = np.array(COLOURS[thing.colour], np.int16)[:, None, None]
    paint = base + form.shade
    if thing.texture != "plain":
        figure = _window(textures.pattern(thing.texture, dice.below(textures.VARIANTS), size), dice, side)
        towards = 255 if base.sum() < 420 else 0  # dark colours carry a light pattern, light ones a dark one
        paint = paint + ((((figure + 128) >> 2) * ((towards - base) >> 1)) >> 6)
    under = canvas[(slice(None), *window)]
    under += ((paint - under) * form.coverage) >> 6
    labels[window][form.mask] = _LABEL[thing.shape]
    instances[window][form.mask] = number


def _box(instances: np.ndarray, thing: Thing, number: int) -> Box:
    """The box of a thing's visible pixels."""
    top, left = thing.y - thing.extent, thing.x - thing.extent
    seen = instances[top : thing.y + thing.extent + 1, left : thing.x + thing.extent + 1] == number
    rows, columns = seen.any(axis=1).nonzero()[0], seen.any(axis=0).nonzero()[0]
    return left + int(columns[0]), top + int(rows[0]), left + int(columns[-1]) + 1, top + int(rows[-1]) + 1
