"""Attribute words detected in a picture without boxes: noisy-OR multiple-instance learning over a map's cells.

Fang et al., From captions to visual concepts and back, CVPR 2015, §3; for ETA: thesis §2.5.2 (the 1000 most frequent
words, a VGG-16 fine-tuned). A word is in the picture if it is in any cell:

    p(word) = 1 − ∏ over cells of (1 − p(word | cell)),   p(word | cell) = σ(w · map(cell) + b)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vlplatform.errors import UserError
from vlplatform.task import Loss


@dataclass(frozen=True)
class Absence:
    """How surely each word is in no cell.

    Attributes:
        log: log ∏ (1 − p(word | cell)), (B, K), at most 0.
        log_minus_log: log(−log ∏ …), (B, K): finite even where ``log`` rounds to 0.
    """

    log: Tensor
    log_minus_log: Tensor

    def log_presence(self) -> Tensor:
        """log(1 − ∏ …), (B, K), exact also for words that are all but certainly absent."""
        x = -self.log
        small = x < 1e-3
        # 1 − exp(−x) = x·(1 − x/2 + x²/6 − …); each branch gets only arguments it is finite for, gradients included.
        series = self.log_minus_log + torch.log1p(torch.where(small, x * (x / 6 - 0.5), 0.0))
        return torch.where(small, series, torch.log1p(-torch.exp(-torch.where(small, 1.0, x))))


class NoisyOr(nn.Module):
    """Maps (B, C, H, W) → probabilities (B, K) that each of K words is in the picture.

    Args:
        channels: C.
        words: K.
        prior: Probability of each word before training, in a map of ``cells`` cells; the bias begins there.
        cells: H · W of the maps that are expected; others work too.
    """

    def __init__(self, channels: int, words: int = 1000, *, prior: float = 0.01, cells: int = 49) -> None:
        super().__init__()
        if not 0 < prior < 1:
            raise ValueError(f"prior={prior} must lie between 0 and 1")
        self.cell = nn.Conv2d(channels, words, 1)
        nn.init.normal_(self.cell.weight, std=0.01)
        alone = -math.expm1(math.log1p(-prior) / cells)  # 1 − (1 − prior)^(1/cells)
        assert self.cell.bias is not None
        nn.init.constant_(self.cell.bias, math.log(alone) - math.log1p(-alone))

    def forward(self, maps: Tensor) -> Tensor:
        """Probabilities (B, K), 0 … 1."""
        return -torch.expm1(self.absence(maps).log)

    def absence(self, maps: Tensor) -> Absence:
        """The words' absence, in logarithms, for losses; computed in single precision at least.

        Raises:
            ValueError: A map without cells.
        """
        if 0 in maps.shape[2:]:
            raise ValueError(f"maps of shape {tuple(maps.shape)} have no cells")
        logits = self.cell(maps).flatten(2)
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        # −log(1 − σ(z)) = log(1 + eᶻ) ≥ 0, whose own logarithm is z − eᶻ/2 + … for small eᶻ.
        far = logits < -15
        each = F.softplus(logits)
        log_each = torch.where(far, logits, torch.log(F.softplus(torch.where(far, 0.0, logits))))
        return Absence(-each.sum(-1), log_each.logsumexp(-1))


def noisy_or_loss(absence: Absence, present: Tensor) -> Loss:
    """Cross-entropy of each word's presence, summed over words and pictures; the count is that of the pictures.

    Args:
        absence: From :meth:`NoisyOr.absence`, (B, K).
        present: (B, K) booleans: the word is in one of the picture's captions.
    """
    total = -torch.where(present, absence.log_presence(), absence.log).sum()
    return Loss(total, torch.tensor(float(len(present)), device=present.device))


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
