"""From the modules of a local attention layer to the fused kernel, and its statistics back into their norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vlplatform.attention.kernels.fused import Window, local_attention
from vlplatform.attention.kernels.norm import Linear

if TYPE_CHECKING:
    from vlplatform.attention.local import LocalAttention


def _norms(layer: LocalAttention) -> list[nn.Module]:
    return [stage.norm for stage in layer.stages() if hasattr(stage, "norm")]


def fits(layer: LocalAttention, x: Tensor) -> bool:
    """Whether the fused kernel computes what the layer's modules would.

    It does for masked borders and plain batch norms that are all in one mode; hooks on the modules are to be run.
    """
    norms = _norms(layer)
    modes = {norm.training or norm.running_mean is None for norm in norms if isinstance(norm, nn.BatchNorm2d)}
    return (
        layer.border == "mask"
        and all(type(norm) is nn.BatchNorm2d and norm.affine for norm in norms)
        and len(modes) <= 1
        and not (True in modes and x.shape[0] * x.shape[2] * x.shape[3] < 2)
        and x.numel() > 0
        and not any(module._forward_hooks or module._forward_pre_hooks for stage in layer.stages() for module in stage.modules())
    )


def run(layer: LocalAttention, x: Tensor) -> Tensor:
    """The layer's output by the fused kernel."""
    projections = [_linear(stage) for stage in layer.projections.values()]
    project = projections[0]
    if len(projections) > 1:
        joined = {n: [getattr(linear, n) for linear in projections] for n in Linear.TENSORS}
        project = Linear(
            *(torch.cat(parts) if parts[0] is not None else None for parts in joined.values()), eps=project.eps
        )
    position = None if layer.position is None else _linear(layer.position)
    settings = Window(layer.kernel, layer.heads, layer.shared, layer.content, layer.factor, layer.iterations)
    out, statistics = local_attention(x, project, position, _linear(layer.output), settings)
    pixels = x.shape[0] * x.shape[2] * x.shape[3]
    if statistics:
        means, variances = torch.cat(statistics[::2]), torch.cat(statistics[1::2])
        norms = [norm for norm in _norms(layer) if isinstance(norm, nn.BatchNorm2d)]
        sizes = [norm.num_features for norm in norms]
        for norm, mean, variance in zip(norms, means.split(sizes), variances.split(sizes)):
            _update(norm, mean, variance * (pixels / (pixels - 1)))
    return out


def _linear(stage: nn.Sequential) -> Linear:
    """A stage's tensors; a norm in evaluation mode is folded into the convolution."""
    conv, norm = stage.conv, getattr(stage, "norm", None)
    assert isinstance(conv, nn.Conv2d)
    weight = conv.weight.flatten(1)
    if not isinstance(norm, nn.BatchNorm2d):
        return Linear(weight, conv.bias)
    if norm.training or norm.running_mean is None or norm.running_var is None:
        return Linear(weight, conv.bias, norm.weight, norm.bias, norm.eps)
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    bias = norm.bias - norm.running_mean * scale
    return Linear(weight * scale[:, None], bias if conv.bias is None else bias + conv.bias * scale)


@torch.no_grad()
def _update(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor) -> None:
    """Move the running statistics as the norm itself does."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked += 1
    rate = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean, rate)
    norm.running_var.lerp_(variance, rate)
