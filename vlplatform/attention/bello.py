"""Decomposed 2-D relative positions (Bello et al., ICCV 2019), the baseline of thesis table 3.2.

Paper: "Attention Augmented Convolutional Networks", eq. 3–4: the logit of query i and key j is
q_i·(k_j + r^W_{jx−ix} + r^H_{jy−iy}), with learned vectors shared by the heads.

Where we differ: the paper has one vector for every offset of a map of known size. Ours takes any size: offsets
beyond ``max_offset`` share the vector of the last one, as Shaw et al. (2018) clip theirs.

Axis letters in einsum: b batch, n head, c channel, y row and x column of the query, z the key along row or column.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform.attention.criss_cross import CrissCross
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.nonlocal_block import NonLocal


class RelativeLogits(nn.Module):
    """q_i·r_{j−i} along the row and along the column, every offset's vector r drawn from N(0, 1/d).

    Args:
        channels: d, query channels of a head.
        max_offset: The largest offset with a vector of its own.

    Raises:
        ValueError: ``max_offset`` below 1.
    """

    def __init__(self, channels: int, max_offset: int) -> None:
        super().__init__()
        if max_offset < 1:
            raise ValueError(f"max_offset={max_offset} must be at least 1")
        self.max_offset = max_offset
        self.row = nn.Parameter(torch.randn(2 * max_offset + 1, channels) * channels**-0.5)
        self.column = nn.Parameter(torch.randn(2 * max_offset + 1, channels) * channels**-0.5)

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the row (B, n, H, W, W) and the column (B, n, H, W, H) of a query (B, H, W, n, d)."""
        _, height, width, _, _ = query.shape
        row = torch.einsum("byxnc,xzc->bnyxz", query, self._between(self.row, width))
        column = torch.einsum("byxnc,yzc->bnyxz", query, self._between(self.column, height))
        return row, column

    def _between(self, vectors: Tensor, length: int) -> Tensor:
        """The vector from each place to each other, (N, N, d)."""
        place = torch.arange(length, device=vectors.device)
        offset = (place - place[:, None]).clamp(-self.max_offset, self.max_offset)
        return F.embedding(offset + self.max_offset, vectors)

    def macs(self, height: int, width: int) -> int:
        """Multiply–adds per head."""
        return height * width * (height + width) * self.row.shape[1]


class NonLocalRPE(NonLocal):
    """Non-local block (embedded Gaussian) with decomposed relative positions in its logits.

    Args:
        dim: Channels C.
        heads: Heads; they split the channels and share the vectors.
        reduction: r; the inner maps have max(1, ⌊C/r⌋) channels.
        scale: Divide content and position logits by √d.
        norm: Batch norm after W_out, which then has no bias; its gain starts at 0.
        max_offset: The largest offset with a vector of its own.

    Raises:
        ValueError: As :class:`NonLocal` and :class:`RelativeLogits`.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 1,
        reduction: int = 2,
        scale: bool = True,
        norm: bool = False,
        max_offset: int = 128,
    ) -> None:
        super().__init__(dim, heads=heads, reduction=reduction, scale=scale, norm=norm)
        self.relative = RelativeLogits(self.g.out_channels // heads, max_offset)

    def position_bias(self, x: Tensor, query: Tensor) -> Tensor:
        """(q_i·r^W_{jx−ix} + q_i·r^H_{jy−iy})/√d of all pairs, (B, heads, HW, HW)."""
        on_map = (query * self.logit_scale).unflatten(2, x.shape[-2:])  # (B, n, H, W, d)
        row, column = self.relative(on_map.movedim(1, 3))
        return (column[..., None] + row[..., None, :]).flatten(4).flatten(2, 3)

    def macs(self, height: int, width: int) -> int:
        """As of the plain block, and the products of queries and offset vectors."""
        return super().macs(height, width) + self.heads * self.relative.macs(height, width)


class CrissCrossRPE(CrissCross):
    """Criss-cross attention with relative positions in its logits: r^W along the row, r^H along the column.

    The other axis' vector of offset 0 would be the same for all keys of a part, so it is left to that part's own.

    Args:
        dim: Channels C.
        heads: Heads; they split the channels and share the vectors.
        reduction: r; q and k have max(1, ⌊C/r⌋) channels.
        recurrence: Passes R.
        scale: Divide content and position logits by √d.
        max_offset: The largest offset with a vector of its own.

    Raises:
        ValueError: As :class:`CrissCross` and :class:`RelativeLogits`.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 1,
        reduction: int = 8,
        recurrence: int = 2,
        scale: bool = False,
        max_offset: int = 128,
    ) -> None:
        super().__init__(dim, heads=heads, reduction=reduction, recurrence=recurrence, scale=scale)
        self.relative = RelativeLogits(self.query_conv.out_channels // heads, max_offset)

    def position_bias(self, x: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """q_i·r^W_{jx−ix} of the row (B, heads, H, W, W), q_i·r^H_{jy−iy} of the column (B, heads, H, W, H)."""
        return self.relative(query)

    def macs(self, height: int, width: int) -> int:
        """As of criss-cross attention, and the products of queries and offset vectors in every pass."""
        return super().macs(height, width) + self.recurrence * self.heads * self.relative.macs(height, width)


MECHANISMS = (
    Mechanism(
        name="nonlocal_rpe",
        build=NonLocalRPE,
        sockets=("context",),
        summary="non-local block with decomposed 2-D relative positions",
        paper="Bello et al., ICCV 2019",
        equations="3–4",
    ),
    Mechanism(
        name="crisscross_rpe",
        build=CrissCrossRPE,
        sockets=("context",),
        summary="criss-cross attention with decomposed 2-D relative positions",
        paper="Bello et al., ICCV 2019",
        equations="3–4",
    ),
)
