"""BLEU-1 … 4 as in the COCO evaluation, one n-gram after the other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

Caption = Sequence[Hashable]


def statistics(caption: Caption, references: Sequence[Caption], order: int) -> tuple[int, int]:
    """Clipped matches and n-grams of one order."""

    def grams(text: Caption) -> Counter:
        return Counter(tuple(text[i : i + order]) for i in range(len(text) - order + 1))

    most = {g: max(grams(r)[g] for r in references) for g in grams(caption)}
    return sum(min(times, most[g]) for g, times in grams(caption).items()), max(0, len(caption) - order + 1)


def closest(caption: Caption, references: Sequence[Caption]) -> int:
    """The reference length nearest to the caption's, of two equally near the shorter."""
    return sorted((len(r) for r in references), key=lambda length: (abs(length - len(caption)), length))[0]


def bleu(captions: Sequence[Caption], references: Sequence[Sequence[Caption]]) -> list[float]:
    """BLEU-1 … 4 of all captions together."""
    scores, product = [], 1.0
    mine = sum(map(len, captions))
    theirs = sum(closest(c, r) for c, r in zip(captions, references))
    ratio = (mine + 1e-15) / (theirs + 1e-9)
    for order in (1, 2, 3, 4):
        counts = [statistics(c, r, order) for c, r in zip(captions, references)]
        product *= (sum(right for right, _ in counts) + 1e-15) / (sum(all_ for _, all_ in counts) + 1e-9)
        scores.append(product ** (1 / order) * (math.exp(1 - 1 / ratio) if ratio < 1 else 1.0))
    return scores
