"""Talking-heads attention (Shazeer et al., 2020), a baseline of MD-SAN, table XI."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.score_term import Block, ScoreTerm, Sizes


class TalkingHeads(ScoreTerm):
    """Logits mixed over the heads before the softmax, ``P_l``, and probabilities after it, ``P_w``.

    Both start as the identity, so that training starts from plain attention; the paper initialises them at random.

    Args:
        sizes: Of the attention.
        logits: The logits are mixed.
        probabilities: The probabilities are mixed.

    Raises:
        ValueError: Neither is mixed.
    """

    name = "talking_heads"

    def __init__(self, sizes: Sizes, *, logits: bool = True, probabilities: bool = True) -> None:
        super().__init__()
        if not (logits or probabilities):
            raise ValueError("logits=false and probabilities=false leave nothing to mix")
        self.logits, self.probabilities = logits, probabilities
        self.before = nn.Parameter(torch.eye(sizes.heads)) if logits else None
        self.after = nn.Parameter(torch.eye(sizes.heads)) if probabilities else None

    def modulate(self, logits: Tensor, block: Block) -> Tensor:
        """Mixed logits."""
        return logits if self.before is None else _mixed(self.before, logits)

    def weights(self, probabilities: Tensor, block: Block) -> Tensor:
        """Mixed probabilities; what is forbidden in a head gets none there, and gives none to others."""
        if self.after is None:
            return probabilities
        if block.allowed is None or block.allowed.shape[1] == 1:
            return _mixed(self.after, probabilities)
        return _mixed(self.after, probabilities.masked_fill(~block.allowed, 0)).masked_fill(~block.allowed, 0)

    def macs(self, queries: int, keys: int) -> int:
        """The two mixtures."""
        return queries * keys * sum(matrix.numel() for matrix in self.parameters())


def _mixed(matrix: Tensor, maps: Tensor) -> Tensor:
    """``matrix`` (h, h) over the heads of (b, h, R, M)."""
    return (matrix @ maps.flatten(2)).view_as(maps)


MECHANISMS = (
    Mechanism(
        name="talking_heads",
        build=TalkingHeads,
        term=True,
        sockets=("token",),
        summary="logits and weights mixed over the heads",
        paper="Shazeer et al. 2020",
        equations="§4",
    ),
)
