"""The loss of text under teacher forcing, and which places of its padded rows are real. Needs torch alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Summed loss and summed negative log-likelihood of n words, scalars; the second without gradient.

    The target distribution has ``1 − ε`` at the word and ``ε / (V − 1)`` at every other, so that the loss is fairseq's
    ``(1 − ε − ε / (V − 1)) · nll + ε / (V − 1) · Σ_v −log p_v``. X-Transformer's code has the divergence, which is less
    by the distribution's entropy, ``−(1 − ε) log(1 − ε) − ε log(ε / (V − 1))`` per word: the same gradient, a minimum
    of 0. PyTorch's own ``label_smoothing`` spreads ε over all V, the word among them.

    Args:
        logits: (n, V), V at least 2 with smoothing.
        targets: (n,) numbers of words; padding must have been left out.
        smoothing: ε in 0 … 1.
    """
    if not smoothing:
        loss = F.cross_entropy(logits, targets, reduction="sum")
        return loss, loss.detach()
    log_sum = logits.logsumexp(-1)
    nll = (log_sum - logits.gather(1, targets[:, None]).squeeze(1)).sum()
    others = smoothing / (logits.shape[-1] - 1)
    all_words = (logits.shape[-1] * log_sum - logits.sum(-1)).sum()
    return (1 - smoothing - others) * nll + others * all_words, nll.detach()


def real_words(lengths: Tensor, width: int) -> Tensor:
    """Booleans (R, T): the first ``lengths`` (R,) of ``width`` places."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]
