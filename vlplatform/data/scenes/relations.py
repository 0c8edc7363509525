"""What is true of a scene: relations between its things, decided from their visible boxes alone.

Every relation answers True when it clearly holds, False when it clearly does not, and None in between; texts are
made from clear cases only, so that an annotation is never a matter of taste. Whole-number arithmetic throughout.
Coordinates are doubled centres (left + right, top + bottom), so that they stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vlplatform.data.scenes.render import Box, Picture
from vlplatform.data.scenes.world import Thing

Look = tuple[str | None, str | None, str | None, str | None]
"""A description by looks: size, colour, texture, shape; None where it is left unsaid."""

RELATIONS: tuple[str, ...] = ("left of", "right of", "above", "below", "larger than", "smaller than")
PLACES: tuple[str, ...] = RELATIONS[:4]


class Facts:
    """The things of a picture and what can be said about them.

    Things are numbers 0 … n − 1, back to front.
    """

    @classmethod
    def of(cls, picture: Picture) -> Facts:
        """Of a picture."""
        return cls(picture.things, picture.boxes, picture.image.shape[0])

    def __init__(self, things: Sequence[Thing], boxes: Sequence[Box], size: int) -> None:
        """Of things with their visible boxes in a picture of ``size`` × ``size`` pixels."""
        self.things = things
        self.numbers = range(len(things))
        self.x = [left + right for left, _, right, _ in boxes]
        self.y = [top + bottom for _, top, _, bottom in boxes]
        self.area = [(right - left) * (bottom - top) for left, top, right, bottom in boxes]
        self._margin = size // 8  # of doubled centres: a sixteenth of the picture

    def holds(self, relation: str, a: int, b: int) -> bool | None:
        """Whether thing ``a`` stands in one of :data:`RELATIONS` to thing ``b``."""
        if relation == "larger than":
            return self._larger(a, b)
        if relation == "smaller than":
            return self._larger(b, a)
        dx, dy = self.x[b] - self.x[a], self.y[b] - self.y[a]
        ahead, aside = {
            "left of": (dx, dy),
            "right of": (-dx, dy),
            "above": (dy, dx),
            "below": (-dy, dx),
        }[relation]
        if ahead <= 0 or 3 * ahead <= abs(aside):
            return False
        return True if ahead >= self._margin and ahead >= abs(aside) else None

    def _larger(self, a: int, b: int) -> bool | None:
        """Box area at least 1.3 times the other's; clearly not when it is at most 1 / 1.1 of it."""
        if 10 * self.area[a] >= 13 * self.area[b]:
            return True
        return False if 11 * self.area[a] <= 10 * self.area[b] else None

    def nearest(self, anchor: int, among: Iterable[int]) -> int | None:
        """The one of ``among`` nearest to ``anchor``; None unless the next is at least 1.25 times as far."""
        ranked = sorted((self._apart(anchor, k), k) for k in among if k != anchor)
        if not ranked or (len(ranked) > 1 and 16 * ranked[1][0] < 25 * ranked[0][0]):
            return None
        return ranked[0][1]

    def between(self, middle: int, a: int, b: int) -> bool | None:
        """Whether ``middle`` lies between two things: in the middle half of the way, near the straight line."""
        wx, wy = self.x[b] - self.x[a], self.y[b] - self.y[a]
        mx, my = self.x[middle] - self.x[a], self.y[middle] - self.y[a]
        whole, along, across = wx * wx + wy * wy, mx * wx + my * wy, abs(mx * wy - my * wx)
        if 4 * along >= whole and 4 * along <= 3 * whole and 5 * across <= whole:
            return True
        outside = 20 * along <= whole or 20 * along >= 19 * whole or 5 * across >= 2 * whole
        return False if outside else None

    def extreme(self, word: str, among: list[int]) -> int | None:
        """The ``leftmost``, ``rightmost``, ``topmost``, ``bottommost``, ``largest`` or ``smallest`` of some things.

        None unless it is so by a clear margin, or when there is but one.
        """
        values = {
            "leftmost": self.x,
            "rightmost": [-v for v in self.x],
            "topmost": self.y,
            "bottommost": [-v for v in self.y],
            "largest": [-v for v in self.area],
            "smallest": self.area,
        }[word]
        if len(among) < 2:
            return None
        first, second = sorted(among, key=values.__getitem__)[:2]
        if word in ("largest", "smallest"):
            small, big = sorted((self.area[first], self.area[second]))
            return first if 10 * big >= 13 * small else None
        return first if values[second] - values[first] >= self._margin else None

    def like(self, look: Look) -> list[int]:
        """The things that a description by looks fits."""
        size, colour, texture, shape = look
        return [
            k
            for k, t in enumerate(self.things)
            if (shape is None or t.shape == shape)
            and (colour is None or t.colour == colour)
            and (size is None or t.size == size)
            and (texture is None or t.texture == texture)
        ]

    def name(self, thing: int, without: str = "") -> Look:
        """The shortest description by looks that fits this thing alone.

        ``without`` leaves one attribute unsaid: ``colour`` or ``texture``. Without the texture the description
        may fit other things too.
        """
        t = self.things[thing]
        look: Look = (None, None, None, t.shape)
        for size, colour, texture in _SAID:
            look = (
                t.size if size else None,
                t.colour if colour and without != "colour" else None,
                t.texture if texture and without != "texture" else None,
                t.shape,
            )
            if self.like(look) == [thing]:
                break
        return look

    def _apart(self, a: int, b: int) -> int:
        return (self.x[a] - self.x[b]) ** 2 + (self.y[a] - self.y[b]) ** 2


_SAID = (
    (False, False, False),
    (False, True, False),
    (True, False, False),
    (False, False, True),
    (True, True, False),
    (False, True, True),
    (True, False, True),
    (True, True, True),
)


def noun(look: Look) -> str:
    """A description in words, without an article: ``small red striped star``; ``shape`` where none is said."""
    return " ".join(word for word in (*look[:3], look[3] or "shape") if word)


def article(words: str) -> str:
    """The words with ``a`` or ``an`` before them."""
    return ("an " if words[0] in "aeiou" else "a ") + words


def plural(shape: str) -> str:
    """``crosses``, ``squares``."""
    return shape + ("es" if shape.endswith("s") else "s")
