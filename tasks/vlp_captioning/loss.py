"""Losses of caption training: label-smoothed cross-entropy, and the policy gradient of self-critical training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Summed loss and summed negative log-likelihood of n words.

    The target distribution has ``1 − ε`` at the word and ``ε / (V − 1)`` at every other: the definition of fairseq and
    of X-Transformer's code, whose divergence is this cross-entropy less a constant. PyTorch's own spreads ε over all V.

    Args:
        logits: (n, V).
        targets: (n,) numbers of words.
        smoothing: ε.
    """
    if not smoothing:
        loss = F.cross_entropy(logits, targets, reduction="sum")
        return loss, loss.detach()
    log_sum = logits.logsumexp(-1)
    nll = (log_sum - logits.gather(1, targets[:, None]).squeeze(1)).sum()
    others = smoothing / (logits.shape[-1] - 1)
    all_words = (logits.shape[-1] * log_sum - logits.sum(-1)).sum()
    return (1 - smoothing - others) * nll + others * all_words, nll.detach()


def policy_gradient(log_probs: Tensor, real: Tensor, advantage: Tensor) -> Tensor:
    """``−Σ_i A_i Σ_t log p(y_it)`` (Rennie et al. 2017, eq. 4; MD-SAN, eq. 15–16).

    Args:
        log_probs: Of sampled words, (R, T).
        real: (R, T) booleans, true up to and including the end symbol.
        advantage: Reward less baseline, (R,).
    """
    return -(log_probs.masked_fill(~real, 0).sum(1) * advantage.to(log_probs.dtype)).sum()


def advantages(rewards: Tensor, samples: int, greedy: Tensor | None = None) -> Tensor:
    """Rewards less their baseline, (R,).

    Args:
        rewards: (R,), the ``samples`` of an image side by side.
        samples: Per image.
        greedy: Rewards of the greedy captions, one per image, as the baseline (Rennie et al. 2017; X-LAN); else the
            mean of an image's samples (MD-SAN, eq. 15; Cornia et al. 2020).
    """
    groups = rewards.unflatten(0, (-1, samples))
    baseline = groups.mean(1) if greedy is None else greedy
    return (groups - baseline[:, None]).flatten()


def real_words(lengths: Tensor, width: int) -> Tensor:
    """Booleans (R, T): the first ``lengths`` (R,) of ``width`` places."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]
