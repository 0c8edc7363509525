"""From the modules of a local attention layer to the fused kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vlplatform.attention.kernels.fold import Folded
from vlplatform.attention.kernels.fused import Window, local_attention

if TYPE_CHECKING:
    from vlplatform.attention.local import LocalAttention


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def fits(layer: LocalAttention, x: Tensor) -> bool:
    """Whether the fused kernel computes what the layer's modules would.

    It does for masked borders, plain convolutions and plain batch norms; hooks on the modules are to be run, and
    a norm's own complaint about a single pixel is to be heard.
    """
    inner = [*layer.projections.values(), *([] if layer.position is None else [layer.position])]
    parts = [part for stage in (*inner, layer.output) for part in stage.modules()]
    norms = [getattr(stage, "norm", None) for stage in inner]
    return (
        layer.border == "mask"
        and all(norm is None or type(norm) is nn.BatchNorm2d for norm in norms)
        and x.shape[0] * x.shape[2] * x.shape[3] > 1
        and all(type(part) in (nn.Sequential, nn.Conv2d, nn.BatchNorm2d) for part in parts)
        and not any(getattr(part, hooks) for part in parts for hooks in _HOOKS)
    )


def run(layer: LocalAttention, x: Tensor) -> Tensor:
    """The layer's output by the fused kernel; the norm behind the output runs as a module."""
    if not (x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)):
        x = x.contiguous()  # the kernels take the pixels of an image as one axis of a view
    folded = Folded(x)
    stages = [_parts(stage) for stage in layer.projections.values()]
    weight, bias = folded.fold(stages)
    if layer.position is not None:  # a product of the query, which is one of the input: one product of the input
        query = (weight[: layer.width], bias[: layer.width])
        at_query, offset = folded.fold([_parts(layer.position)], behind=query)
        first = 0 if layer.content else layer.width  # without content the query is read by the predictor alone
        weight = torch.cat((weight[first:], at_query @ query[0]))
        bias = torch.cat((bias[first:], at_query @ query[1] + offset))
    settings = Window(
        layer.kernel,
        layer.heads,
        layer.shared,
        layer.content,
        layer.position is not None,
        layer.factor,
        layer.iterations,
    )
    conv, norm = _parts(layer.output)
    out = local_attention(x, (weight, bias), folded.fold([(conv, None)]), settings)
    return out if norm is None else norm(out)


def _parts(stage: nn.Module) -> tuple[nn.Conv2d, nn.BatchNorm2d | None]:
    conv, norm = stage.conv, getattr(stage, "norm", None)
    assert isinstance(conv, nn.Conv2d)
    return conv, norm
