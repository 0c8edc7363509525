"""How well words are found: average precision of a word over pictures, precision and recall of a picture's words."""

from __future__ import annotations

import torch
from torch import Tensor


def average_precision(probabilities: Tensor, present: Tensor) -> Tensor:
    """Average precision of each word, (K,) in 0 … 1, NaN for words that no picture has.

    Pictures are ranked by the word's probability; the precision at each picture that has the word is averaged (Fang et
    al. 2015, §3.2). Pictures of equal probability share a rank, the last of them, so their order does not matter.

    Args:
        probabilities: (R, K), of R pictures.
        present: (R, K) booleans.
    """
    ranked, order = probabilities.sort(0, descending=True)
    hits = present.gather(0, order).double()
    rank = torch.arange(len(ranked), device=ranked.device)[:, None]
    last = torch.ones_like(ranked, dtype=torch.bool)  # of its equals
    last[:-1] = ranked[:-1] != ranked[1:]
    end = torch.where(last, rank, len(ranked)).flip(0).cummin(0).values.flip(0)
    precision = (hits.cumsum(0) / (rank + 1)).gather(0, end)
    return (hits * precision).sum(0) / hits.sum(0)


def found_of_surest(probabilities: Tensor, present: Tensor, count: int) -> tuple[float, float]:
    """Precision and recall of the ``count`` surest words of a picture, means over the pictures that have words.

    Args:
        probabilities: (R, K), of R pictures.
        present: (R, K) booleans.
        count: At most K words of each picture are taken.
    """
    some = present.any(1)
    probabilities, present = probabilities[some], present[some]
    surest = probabilities.topk(min(count, present.shape[1]), dim=1).indices
    right = present.gather(1, surest).double()
    return float(right.mean()), float((right.sum(1) / present.sum(1)).mean())
