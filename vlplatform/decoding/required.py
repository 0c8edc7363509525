"""Words that must appear: beam search in banks, one for each number of words that are in already.

Post & Vilar, "Fast Lexically Constrained Decoding with Dynamic Beam Allocation for Neural Machine Translation" (2018),
for single words. Banks take turns, the fullest first, each with its best candidate left: they get equal shares, and
what an empty bank leaves goes to the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vlplatform.errors import UserError


class Required:
    """The words that the hypotheses of each item must hold; a word given twice must appear twice.

    Args:
        words: Numbers of the words, per item; none for an item that is free.
        eos: Number of the end symbol, withheld until all words are in.
        length: Greatest length T of a hypothesis.
        device: Where the search runs.

    Raises:
        UserError: More words than a hypothesis has room for, the end symbol among them, or a negative number.
    """

    def __init__(self, words: Sequence[Sequence[int]], eos: int, length: int, device: torch.device) -> None:
        counts = [Counter(of_item) for of_item in words]
        for i, of_item in enumerate(counts):
            if eos in of_item:
                raise UserError(f"the words required of item {i} hold the end symbol ({eos}): leave it out.")
            if min(of_item, default=0) < 0:
                raise UserError(f"the words required of item {i} hold {min(of_item)}: words have numbers from 0.")
            if sum(of_item.values()) > length - 1:
                raise UserError(
                    f"item {i} requires {sum(of_item.values())} words, but max_length={length} has room for "
                    f"{length - 1} and the end: raise it, or require fewer."
                )
        width = max((len(of_item) for of_item in counts), default=0)
        self.highest = max((word for of_item in counts for word in of_item), default=0)
        self.eos, self.banks = eos, 1 + max((sum(of_item.values()) for of_item in counts), default=0)
        self.words = torch.full((len(words), width), -1, device=device)  # (I, D); −1 is no word
        self.times = torch.zeros_like(self.words)  # how often each must appear
        for i, of_item in enumerate(counts):
            self.words[i, : len(of_item)] = torch.tensor(list(of_item), dtype=torch.long)
            self.times[i, : len(of_item)] = torch.tensor(list(of_item.values()), dtype=torch.long)

    def add(self, values: Tensor, words: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """The candidates (I, rows, k) and, behind them, the required words (I, rows, k + D).

        Args:
            values: Log-probabilities of the candidates.
            words: Which they are.
            log_probs: (I · rows, V) of all words.

        Raises:
            UserError: A required word that is not among the V.
        """
        if self.highest >= log_probs.shape[1]:
            raise UserError(f"word {self.highest} is required, but the decoder has {log_probs.shape[1]}, from 0 on.")
        own = self.words[:, None].expand(-1, values.shape[1], -1)
        extra = log_probs.unflatten(0, values.shape[:2]).gather(2, own.clamp_min(0)).to(values.dtype)
        twice = (own[..., None] == words[..., None, :]).any(-1)
        extra = extra.masked_fill(twice | (own < 0), -torch.inf)
        return torch.cat((values, extra), 2), torch.cat((words, own.clamp_min(0)), 2)

    def order(self, totals: Tensor, words: Tensor, tokens: Tensor, count: int) -> Tensor:
        """Places (I, ≤ count) of the candidates (I, rows, k) in the order in which the banks choose them.

        Args:
            totals: Sums of log-probabilities.
            words: Which candidates they are.
            tokens: (I, rows, T) so far.
            count: How many are chosen.
        """
        had = self._had(tokens)  # (I, rows, D)
        fresh = (words[..., None] == self.words[:, None, None]) & (had < self.times[:, None])[:, :, None]
        bank = (had.sum(-1)[..., None] + fresh.any(-1)).flatten(1)  # (I, n)
        banned = (words == self.eos) & ~self._all(had)[..., None]
        totals = totals.masked_fill(banned, -torch.inf).flatten(1)
        down = totals.argsort(1, descending=True)
        member = F.one_hot(bank.gather(1, down), self.banks)
        turn = (member.cumsum(1) * member).sum(-1)  # 1 for the best of each bank
        key = turn * self.banks - bank.gather(1, down)
        key = key.masked_fill(totals.gather(1, down) == -torch.inf, torch.iinfo(key.dtype).max)
        chosen = key.topk(min(count, key.shape[1]), largest=False)[1]
        return down.gather(1, chosen)

    def withheld(self, totals: Tensor, words: Tensor, parent: Tensor, tokens: Tensor) -> Tensor:
        """Totals (I, n) with −∞ where the end would come before all words are in."""
        whole = self._all(self._had(tokens)).gather(1, parent)
        return totals.masked_fill((words == self.eos) & ~whole, -torch.inf)

    def keep(self, items: Tensor) -> None:
        """Leave all items but these."""
        self.words, self.times = self.words[items], self.times[items]

    def _had(self, tokens: Tensor) -> Tensor:
        """How many of the times that each word must appear it has, (I, rows, D)."""
        found = (tokens[..., None] == self.words[:, None, None]).sum(2)
        return torch.minimum(found, self.times[:, None])

    def _all(self, had: Tensor) -> Tensor:
        return had.sum(-1) == self.times.sum(1, keepdim=True)
