"""Relative position representations (Shaw et al., "Self-Attention with Relative Position Representations", 2018).

The baseline of the attention thesis, tables 3.5 and 3.6.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vlplatform.attention.kernels.band import add_band, clipped, dense
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.score_term import Block, Call, Operand, ScoreTerm, Sizes


class RelativePositions(ScoreTerm):
    """``q_i (k_j + a^K_{ij})ᵀ / √d`` and ``Σ_j α_ij (v_j + a^V_{ij})``, with ``a_ij`` learnt for each offset j − i.

    Offsets beyond ± ``clip`` share the outermost vectors; heads share all of them (Shaw et al., eq. 3–5 and §3.2).
    A softmax is blind to a constant per query, so the logits are given relative to that of the leftmost offset: only
    the window, and what lies right of it, is ever added to.

    Args:
        sizes: Of the attention.
        clip: Offsets up to which positions are told apart; 16 in the paper's base model.
        values: The values have position vectors too.

    Raises:
        ValueError: ``clip`` below 1.
    """

    name = "rel_pos"

    def __init__(self, sizes: Sizes, *, clip: int = 16, values: bool = True) -> None:
        super().__init__()
        if clip < 1:
            raise ValueError(f"clip={clip} must be at least 1")
        self.clip, self.values, self.scale, self.heads = clip, values, sizes.scale, sizes.heads
        self.key = nn.Parameter(torch.empty(2 * clip + 1, sizes.key_dim))
        self.value = nn.Parameter(torch.empty(2 * clip + 1, sizes.value_dim)) if values else None
        for table in self.parameters():
            nn.init.xavier_uniform_(table)

    def prepare(self, call: Call, query: Tensor, key: Tensor) -> Mapping[str, Operand]:
        """The logits of all offsets, less that of the leftmost: (B, h, N, 2·clip + 1)."""
        call.needs_own_sequence(self.title)
        return {"taps": Operand((query * self.scale) @ (self.key - self.key[:1]).t(), rows=2)}

    def add(self, logits: Tensor, block: Block) -> Tensor:
        """The logits with those of positions, in place."""
        return add_band(logits, block.operands["taps"], block.start, self.clip, right=not block.causal)

    def bias(self, block: Block) -> Tensor:
        """The logits of positions (b, h, R, M)."""
        taps = block.operands["taps"]
        right = torch.ones(block.rows, block.keys, dtype=taps.dtype, device=taps.device)
        right = right.triu(block.start + self.clip + 1)
        return dense(taps, block.start, self.clip, block.keys) + taps[..., -1:] * right

    def output(self, probabilities: Tensor, block: Block) -> Tensor:
        """``Σ_j α_ij a^V_ij``."""
        if self.value is None:
            return probabilities.new_zeros(1)
        return clipped(probabilities, 2 * self.clip + 1, block.start, self.clip) @ self.value

    def macs(self, queries: int, keys: int) -> int:
        """The products of queries, and of weights, with the position vectors."""
        return queries * self.heads * sum(table.numel() for table in self.parameters())


MECHANISMS = (
    Mechanism(
        name="rel_pos",
        build=RelativePositions,
        term=True,
        sockets=("token",),
        summary="learnt vectors for clipped relative positions, in keys and values",
        paper="Shaw et al. 2018",
        equations="3–5",
    ),
)
