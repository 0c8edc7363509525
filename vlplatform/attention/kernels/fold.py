"""Batch norm behind a 1×1 convolution as part of its weights, also in training mode.

The mean and variance of ``W x`` over all pixels follow from the mean m and covariance S of ``x`` alone: ``W m`` and
``diag(W S Wᵀ)``. So one pass over the input serves the norms of every convolution that reads it, the norm costs no pass
over the output, and its gradient comes back through m and S. Exact in exact arithmetic; in float32 the
variance of a channel keeps about 7 digits less the ratio of the largest variance along any direction to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vlplatform.attention.kernels.product import affine, product

Stage = tuple[nn.Conv2d, nn.BatchNorm2d | None]
_STRIP = 8192  # pixels that are centred at a time


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean((0, 2, 3))
        covariance = x.new_zeros(x.shape[1], x.shape[1])
        for image in x.flatten(2):
            parts = -(-image.shape[1] // _STRIP)
            for strip in image.tensor_split(parts, 1):
                centred = strip - mean[:, None]
                covariance += product(centred, centred.t())
        ctx.save_for_backward(x, mean)
        ctx.count = x.shape[0] * x.shape[2] * x.shape[3]
        return mean, covariance.div_(ctx.count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, mean = ctx.saved_tensors
        at_mean, at_covariance = grad_outputs
        slope = (at_covariance + at_covariance.t()) / ctx.count
        level = (at_mean / ctx.count).addmv_(slope, mean, alpha=-1)
        out = torch.empty_like(x)
        for image, target in zip(x.flatten(2), out.flatten(2)):
            affine(slope, level, image, target)
        return out


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (C,) and biased covariance (C, C) of the channels of ``x`` (B, C, H, W), contiguous or channels last."""
    mean, covariance = _Moments.apply(x)
    return mean, covariance


class _Variance(torch.autograd.Function):
    """``diag(W S Wᵀ)`` for weights (N, C) and a symmetric covariance (C, C)."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, covariance: Tensor) -> Tensor:
        spread = product(weight, covariance)
        ctx.save_for_backward(weight, spread)
        return (spread * weight).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        weight, spread = ctx.saved_tensors
        slope = grad_outputs[0][:, None]
        return spread * (2 * slope), product(weight.t(), slope * weight)


class Folded:
    """The 1×1 convolutions of one input with their norms folded into weights and biases.

    Args:
        x: The input (B, C, H, W); its moments are measured once, and only for norms in training mode.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.count = x.shape[0] * x.shape[2] * x.shape[3]
        self._moments: tuple[Tensor, Tensor] | None = None

    def fold(self, stages: Sequence[Stage], behind: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Weight (N, C) and bias (N,) of all ``norm(conv(·))``, stacked; norms in training mode count the batch.

        Args:
            stages: 1×1 convolutions of the input, or of ``behind``, each with the batch norm that follows, if any.
            behind: Weight and bias of the product of the input that the convolutions read instead.
        """
        if len({_mode(norm) for _, norm in stages}) > 1:  # some norms are frozen, say: one after the other
            weights, biases = zip(*(self.fold([stage], behind) for stage in stages))
            return _stack(weights), _stack(biases)
        weight = _stack([conv.weight.flatten(1) for conv, _ in stages])
        bias = _stack(
            [conv.weight.new_zeros(len(conv.weight)) if conv.bias is None else conv.bias for conv, _ in stages]
        )
        norms = [norm for _, norm in stages if norm is not None]
        if not norms:
            return weight, bias
        if norms[0].training or norms[0].running_mean is None or norms[0].running_var is None:
            self._moments = moments(self.x) if self._moments is None else self._moments
            mean_x, covariance = self._moments
            whole, offset = (weight, bias) if behind is None else (weight @ behind[0], weight @ behind[1] + bias)
            mean = whole @ mean_x + offset
            variance = _Variance.apply(whole, covariance).clamp_min(0)
            sizes = [len(conv.weight) for conv, _ in stages]
            for norm, of_mean, of_variance in zip(norms, mean.split(sizes), variance.split(sizes)):
                _update(norm, of_mean, of_variance, self.count)
        else:
            mean = _stack([norm.running_mean for norm in norms if norm.running_mean is not None])
            variance = _stack([norm.running_var for norm in norms if norm.running_var is not None])
        scale = (variance + norms[0].eps).rsqrt()
        if norms[0].affine:
            scale = scale * _stack([norm.weight for norm in norms])
        shift = (bias - mean) * scale
        if norms[0].affine:
            shift = shift + _stack([norm.bias for norm in norms])
        return weight * scale[:, None], shift


def _mode(norm: nn.BatchNorm2d | None) -> tuple[object, ...]:
    return () if norm is None else (norm.training, norm.eps, norm.affine, norm.running_mean is None)


def _stack(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


@torch.no_grad()
def _update(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Move the running statistics as the norm itself does."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked += 1
    rate = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean, rate)
    norm.running_var.lerp_(variance * (count / (count - 1)), rate)
