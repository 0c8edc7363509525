"""N-grams of integer sequences as numbers, counted without a Python loop over them.

An n-gram is the pair (number of its first n − 1 tokens, last token), packed into one int64 key; its own number is the
key's place in a sorted table. So no vocabulary is too large for n = 4, and looking up is a binary search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_HALF = 31  # bits of the last token in a key; the number before it takes the rest


@dataclass(frozen=True)
class Counts:
    """The distinct n-grams of some sequences, ordered by sequence, then by number.

    Attributes:
        sequence: (E,) which sequence.
        gram: (E,) number of the n-gram; from `NgramTable.size` on: n-grams the table does not have.
        order: (E,) n − 1, in 0 … N − 1.
        times: (E,) how often it occurs in the sequence.
        lengths: (S,) tokens of each sequence.
    """

    sequence: Ints
    gram: Ints
    order: Ints
    times: Ints
    lengths: Ints


class NgramTable:
    """Numbers for the n-grams (n = 1 … ``n``) of given sequences of integers.

    Attributes:
        size: Number of distinct n-grams of all orders; those of order n come before those of order n + 1.

    Args:
        sequences: Sequences of integers in 0 … 2³¹ − 1.
        n: The longest n-grams.

    Raises:
        ValueError: A token outside 0 … 2³¹ − 1.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], n: int = 4) -> None:
        tokens, lengths = _flat(sequences)
        self.n, self._keys = n, list[Ints]()
        starts = [0]
        prefix = np.zeros_like(tokens)
        for order in range(n):
            places = _places(lengths, order)
            keys = (prefix[places] << _HALF) | tokens[places + order]
            table, number = np.unique(keys, return_inverse=True)
            self._keys.append(table)
            starts.append(starts[-1] + len(table))
            prefix[places] = number
        self._starts, self.size = starts[:-1], starts[-1]

    def count(self, sequences: Sequence[Sequence[int]]) -> Counts:
        """The n-grams of other sequences; unknown ones get numbers from ``size`` on, equal ones the same."""
        tokens, lengths = _flat(sequences)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        prefix, grams, owners, orders, unknown = np.zeros_like(tokens), [], [], [], self.size
        for order, (start, table) in enumerate(zip(self._starts, self._keys)):
            places = _places(lengths, order)
            keys = (prefix[places] << _HALF) | tokens[places + order]
            distinct, place = np.unique(keys, return_inverse=True)
            number = np.searchsorted(table, distinct)[place]  # in ascending order: each search starts near the last
            new = number == len(table)
            new[~new] = table[number[~new]] != keys[~new]
            gram = number + start
            if new.any():
                distinct, place = np.unique(keys[new], return_inverse=True)
                number[new] = len(table) + place
                gram[new] = unknown + place
                unknown += len(distinct)
            prefix[places] = number
            grams.append(gram)
            owners.append(owner[places])
            orders.append(np.full(len(places), order))
        gram, order = np.concatenate(grams), np.concatenate(orders)
        keys = np.concatenate(owners) * unknown + gram
        keys, first, times = np.unique(keys, return_index=True, return_counts=True)
        return Counts(keys // max(unknown, 1), gram[first], order[first], times, lengths)


def _flat(sequences: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """All tokens in one row, and each sequence's length."""
    lengths = np.fromiter((len(s) for s in sequences), np.int64, len(sequences))
    tokens = np.fromiter(chain.from_iterable(sequences), np.int64, int(lengths.sum()))
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < 1 << _HALF:
        raise ValueError(f"tokens must be in 0 … 2³¹ − 1, not {tokens.min()} … {tokens.max()}")
    return tokens, lengths


def _places(lengths: Ints, order: int) -> Ints:
    """Where the n-grams of n = ``order`` + 1 tokens begin in the row of all tokens."""
    ends = np.cumsum(lengths)
    whole = np.ones(int(ends[-1]) if len(ends) else 0, bool)
    for back in range(1, order + 1):
        whole[(ends - back)[lengths >= back]] = False
    return np.flatnonzero(whole)


def check_references(references: Sequence[Sequence[object]]) -> None:
    """Every image has a reference.

    Raises:
        ValueError: One has none.
    """
    if empty := [i for i, captions in enumerate(references) if not len(captions)]:
        raise ValueError(f"image {empty[0]} has no reference")


def check_images(images: Sequence[int], captions: Sequence[object], known: int) -> None:
    """One of the ``known`` images for every caption.

    Raises:
        ValueError: More or fewer, or an image that does not exist.
    """
    if len(images) != len(captions):
        raise ValueError(f"{len(images)} images for {len(captions)} captions: give one for each caption")
    if len(images) and not 0 <= min(images) <= max(images) < known:
        raise ValueError(f"images {min(images)} … {max(images)}, but there are {known}")
