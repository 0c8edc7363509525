"""The policy gradient of self-critical training, and the advantages in it."""

from __future__ import annotations

from torch import Tensor


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
