"""BLEU-1 … 4 as in the COCO caption evaluation: clipped counts, closest reference length, nearly no smoothing.

BLEU: https://aclanthology.org/P02-1040. Equal to pycocoevalcap's `Bleu` to 1e-9, with its two tiny numbers against
divisions by zero, so that a caption of n words has a tiny BLEU-m for m > n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from vlplatform.metrics.ngrams import check_images, check_references

_TINY, _SMALL = 1e-15, 1e-9


class Bleu:
    """Captions against the references of their images; the n-grams of recently used references are kept.

    Args:
        references: Per image its reference captions as tokens, one at least.
        n: The longest n-grams.

    Raises:
        ValueError: An image without references.
    """

    def __init__(self, references: Sequence[Sequence[Sequence[Hashable]]], *, n: int = 4) -> None:
        check_references(references)
        self.n = n
        self._references = references
        self._lengths = [[len(caption) for caption in captions] for captions in references]
        self._most = lru_cache(4096)(self._count_most)  # all of a large training set would take gigabytes

    def scores(
        self, images: Sequence[int], captions: Sequence[Sequence[Hashable]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """BLEU-1 … n of all captions together, (n,), and of each on its own, (captions, n).

        Args:
            images: For each caption the place of its image in the references; images may repeat.
            captions: Tokens.

        Raises:
            ValueError: An image that does not exist, or not one image per caption.
        """
        counts = self.statistics(images, captions).astype(np.float64)
        return _bleu(counts.sum(0, keepdims=True))[0], _bleu(counts)

    def statistics(self, images: Sequence[int], captions: Sequence[Sequence[Hashable]]) -> NDArray[np.int64]:
        """What every BLEU is computed from: of a set of captions, from the sum of their rows.

        Arguments and errors as for :meth:`scores`.

        Returns:
            (captions, 2n + 2): clipped matches of each order, n-grams of each order, the caption's length, and the
            reference length closest to it, of two the shorter.
        """
        check_images(images, captions, len(self._references))
        rows = [self._row(image, caption) for image, caption in zip(images, captions)]
        return np.array(rows, np.int64).reshape(-1, 2 * self.n + 2)

    def _row(self, image: int, caption: Sequence[Hashable]) -> list[int]:
        right, most = [0] * self.n, self._most(image)
        for gram, times in self._count(caption).items():
            if gram in most:
                right[len(gram) - 1] += min(times, most[gram])
        length = len(caption)
        closest = min(self._lengths[image], key=lambda other: (abs(other - length), other))
        return [*right, *(max(0, length - k) for k in range(self.n)), length, closest]

    def _count_most(self, image: int) -> Counter:
        """For each n-gram the most often it occurs in one of the image's references."""
        most, *others = map(self._count, self._references[image])
        for counts in others:
            most |= counts
        return most

    def _count(self, caption: Sequence[Hashable]) -> Counter:
        tails = [caption[k:] for k in range(self.n)]
        return Counter(chain.from_iterable(zip(*tails[:k]) for k in range(1, self.n + 1)))


def _bleu(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rows, 2n + 2) counts → (rows, n)."""
    n = counts.shape[1] // 2 - 1
    right, given, (mine, theirs) = counts[:, :n], counts[:, n : 2 * n], counts[:, 2 * n :].T
    products = np.cumprod((right + _TINY) / (given + _SMALL), axis=1) ** (1 / np.arange(1, n + 1))
    ratio = (mine + _TINY) / (theirs + _SMALL)
    brevity = np.exp(np.minimum(0.0, 1 - 1 / ratio))
    return products * brevity[:, None]
