"""Matrix products by the library that computes convolutions.

A 1×1 convolution over pixels whose channels lie side by side is a matrix product. On the CPU, PyTorch gives products
to one library and convolutions to another; in single precision the second was measured twice as fast on an AMD
processor (docs/benchmarks.md), so the fused kernels multiply through it wherever it takes part.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` for (m, k) and (k, n), row by row in memory; no autograd.

    Args:
        left: Copied unless its rows are contiguous.
        right: Read in place where its rows or its columns are contiguous, else copied.
    """
    if not _by_convolution(left):
        return torch.mm(left, right)
    pixels = left.contiguous()[None, None].permute(0, 3, 1, 2)  # (1, k, 1, m), channels last
    if right.stride(0) == 1:
        out = F.conv2d(pixels, right.t().contiguous()[:, :, None, None])
    else:
        like = left.new_empty(1, 1, len(left), right.shape[1]).permute(0, 3, 1, 2)  # never written
        weight = right.contiguous()[:, :, None, None]
        out = torch.ops.aten.convolution_backward(
            pixels, like, weight, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (True, False, False)
        )[0]
    return out[0, :, 0].t()


def affine(weight: Tensor, bias: Tensor | None, pixels: Tensor, out: Tensor) -> None:
    """``out = weight @ pixels + bias`` for (N, C), (N,), (C, n) and (N, n), whichever way the pixels are stored."""
    if out.stride(1) == 1:
        rows = product(weight, pixels)
        out.copy_(rows) if bias is None else torch.add(rows, bias[:, None], out=out)
    else:
        rows = product(pixels.t(), weight.t())
        out.t().copy_(rows) if bias is None else torch.add(rows, bias, out=out.t())


def _by_convolution(left: Tensor) -> bool:
    return (
        left.device.type == "cpu"
        and left.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and len(left) > 1
    )
