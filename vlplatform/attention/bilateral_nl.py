"""Bi-NL: bilateral non-local attention (thesis §3.4.3–3.4.4, eq. 3.9)."""

from __future__ import annotations

from torch import Tensor

from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.nonlocal_block import NonLocal
from vlplatform.attention.position_logits import Padding, PositionLogits, Smoothing, check_window
from vlplatform.attention.realign import inside, realign_grid


class BilateralNonLocal(NonLocal):
    """Non-local block over content and position logits: ``softmax_j(θ_i·φ_j/σ_c + δ_p(x_i, i, j)/σ_p)``.

    δ_p has k × k logits per pixel and head; see :class:`PositionLogits` for padding and smoothing. σ_c is √d in
    both smoothings, as in the plain block, so constant position logits give :class:`NonLocal` exactly. The
    logits over all pairs of pixels are O((HW)²), like the block's own.

    Args:
        dim: Channels C.
        heads: Heads; they split the channels, and each has position logits of its own.
        reduction: r; the inner maps and the embedding of f have max(1, ⌊C/r⌋) channels.
        norm: Batch norm after W_out, which then has no bias; its gain starts at 0.
        window: k, odd.
        padding: Position logit of the keys outside the window.
        smoothing: How the position logits are brought to the content's range.

    Raises:
        ValueError: As :class:`NonLocal`, or an even window.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 1,
        reduction: int = 2,
        norm: bool = False,
        window: int = 31,
        padding: Padding = "learned",
        smoothing: Smoothing = "zscore",
    ) -> None:
        super().__init__(dim, heads=heads, reduction=reduction, norm=norm)
        check_window(window)
        self.window = window
        inner = self.g.out_channels
        self.position = PositionLogits(
            dim,
            hidden=inner,
            heads=heads,
            places=window * window,
            channels=inner // heads,
            padding=padding,
            smoothing=smoothing,
        )

    def position_bias(self, x: Tensor, query: Tensor) -> Tensor:
        """δ_p/σ_p of all pairs of pixels less a constant per query, (B, heads, HW, HW)."""
        height, width = x.shape[-2:]
        rows, columns = inside(height, self.window, x.device), inside(width, self.window, x.device)
        on_map = rows[:, None, :, None] & columns[:, None, :]  # (H, W, k, k)
        taps = self.position(x, on_map.flatten(2), height * width)
        taps = taps.unflatten(-1, (self.window, self.window))
        return realign_grid(taps, self.position.fill).flatten(4).flatten(2, 3)

    def macs(self, height: int, width: int) -> int:
        """As of the plain block, and the convolutions of f."""
        return super().macs(height, width) + self.position.macs(height, width)


MECHANISMS = (
    Mechanism(
        name="bilateral_nl",
        build=BilateralNonLocal,
        sockets=("context",),
        summary="non-local block with content and position logits",
        paper="attention thesis, chapter 3",
        equations="3.8–3.12",
    ),
)
