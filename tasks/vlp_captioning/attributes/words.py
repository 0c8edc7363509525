"""The words that a detector knows, and which of them pictures have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from vlplatform.errors import UserError


def frequent_words(captions: Iterable[Sequence[str]], count: int = 1000) -> tuple[str, ...]:
    """The words that occur most often, the most frequent first, equally frequent ones by the alphabet.

    Args:
        captions: Tokenised captions of the training split.
        count: At most so many.

    Raises:
        UserError: There are none.
    """
    counts = Counter(word for caption in captions for word in caption)
    if not counts:
        raise UserError("the training captions hold no words to detect: give captions with words.")
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:count])


def labels(captions: Iterable[Iterable[Sequence[str]]], words: Sequence[str]) -> Tensor:
    """Which words occur in the captions of each picture, (B, K) booleans.

    Args:
        captions: For each of B pictures its tokenised captions.
        words: The K words.
    """
    number = {word: k for k, word in enumerate(words)}
    said = [{word for caption in each for word in caption} for each in captions]
    present = torch.zeros(len(said), len(words), dtype=torch.bool)
    for row, spoken in zip(present, said):
        row[[number[word] for word in spoken if word in number]] = True
    return present


def detected(
    probabilities: Tensor, words: Sequence[str], *, most: int = 20, above: float = 0.0
) -> list[tuple[str, ...]]:
    """The words found in each picture, the surest first.

    Args:
        probabilities: (B, K).
        words: The K words.
        most: At most so many for each picture.
        above: Only words that are surer than this.
    """
    values, order = probabilities.topk(min(most, len(words)), dim=1)
    names = tuple(words)
    return [
        tuple(names[k] for k, p in zip(numbers, sure) if p > above)
        for numbers, sure in zip(order.tolist(), values.tolist())
    ]
