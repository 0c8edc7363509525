"""ROUGE-L as in the COCO caption evaluation: F of the best precision and the best recall, β = 1.2.

ROUGE: https://aclanthology.org/W04-1013. Equal to pycocoevalcap's `Rouge`, which takes the maximum over references of
precision and recall separately and counts an empty caption as one empty token.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vlplatform.metrics.ngrams import check_images, check_references

BETA = 1.2
_EMPTY = ("",)


class RougeL:
    """Captions against the references of their images.

    Args:
        references: Per image its reference captions as tokens, one at least.

    Raises:
        ValueError: An image without references.
    """

    def __init__(self, references: Sequence[Sequence[Sequence[Hashable]]]) -> None:
        check_references(references)
        self._references = references
        self._places = lru_cache(4096)(self._find_places)  # all of a large training set would take gigabytes

    def scores(self, images: Sequence[int], captions: Sequence[Sequence[Hashable]]) -> NDArray[np.float64]:
        """ROUGE-L of each caption, (captions,); the corpus score is their mean.

        Args:
            images: For each caption the place of its image in the references; images may repeat.
            captions: Tokens.

        Raises:
            ValueError: An image that does not exist, or not one image per caption.
        """
        check_images(images, captions, len(self._references))
        return np.array([self._score(image, caption or _EMPTY) for image, caption in zip(images, captions)])

    def _find_places(self, image: int) -> list[tuple[dict[Hashable, int], int]]:
        return [_places(caption if len(caption) else _EMPTY) for caption in self._references[image]]

    def _score(self, image: int, caption: Sequence[Hashable]) -> float:
        common = [(_common(caption, places, length), length) for places, length in self._places(image)]
        precision = max(shared for shared, _ in common) / len(caption)
        recall = max(shared / length for shared, length in common)
        if not precision:
            return 0.0
        return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def _places(caption: Sequence[Hashable]) -> tuple[dict[Hashable, int], int]:
    """For each word the bits of its places, and the length."""
    places: dict[Hashable, int] = {}
    for i, word in enumerate(caption):
        places[word] = places.get(word, 0) | 1 << i
    return places, len(caption)


def _common(caption: Sequence[Hashable], places: dict[Hashable, int], length: int) -> int:
    """Length of the longest common subsequence, a whole row of the table at a time in the bits of an integer.

    The bit-parallel recurrence of Crochemore, Iliopoulos, Pinzon and Reid (2001).
    """
    every = row = (1 << length) - 1
    for word in caption:
        hit = row & places.get(word, 0)
        row = ((row + hit) | (row - hit)) & every
    return length - row.bit_count()
