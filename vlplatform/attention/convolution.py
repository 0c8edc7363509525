"""The k×k convolution that the local operators replace: the baseline of thesis table 4.2, row j.

One convolution with bias, zero padding of (k-1)/2, stride 1. At 256 channels and k = 3: 590 080 parameters.
"""

from __future__ import annotations

from torch import Tensor, nn

from vlplatform.attention.mechanism import Mechanism


class Convolution(nn.Module):
    """A k×k convolution with bias that keeps the map's size: (B, C, H, W) → (B, C', H, W).

    Args:
        dim: Input channels C.
        out_dim: Output channels C'; ``dim`` by default.
        kernel: Side of the window, odd.

    Raises:
        ValueError: ``kernel`` is even or below 1.
    """

    def __init__(self, dim: int, *, out_dim: int | None = None, kernel: int = 3) -> None:
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"kernel={kernel} must be odd and at least 1.")
        self.conv = nn.Conv2d(dim, out_dim or dim, kernel, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` (B, C, H, W) → (B, C', H, W)."""
        return self.conv(x)

    def macs(self, height: int, width: int) -> int:
        """Multiply–adds for one H×W map, without the bias."""
        return height * width * self.conv.weight.numel()


MECHANISMS = (
    Mechanism(
        name="conv",
        build=Convolution,
        sockets=("local",),
        summary="k×k convolution with bias, the baseline of the local socket",
        paper="Attention thesis, chapter 4",
        equations="table 4.2 j",
    ),
)
