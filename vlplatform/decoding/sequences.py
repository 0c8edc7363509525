"""What a search found, as tensors and as lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlplatform.decoding.protocol import Hypothesis


@dataclass(frozen=True)
class Sequences:
    """n hypotheses for each of I items, best first, of at most T tokens.

    Attributes:
        tokens: (I, n, T) long; padding behind the end.
        log_probs: (I, n, T), each token's, penalties of the search included; 0 behind the end. Carries gradients if the
            step's log-probabilities did.
        lengths: (I, n) long, tokens up to the end, which is included.
        scores: (I, n), what the search ranked by; −∞ where there is no such hypothesis.
    """

    tokens: Tensor
    log_probs: Tensor
    lengths: Tensor
    scores: Tensor

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Per item its hypotheses, best first; fewer than n where there were no more."""
        tokens, log_probs = self.tokens.tolist(), self.log_probs.tolist()
        lengths, scores = self.lengths.tolist(), self.scores.tolist()
        return [
            [
                Hypothesis(words[:length], values[:length], score)
                for words, values, length, score in zip(*item)
                if score != -torch.inf
            ]
            for item in zip(tokens, log_probs, lengths, scores)
        ]

    def items(self, index: Tensor) -> Sequences:
        """Some of the items."""
        return Sequences(self.tokens[index], self.log_probs[index], self.lengths[index], self.scores[index])

    def best(self, count: int) -> Sequences:
        """The best ``count`` of each item, in order."""
        if count == 1:  # the only one, in no need of sorting
            scores, place = self.scores.max(1, keepdim=True)
        else:
            scores, place = self.scores.topk(count, dim=1)
        wide = place[..., None].expand(-1, -1, self.tokens.shape[2])
        return Sequences(
            self.tokens.gather(1, wide), self.log_probs.gather(1, wide), self.lengths.gather(1, place), scores
        )


def beside(parts: Sequence[Sequences]) -> Sequences:
    """The hypotheses of several searches over the same items."""
    return _joined(parts, 1)


def behind(parts: Sequence[Sequences], items: Sequence[Tensor]) -> Sequences:
    """Parts that hold different items, in the order of the items' numbers, ``items`` (part's items,) for each part."""
    return _joined(parts, 0).items(torch.cat(list(items)).argsort())


def _joined(parts: Sequence[Sequences], axis: int) -> Sequences:
    if len(parts) == 1:
        return parts[0]
    names = ("tokens", "log_probs", "lengths", "scores")
    return Sequences(*(torch.cat([getattr(part, name) for part in parts], axis) for name in names))
