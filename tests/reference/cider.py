"""CIDEr-D and plain CIDEr as the formulas say, one n-gram after the other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

Caption = Sequence[int]


def ngrams(caption: Caption, n: int = 4) -> Counter:
    """How often each n-gram of 1 … n tokens occurs."""
    return Counter(tuple(caption[i : i + k]) for k in range(1, n + 1) for i in range(len(caption) - k + 1))


def frequencies(documents: Sequence[Sequence[Caption]], n: int = 4) -> Counter:
    """In how many documents (each some captions) every n-gram occurs."""
    return Counter(gram for captions in documents for gram in {g for caption in captions for g in ngrams(caption, n)})


def vector(caption: Caption, df: Counter, documents: float, order: int) -> dict[tuple[int, ...], float]:
    """Tf-idf of the n-grams of one order."""
    found = {g: times for g, times in ngrams(caption).items() if len(g) == order}
    return {g: times * (math.log(documents) - math.log(max(1.0, df[g]))) for g, times in found.items()}


def similarity(caption: Caption, reference: Caption, df: Counter, documents: float, sigma: float | None) -> float:
    """Mean over the orders 1 … 4; with a sigma clipped and with the length penalty (CIDEr-D)."""
    total = 0.0
    for order in (1, 2, 3, 4):
        mine, theirs = (vector(each, df, documents, order) for each in (caption, reference))
        shared = [(mine[g], theirs[g]) for g in mine if g in theirs]
        dot = sum(min(m, t) * t if sigma else m * t for m, t in shared)
        norm = math.sqrt(sum(w * w for w in mine.values())) * math.sqrt(sum(w * w for w in theirs.values()))
        total += dot / norm if norm else 0.0
    bigrams = [max(0, len(each) - 1) for each in (caption, reference)]
    penalty = math.exp(-((bigrams[0] - bigrams[1]) ** 2) / (2 * sigma**2)) if sigma else 1.0
    return penalty * total / 4


def score(
    caption: Caption, references: Sequence[Caption], df: Counter, documents: float, sigma: float | None = 6.0
) -> float:
    """Of one caption against the references of its image, ×10."""
    return 10 * sum(similarity(caption, r, df, documents, sigma) for r in references) / len(references)
