"""What there can be in a scene, and where it stands: classes, words, settings, and the seeded layout.

A scene is one or two textured grounds under overlapping shapes. Any shape and any ground may have any colour,
and a shape's own pattern may resemble a ground, so neither colour nor texture alone tells the class of a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlplatform.data.scenes.dice import Dice

GROUNDS: tuple[str, ...] = ("waves", "tiles", "sand")
SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "star", "ring", "cross")
CLASSES: tuple[str, ...] = GROUNDS + SHAPES
"""The classes of the label map, by label."""

PALETTE: tuple[tuple[int, int, int], ...] = (
    (158, 188, 218),
    (200, 200, 200),
    (226, 211, 166),
    (228, 26, 28),
    (55, 126, 184),
    (77, 175, 74),
    (255, 200, 30),
    (152, 78, 163),
    (247, 129, 191),
)
"""A colour (RGB, 0–255) per class for drawing label maps; the pictures' own colours are :data:`COLOURS`."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (205, 45, 50),
    "orange": (240, 135, 35),
    "yellow": (243, 212, 60),
    "green": (60, 160, 80),
    "blue": (50, 100, 200),
    "purple": (140, 75, 175),
    "white": (238, 238, 232),
    "black": (48, 48, 56),
}
"""The shapes' colours (RGB, 0–255) by name."""

TEXTURES: tuple[str, ...] = ("plain", "striped", "dotted")
SIZES: tuple[str, ...] = ("small", "large")

TONES: tuple[tuple[int, int, int], ...] = (
    (92, 140, 178),
    (196, 176, 132),
    (120, 156, 112),
    (176, 124, 116),
    (150, 134, 176),
    (146, 150, 152),
    (208, 200, 184),
    (84, 96, 112),
)
"""The grounds' middle colours (RGB, 0–255), paler than the shapes'."""

WORLD, RENDER, FEATURES, CAPTIONS, QUESTIONS, EXPRESSIONS, TRANSLATION = range(7)
"""Streams of a scene's draws: a change in one annotation leaves the others as they were."""

# Thin shapes are drawn larger, so that every class covers a fair share of the pixels; in 1/100 of the radius.
_STRETCH = {"circle": 92, "square": 110, "triangle": 122, "star": 138, "ring": 106, "cross": 116}
_TRIES = 120


@dataclass(frozen=True)
class ScenesSettings:
    """Settings of the Scenes data; every field is part of the cache's key.

    Attributes:
        size: Height and width of the pictures in pixels, 48–512.
        train: Scenes in the training split.
        val: Scenes in the validation split.
        test: Scenes in the test split.
        seed: Seed of the world, ≥ 0; no two seeds and no two splits share a scene.
        max_objects: Most shapes in a scene, 3–8; the fewest is 3.
        noise: Strength of the pixel noise: its largest value, in grey levels, 0–64.
        feature_dim: Length of a shape's feature vector.
        feature_noise: Strength of the feature noise, in per cent of the signal's.
    """

    size: int = 96
    train: int = 4000
    val: int = 400
    test: int = 400
    seed: int = 0
    max_objects: int = 6
    noise: int = 16
    feature_dim: int = 64
    feature_noise: int = 60

    def __post_init__(self) -> None:
        ranges = {
            "size": (48, 512),
            "train": (1, 10**7),
            "val": (1, 10**7),
            "test": (1, 10**7),
            "seed": (0, 2**31),
            "max_objects": (3, 8),
            "noise": (0, 64),
            "feature_dim": (8, 4096),
            "feature_noise": (0, 1000),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}={value} is outside {low} to {high}; choose a value in that range")


@dataclass(frozen=True)
class Thing:
    """One shape of a scene.

    Attributes:
        shape: One of :data:`SHAPES`.
        colour: One of :data:`COLOURS`.
        texture: One of :data:`TEXTURES`.
        size: One of :data:`SIZES`; every large shape has a larger ``radius`` than every small one.
        radius: Nominal radius in pixels.
        extent: Radius of the circle that holds it, in pixels.
        turn: Rotation in steps of 15°, -1 to 1: things stand upright, more or less.
        x: Column of its middle pixel.
        y: Row of its middle pixel.
    """

    shape: str
    colour: str
    texture: str
    size: str
    radius: int
    extent: int
    turn: int
    x: int
    y: int

    @property
    def words(self) -> tuple[str, ...]:
        """Its attribute words in the order of speech: size, colour, texture (unless plain), shape."""
        pattern = () if self.texture == "plain" else (self.texture,)
        return (self.size, self.colour, *pattern, self.shape)


@dataclass(frozen=True)
class Layout:
    """What stands where: the grounds (one, or two that share the picture) and the things, back to front."""

    grounds: tuple[str, ...]
    things: tuple[Thing, ...]


def layout(seed: int, index: int, settings: ScenesSettings) -> Layout:
    """The layout of scene ``index``: the same for the same seed, index and settings, everywhere."""
    dice = Dice(seed, index, WORLD)
    grounds = tuple(dice.shuffled(GROUNDS)[: 2 if dice.chance(60) else 1])
    while True:
        things: list[Thing] = []
        for _ in range(dice.between(3, settings.max_objects)):
            thing = _place(dice, things, settings.size)
            if thing is not None:
                things.append(thing)
        if len(things) >= 3:  # else there was no room: start anew
            return Layout(grounds, tuple(things))


def radii(size: str, picture: int) -> tuple[int, int]:
    """The least and the greatest nominal radius of a ``size`` word in a picture of so many pixels."""
    low, high = (12, 14) if size == "small" else (18, 22)
    return low * picture // 96, high * picture // 96


def _place(dice: Dice, placed: list[Thing], picture: int) -> Thing | None:
    """A further thing, or None when there is no room.

    Things may overlap, but none is hidden for the most part; and no two agree in shape, size and texture, so
    that each can be told by its looks, even without its colour.
    """
    shape, colour = dice.choose(SHAPES), dice.choose(tuple(COLOURS))
    if placed and dice.chance(55):  # a look-alike, so that pointing a thing out takes more than its own looks
        twin = dice.choose(placed)
        if sum(t.shape == twin.shape for t in placed) < 3:
            shape, colour = twin.shape, twin.colour if dice.chance(60) else colour
    for _ in range(_TRIES):
        texture = "plain" if dice.chance(50) else dice.choose(TEXTURES[1:])
        size = dice.choose(SIZES)
        if any((t.shape, t.size, t.texture) == (shape, size, texture) for t in placed):
            continue
        radius = dice.between(*radii(size, picture))
        extent = radius * _STRETCH[shape] // 100
        x, y = (dice.between(extent + 1, picture - extent - 2) for _ in range(2))
        if all(
            16 * ((x - t.x) ** 2 + (y - t.y) ** 2) >= 9 * (extent + t.extent) ** 2  # three quarters apart
            for t in placed
        ):
            return Thing(shape, colour, texture, size, radius, extent, dice.between(-1, 1), x, y)
    return None
