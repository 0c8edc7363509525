"""The loss of text under teacher forcing, and which places of its padded rows are real. Needs torch alone."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_LOGITS = {"cpu": 1 << 22, "other": 1 << 26}
"""Logits that exist at a time in :func:`linear_cross_entropy`: on a CPU what stays near its cache."""


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


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """:func:`smoothed_cross_entropy` of the logits ``hidden weightᵀ``, without ever holding them all.

    A few rows' logits are made, turned into the loss and its gradients, and forgotten: the memory is that of these
    rows, not n · V, and nothing is computed twice, because the gradient of a sum of words needs nothing from behind it
    but a factor. First derivatives only; :func:`smoothed_cross_entropy` has all.

    Args:
        hidden: (n, D).
        weight: (V, D).
        targets: (n,) numbers of words; padding must have been left out.
        smoothing: ε in 0 … 1.

    Returns:
        As :func:`smoothed_cross_entropy`: two scalars, float32 at least, also under autocast.
    """
    loss, nll = _LinearCrossEntropy.apply(hidden, weight, targets, smoothing, torch.is_grad_enabled())  # pyright: ignore
    return loss, nll


class _LinearCrossEntropy(torch.autograd.Function):
    """Loss and, scaled by what comes from behind, its gradients, which the forward pass has made."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, graded: bool
    ) -> tuple[Tensor, Tensor]:
        kind = hidden.device.type
        low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        high = torch.promote_types(low, torch.float32)
        exact = high if low is torch.float16 else low  # float16 has no number for the gradient at a rare word
        rows = max(1, _LOGITS.get(kind, _LOGITS["other"]) // max(1, len(weight)))
        others = smoothing / max(1, len(weight) - 1)
        right = 1 - smoothing - others
        with torch.autocast(kind, enabled=False):
            x, w = hidden.to(low), weight.to(low)
            sums = w.sum(0, dtype=high)  # what the logits of a row add up to is hidden · sums
            losses, nlls = x.new_zeros((), dtype=high), x.new_zeros((), dtype=high)
            of_hidden = torch.empty_like(x) if graded and ctx.needs_input_grad[0] else None
            of_weight = torch.zeros_like(w, dtype=high) if graded and ctx.needs_input_grad[1] else None
            room = x.new_empty(min(rows, len(x)), len(w))
            for part, words, gradient in zip(
                x.split(rows), targets[:, None].split(rows), (x if of_hidden is None else of_hidden).split(rows)
            ):
                logits = torch.mm(part, w.t(), out=room[: len(part)]).to(high)
                top = logits.amax(1, keepdim=True)
                at_word = logits.gather(1, words)
                scaled = logits.sub_(top).exp_()
                total = scaled.sum(1, keepdim=True)
                log_sum = total.log() + top
                nlls += (nll := log_sum - at_word).sum()
                if smoothing:
                    every = len(w) * log_sum.squeeze(1) - part.to(high) @ sums
                    losses += right * nll.sum() + others * every.sum()
                if of_hidden is None and of_weight is None:
                    continue
                # softmax − (1 − ε − ε') at the word − ε' everywhere, the last of which is left for later
                slope = scaled.div_(total).scatter_add_(1, words, total.new_full((), -right).expand_as(total)).to(exact)
                if of_hidden is not None:
                    gradient.copy_(torch.mm(slope, w.to(exact)) - others * sums)
                if of_weight is not None:
                    of_weight += slope.t() @ part.to(exact)
            if of_weight is not None and smoothing:
                of_weight -= others * x.sum(0, dtype=high)
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.save_for_backward(of_hidden, of_weight)
        ctx.mark_non_differentiable(nlls)
        return (losses if smoothing else nlls.clone()), nlls

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        found = [
            None if gradient is None else (gradient * factor).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes)
        ]
        return (*found, None, None, None)


def real_words(lengths: Tensor, width: int) -> Tensor:
    """Booleans (R, T): the first ``lengths`` (R,) of ``width`` places."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]
