"""Box-relational attention (Herdade et al., "Image Captioning: Transforming Objects into Words", 2019).

The ``RelPE`` baseline of MD-SAN, table VII. Original repository: yahoo/object_relation_transformer.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vlplatform.attention.gsa import boxes
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.score_term import Block, Call, Operand, ScoreTerm, Sizes
from vlplatform.geometry import relative_boxes

_WAVES = 8  # per number of the relative geometry; a sine and a cosine of each


class BoxRelations(ScoreTerm):
    """``q kᵀ / √d + log max(ω, 1e-6)`` with ``ω = ReLU(W_G Emb(f_ij))``, f the boxes' relative geometry.

    ``Emb`` has, for the four numbers of f, the sines and then the cosines of ``100 f · 1000^{−k/8}``, k = 0…7:
    64 in all.
    Sines have no translation in them, so the mechanism is blind to shift and scale.

    Args:
        sizes: Of the attention.
        inclusive: Boxes contain their right and bottom pixel, as in the original code: sides are one unit longer.
    """

    name = "rel_pe"

    def __init__(self, sizes: Sizes, *, inclusive: bool = False) -> None:
        super().__init__()
        self.inclusive = inclusive
        self.geometry = nn.Linear(8 * _WAVES, sizes.heads)

    def prepare(self, call: Call, query: Tensor, key: Tensor) -> Mapping[str, Operand]:
        """The relative geometry (B or 1, N, M, 4), once for all layers."""
        pair = call.needs_geometry(self.title)

        def compute() -> Tensor:
            return relative_boxes(*(boxes(g, self.title) for g in pair), inclusive=self.inclusive)

        return {"relative": Operand(call.once(("relative boxes", self.inclusive), compute), rows=1)}

    def bias(self, block: Block) -> Tensor:
        """log ω (b, h, R, M)."""
        weight = self.geometry(embedding(block.operands["relative"]).to(self.geometry.weight.dtype))
        return weight.relu().clamp_min(1e-6).log().permute(0, 3, 1, 2)

    def floats(self, keys: int) -> int:
        """The embedding of one query's pairs, twice."""
        return 16 * _WAVES * keys

    def macs(self, queries: int, keys: int) -> int:
        """W_G."""
        return queries * keys * self.geometry.weight.numel()


def embedding(relative: Tensor) -> Tensor:
    """Sines and cosines (…, 64) of relative geometry (…, 4)."""
    waves = 1000 ** (-torch.arange(_WAVES, device=relative.device, dtype=relative.dtype) / _WAVES)
    angles = (100 * relative[..., None] * waves).flatten(-2)
    return torch.cat((angles.sin(), angles.cos()), -1)


MECHANISMS = (
    Mechanism(
        name="rel_pe",
        build=BoxRelations,
        term=True,
        sockets=("token",),
        summary="logarithm of a learnt weight of the boxes' relative geometry",
        paper="Herdade et al. 2019",
        equations="4–8",
    ),
)
