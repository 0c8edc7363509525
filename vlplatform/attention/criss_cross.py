"""Criss-cross attention: each pixel attends to its row and its column (Huang et al., CCNet, ICCV 2019).

Paper: "CCNet: Criss-Cross Attention for Semantic Segmentation". Public code: speedinghzl/CCNet, whose
parameter names and initialisation these are. Memory is O(HW·(H+W)).

Axis letters in einsum: b batch, n head, c channel, y row and x column of the query, z the key along row or column.
Channels come last in memory, where the products along rows and along columns need no copies.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vlplatform.attention.mechanism import Mechanism


class CrissCross(nn.Module):
    """``y = γ·Σ_j softmax_j(q_i·k_j) v_j + x_i`` over the H + W − 1 pixels j of i's row and column, R times.

    q and k are 1×1 convolutions to C/r channels, v to C, with biases; the scalar γ starts at 0, so a fresh
    operator is the identity. The own pixel counts once, in the row. Every pass has the same weights and γ, and
    two passes connect every pixel with every other.

    Where we differ: ``heads`` and ``scale`` are ours; the authors have one head and no scale (the defaults).

    Args:
        dim: Channels C.
        heads: Heads; they split the channels.
        reduction: r; q and k have max(1, ⌊C/r⌋) channels.
        recurrence: Passes R.
        scale: Divide the logits by √d, d the query channels of a head.

    Raises:
        ValueError: Channels that the heads cannot split, or a number below 1.
    """

    def __init__(
        self, dim: int, *, heads: int = 1, reduction: int = 8, recurrence: int = 2, scale: bool = False
    ) -> None:
        super().__init__()
        if min(heads, reduction, recurrence) < 1:
            raise ValueError(f"heads={heads}, reduction={reduction} and recurrence={recurrence} must be at least 1")
        inner = max(1, dim // reduction)
        if dim % heads or inner % heads:
            raise ValueError(f"heads={heads} must divide both {dim} channels and their {inner} query channels")
        self.heads, self.recurrence, self.scale = heads, recurrence, scale
        self.query_conv = nn.Conv2d(dim, inner, 1)
        self.key_conv = nn.Conv2d(dim, inner, 1)
        self.value_conv = nn.Conv2d(dim, dim, 1)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C, H, W)."""
        x = x.contiguous(memory_format=torch.channels_last)
        for _ in range(self.recurrence):
            x = self.gamma * self._attend(x) + x
        return x

    def position_bias(self, x: Tensor, query: Tensor) -> tuple[Tensor, Tensor] | None:
        """What is added to the logits by where the keys are: none here.

        Args:
            x: (B, C, H, W).
            query: (B, H, W, heads, d), scaled if the operator scales.

        Returns:
            Logits of the row (B, heads, H, W, W) and of the column (B, heads, H, W, H), query by key.
        """
        return None

    def _attend(self, x: Tensor) -> Tensor:
        query, key, value = self._project(x)
        row, column = self._logits(x, query, key)
        weights = torch.cat([row, column], -1).softmax(-1)  # (B, n, H, W, W + H)
        along_row, along_column = weights.split([x.shape[3], x.shape[2]], dim=-1)
        mixed = torch.einsum("bnyxz,byznc->byxnc", along_row, value)
        mixed = mixed + torch.einsum("bnyxz,bzxnc->byxnc", along_column, value)
        return mixed.flatten(3).permute(0, 3, 1, 2)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each (B, H, W, heads, d)."""
        query, key, value = (
            convolution(x).permute(0, 2, 3, 1).unflatten(3, (self.heads, -1))
            for convolution in (self.query_conv, self.key_conv, self.value_conv)
        )
        return query * query.shape[4] ** -0.5 if self.scale else query, key, value

    def _logits(self, x: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        row, column = _content(query, key)
        bias = self.position_bias(x, query)
        return (row, column) if bias is None else (row + bias[0], column + bias[1])

    @torch.no_grad()
    def attention_maps(self, x: Tensor, row: int, col: int) -> dict[str, Tensor]:
        """What the pixel (row, col) attends to in the first pass, as probabilities (B, heads, H, W).

        Key ``content``; with a position term also ``position`` (alone) and ``bilateral`` (both together). Zero
        off the cross. Raises ``IndexError`` outside the map.
        """
        query, key, _ = self._project(x)
        content = _content(query, key)
        logits = {"content": content}
        if (bias := self.position_bias(x, query)) is not None:
            logits |= {"position": bias, "bilateral": (content[0] + bias[0], content[1] + bias[1])}
        maps: dict[str, Tensor] = {}
        for name, (along_row, along_column) in logits.items():
            pixel_row, pixel_column = along_row[:, :, row, col], along_column[:, :, row, col].clone()
            pixel_column[..., row] = float("-inf")  # the own pixel, in the row already
            weights = torch.cat([pixel_row, pixel_column], -1).softmax(-1)
            maps[name] = weights.new_zeros(*weights.shape[:2], *x.shape[-2:])
            maps[name][..., col] = weights[..., x.shape[-1] :]
            maps[name][:, :, row] += weights[..., : x.shape[-1]]
        return maps

    def macs(self, height: int, width: int) -> int:
        """Multiply–adds of a map: convolutions without biases, affinity and aggregation, all passes.

        The affinity counts H + W keys a pixel, as computed: the column's own one is masked, not skipped.
        """
        projections = (self.query_conv, self.key_conv, self.value_conv)
        weights = sum(convolution.weight.numel() for convolution in projections)
        per_key = self.query_conv.out_channels + self.value_conv.out_channels
        return self.recurrence * height * width * (weights + per_key * (height + width))


def _content(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """q·k along the row (B, n, H, W, W) and the column (B, n, H, W, H), there −∞ at the own pixel."""
    row = torch.einsum("byxnc,byznc->bnyxz", query, key)
    column = torch.einsum("byxnc,bzxnc->bnyxz", query, key)
    own = query.new_full((query.shape[1],), float("-inf")).diag_embed()
    return row, column + own[:, None]


MECHANISMS = (
    Mechanism(
        name="crisscross",
        build=CrissCross,
        sockets=("context",),
        summary="row and column of each pixel, twice",
        paper="Huang et al., CCNet, ICCV 2019",
        equations="1–3",
    ),
)
