"""Scheduled sampling: some of the words that cross-entropy training reads are the model's own guesses.

Bengio et al., "Scheduled Sampling for Sequence Prediction with Recurrent Neural Networks" (2015); a first pass over the
captions makes the guesses of all places at once (Mihaylova and Martins, "Scheduled Sampling for Transformers", 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vlp_captioning.models import Captioner, Memory
from vlplatform.losses import real_words


@dataclass(frozen=True)
class ScheduledSamplingSettings:
    """How many of the words read are guesses, and from when on.

    X-LAN's code has ``share: 0.5, start: 7, every: 5, step: 0.05``.

    Attributes:
        share: Greatest share of the words that are guesses; 0: none ever.
        start: Passes over the training data before there are any.
        every: Passes after which the share grows again, from 0 at ``start``; 0: all of it from ``start`` on.
        step: By how much it grows.
    """

    share: float = 0.0
    start: int = 0
    every: int = 0
    step: float = 0.05

    def __post_init__(self) -> None:
        for name in ("share", "step"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0 and below 1")
        if self.start < 0 or self.every < 0:
            raise ValueError(f"start={self.start} and every={self.every} must not be negative")
        if self.share and self.every and not self.step:
            raise ValueError(f"step={self.step} never grows: raise it, or set every=0")

    def at(self, passes: float) -> float:
        """The share after so many passes over the training data."""
        if passes < self.start:
            return 0.0
        return min(self.share, self.step * math.floor((passes - self.start) / self.every)) if self.every else self.share


@torch.no_grad()
def guessed(model: Captioner, memory: Memory, tokens: Tensor, lengths: Tensor, share: float) -> Tensor:
    """The words (R, T), some exchanged for what the model would have drawn in their place.

    Args:
        model: It draws them, with torch's generator.
        memory: Of the images.
        tokens: (R, T) begin symbols and words; begin symbols and padding stay.
        lengths: (R,) how many of the T are real.
        share: Of the words that are exchanged.
    """
    log_probs = model.vocabulary_logits(model.decode(memory, tokens, lengths)).log_softmax(-1)
    drawn = torch.distributions.Categorical(logits=log_probs[:, :-1].float()).sample()
    swapped = torch.rand(drawn.shape, device=drawn.device) < share
    swapped &= real_words(lengths - 1, drawn.shape[1])
    return torch.cat((tokens[:, :1], torch.where(swapped, drawn, tokens[:, 1:])), 1)
