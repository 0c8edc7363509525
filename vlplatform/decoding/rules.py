"""Rules that change log-probabilities for the tokens chosen so far, and what is done to a finished sentence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class NoRepeat:
    """No n words in a row occur twice in a sentence (Paulus et al. 2018; ``no_repeat_ngram_size`` elsewhere).

    Args:
        n: Length of the n-grams; 1 lets no word occur twice.

    Raises:
        ValueError: ``n`` below 1.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"n={n} must be at least 1")
        self.n = n

    def __call__(self, log_probs: Tensor, tokens: Tensor) -> Tensor:
        """(R, V) with −∞ for words that would end an n-gram of tokens (R, t) again; changed in place."""
        made = tokens.shape[1]
        if made < self.n:
            return log_probs
        follow = tokens[:, self.n - 1 :]  # each after n − 1 others
        again = torch.ones_like(follow, dtype=torch.bool)
        if self.n > 1:
            before = tokens[:, :-1].unfold(1, self.n - 1, 1)
            again = (before == tokens[:, None, made - self.n + 1 :]).all(-1)
        lowered = torch.zeros(follow.shape, dtype=log_probs.dtype, device=log_probs.device)
        return log_probs.scatter_add_(1, follow, lowered.masked_fill(again, -torch.inf))


class Forbid:
    """Words that are not chosen directly after certain others, or never.

    For words that are never chosen, ``forbid`` among the search's settings is quicker.

    Args:
        words: Their numbers.
        after: Numbers of the words after which they are forbidden; none: everywhere.
    """

    def __init__(self, words: Sequence[int], *, after: Sequence[int] | None = None) -> None:
        self.words, self.after = list(words), None if after is None else list(after)

    def __call__(self, log_probs: Tensor, tokens: Tensor) -> Tensor:
        """(R, V) with −∞ for the words, given tokens (R, t); changed in place."""
        words = torch.tensor(self.words, dtype=torch.long, device=log_probs.device)
        if self.after is None:
            return log_probs.index_fill_(1, words, -torch.inf)
        if not tokens.shape[1]:
            return log_probs
        after = torch.tensor(self.after, dtype=torch.long, device=log_probs.device)
        here = torch.isin(tokens[:, -1], after)
        lowered = torch.zeros(len(tokens), dtype=log_probs.dtype, device=log_probs.device).masked_fill(here, -torch.inf)
        return log_probs.index_add_(1, words, lowered[:, None].expand(-1, len(words)))


def merged(words: Sequence[T]) -> list[T]:
    """The words, equal ones in a row merged into one, as MD-SAN's code does before scoring (not in its reward)."""
    return [word for word, _ in groupby(words)]
