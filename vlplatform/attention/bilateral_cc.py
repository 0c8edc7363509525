"""Bi-CC: bilateral criss-cross attention (thesis §3.4.3–3.4.4, eq. 3.9; default of tables 3.1–3.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from vlplatform.attention.criss_cross import CrissCross
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.position_logits import Padding, PositionLogits, Smoothing, check_window
from vlplatform.attention.realign import inside, realign


class BilateralCrissCross(CrissCross):
    """Criss-cross attention over content and position logits: ``softmax_j(q_i·k_j/σ_c + δ_p(x_i, i, j)/σ_p)``.

    δ_p has 2k − 1 logits per pixel and head: k along the row, then k − 1 along the column, whose middle is the
    row's. See :class:`PositionLogits` for padding and smoothing. With ``smoothing="sqrt"`` σ_c = σ_p = √d;
    with ``"zscore"`` the position logits are normalised over the cross and the content stays as criss-cross
    attention has it, unscaled (σ_c = 1). Constant position logits thus give :class:`CrissCross`, with
    ``scale=True`` in the first case.

    Where we differ: the thesis does not say what z-score does to the content, nor whether passes share f; we share
    it, as criss-cross attention shares all else.

    Args:
        dim: Channels C.
        heads: Heads; they split the channels, and each has position logits of its own.
        reduction: r; q, k and the embedding of f have max(1, ⌊C/r⌋) channels.
        recurrence: Passes R.
        window: k, odd.
        padding: Position logit of the keys outside the window.
        smoothing: How the two logits are brought to one range.

    Raises:
        ValueError: As :class:`CrissCross`, or an even window.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 1,
        reduction: int = 8,
        recurrence: int = 2,
        window: int = 31,
        padding: Padding = "learned",
        smoothing: Smoothing = "zscore",
    ) -> None:
        super().__init__(dim, heads=heads, reduction=reduction, recurrence=recurrence, scale=smoothing == "sqrt")
        check_window(window)
        self.window = window
        inner = self.query_conv.out_channels
        self.position = PositionLogits(
            dim,
            hidden=inner,
            heads=heads,
            places=2 * window - 1,
            channels=inner // heads,
            padding=padding,
            smoothing=smoothing,
        )

    def position_bias(self, x: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """δ_p/σ_p of the row (B, heads, H, W, W) and the column (B, heads, H, W, H), less a constant per query."""
        height, width = x.shape[-2:]
        middle = self.window // 2
        in_row = inside(width, self.window, x.device).expand(height, -1, -1)
        above, _, below = inside(height, self.window, x.device).split([middle, 1, middle], dim=-1)
        in_column = torch.cat([above, below], -1)[:, None].expand(-1, width, -1)
        taps = self.position(x, torch.cat([in_row, in_column], -1), height + width - 1)
        row, above, below = taps.split([self.window, middle, middle], dim=-1)
        own = torch.zeros_like(row[..., :1])  # masked by criss-cross attention, whatever it is
        column = torch.cat([above, own, below], -1)
        fill = self.position.fill
        return realign(row, fill), realign(column.transpose(2, 3), fill).transpose(2, 3)

    def macs(self, height: int, width: int) -> int:
        """As of criss-cross attention, and the convolutions of f in every pass."""
        return super().macs(height, width) + self.recurrence * self.position.macs(height, width)


MECHANISMS = (
    Mechanism(
        name="bilateral_cc",
        build=BilateralCrissCross,
        sockets=("context",),
        summary="criss-cross attention with content and position logits",
        paper="attention thesis, chapter 3",
        equations="3.8–3.12",
        families={"context": "bilateral"},
    ),
)
