"""Layers of segmentation networks: conv-norm-ReLU, separable convolution, spatial pyramid, classifier, resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ConvNormReLU(nn.Sequential):
    """Convolution without bias that keeps the size, batch norm, ReLU: (B, in, H, W) → (B, out, H, W)."""

    def __init__(self, in_dim: int, out_dim: int, kernel: int = 1, *, dilation: int = 1, groups: int = 1) -> None:
        padding = dilation * (kernel // 2)
        conv = nn.Conv2d(in_dim, out_dim, kernel, padding=padding, dilation=dilation, groups=groups, bias=False)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        if groups > 1:  # the fan-out of a depthwise filter is its own area, not that times the channels
            nn.init.kaiming_normal_(conv.weight, mode="fan_in", nonlinearity="relu")
        super().__init__(conv, nn.BatchNorm2d(out_dim), nn.ReLU())


class SeparableConv(nn.Sequential):
    """Depthwise k×k and pointwise convolution, each with batch norm and ReLU (Chen et al. 2018)."""

    def __init__(self, in_dim: int, out_dim: int, kernel: int = 3, *, dilation: int = 1) -> None:
        super().__init__(
            ConvNormReLU(in_dim, in_dim, kernel, dilation=dilation, groups=in_dim), ConvNormReLU(in_dim, out_dim)
        )


class ImagePool(nn.Module):
    """The mean over the whole map, projected and spread over the map again.

    In training a single image leaves one value per channel, over which no batch norm is defined: the running
    statistics stand in for it then.
    """

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.project = ConvNormReLU(in_dim, out_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) → (B, out, H, W), the same at every pixel."""
        mean = x.mean((2, 3), keepdim=True)
        if self.training and len(x) == 1:
            norm = cast(nn.BatchNorm2d, self.project[1])
            by_running = F.batch_norm(
                self.project[0](mean), norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
            )
            pooled = by_running.relu()
        else:
            pooled = self.project(mean)
        return pooled.expand(-1, -1, *x.shape[-2:])


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling with separable branches (Chen et al. 2018; mmsegmentation's order).

    Image pooling, a 1×1 convolution, and one separable 3×3 per dilation, concatenated and fused by a 3×3
    convolution: (B, in, H, W) → (B, out, H, W).
    """

    def __init__(self, in_dim: int, out_dim: int, dilations: Sequence[int] = (12, 24, 36)) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [ImagePool(in_dim, out_dim), ConvNormReLU(in_dim, out_dim)]
            + [SeparableConv(in_dim, out_dim, dilation=dilation) for dilation in dilations]
        )
        self.fuse = ConvNormReLU(out_dim * len(self.branches), out_dim, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) → (B, out, H, W)."""
        return self.fuse(torch.cat([branch(x) for branch in self.branches], dim=1))


class Classifier(nn.Sequential):
    """Dropout of whole channels and a 1×1 convolution: (B, in, H, W) → logits (B, classes, H, W)."""

    def __init__(self, in_dim: int, classes: int, dropout: float = 0.1) -> None:
        conv = nn.Conv2d(in_dim, classes, 1)
        nn.init.normal_(conv.weight, std=0.01)
        nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
        super().__init__(nn.Dropout2d(dropout), conv)


def resize(x: Tensor, size: Sequence[int]) -> Tensor:
    """A map (B, C, H, W) bilinearly at another size (H', W'), corners not aligned."""
    if x.shape[-2:] == tuple(size):
        return x
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)
