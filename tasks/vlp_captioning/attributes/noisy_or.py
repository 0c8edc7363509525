"""Words seen in a picture without boxes: noisy-OR multiple-instance learning over a map's cells.

Fang et al., From captions to visual concepts and back, CVPR 2015, §3; for ETA: thesis §2.5.2. A word is in the picture
if it is in any cell:

    p(word) = 1 − ∏ over cells of (1 − p(word | cell)),   p(word | cell) = σ(w · map(cell) + b)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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

    def presence(self) -> Tensor:
        """1 − ∏ …, (B, K), 0 … 1: how surely each word is in some cell."""
        return -torch.expm1(self.log)

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
        self.begin(torch.full((words,), prior), cells)

    def begin(self, prior: Tensor, cells: int) -> None:
        """Set the bias so that the words have the probabilities ``prior``, (K,), before training.

        Args:
            prior: Above 0 and below 1: one number for all, or the share of the training pictures that have each word.
            cells: H · W of the maps that are expected; others work too.
        """
        alone = -torch.expm1(torch.log1p(-prior.double()) / cells)  # 1 − (1 − prior)^(1/cells)
        assert self.cell.bias is not None
        with torch.no_grad():
            self.cell.bias.copy_(torch.logit(alone))

    def forward(self, maps: Tensor) -> Tensor:
        """Probabilities (B, K), 0 … 1."""
        return self.absence(maps).presence()

    def absence(self, maps: Tensor, mask: Tensor | None = None) -> Absence:
        """The words' absence, in logarithms, for losses; computed in single precision at least.

        Args:
            maps: (B, C, H, W).
            mask: (B, H · W) booleans, true for the cells that count, one in each map at least; none: all do.

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
        if mask is not None:
            each, log_each = each * mask[:, None], log_each.masked_fill(~mask[:, None], -torch.inf)
        return Absence(-each.sum(-1), log_each.logsumexp(-1))


def noisy_or_loss(absence: Absence, present: Tensor) -> Loss:
    """Cross-entropy of each word's presence, summed over words and pictures; the count is that of the pictures.

    Args:
        absence: From :meth:`NoisyOr.absence`, (B, K).
        present: (B, K) booleans: the word is in one of the picture's captions.
    """
    total = -torch.where(present, absence.log_presence(), absence.log).sum()
    return Loss(total, torch.tensor(float(len(present)), device=present.device))
