"""A stream of whole-number draws that is the same on every machine and with every version of numpy.

numpy guarantees the raw stream of a bit generator, not that of its distributions; so everything random in
Scenes is made here from raw 64-bit words with whole-number arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

_BLOCK = 96


class Dice:
    """Draws keyed by whole numbers ≥ 0: the same ``key`` gives the same draws, another key unrelated ones."""

    def __init__(self, *key: int) -> None:
        self._source = np.random.PCG64(np.random.SeedSequence(key))
        self._words: list[int] = []

    def below(self, n: int) -> int:
        """A whole number of 0 … n − 1, all equally likely (to within 2⁻⁵⁰)."""
        if not self._words:
            self._words = self._source.random_raw(_BLOCK).tolist()
        return self._words.pop() % n

    def between(self, low: int, high: int) -> int:
        """A whole number of ``low`` … ``high``, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        """True in ``percent`` of a hundred cases."""
        return self.below(100) < percent

    def choose(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.below(len(options))]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """All options in random order."""
        left = list(options)
        for last in range(len(left) - 1, 0, -1):
            other = self.below(last + 1)
            left[last], left[other] = left[other], left[last]
        return left

    def bytes(self, *shape: int) -> np.ndarray:
        """Uniform bytes, uint8 of the given shape, whatever the machine's byte order."""
        count = int(np.prod(shape))
        words = self._source.random_raw(-(-count // 8)).astype("<u8")
        return words.view(np.uint8)[:count].reshape(shape)
