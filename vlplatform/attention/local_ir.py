"""Localised bilateral attention with iterative refinement and shared projections (attention thesis, algorithm 1).

Between softmax passes the content logits are refined as in routing by agreement: ``c_j ← c_j + squash(y_i)·x_j``
with ``y_i = Σ_j softmax_j(c) x_j``, squash per head; afterwards the position logits join and the last softmax weighs
the values. One projection (with bias and norm) is query, key and value; predictor and output have neither
(table 4.2 g–i).

Where we differ: the thesis iterates T times and then weighs once more; here ``iterations`` counts softmax passes, the
last one included, so that 1 is plain local attention (row h) as the table labels it.
"""

from __future__ import annotations

from vlplatform.attention.local import Border, LocalAttention, Scale
from vlplatform.attention.mechanism import Mechanism


class LocalBilateralIR(LocalAttention):
    """Shared projections, refined content, then position (algorithm 1, table 4.2 g–i).

    Args:
        dim: Input channels C.
        out_dim: Output channels; ``dim`` by default.
        heads: Number of heads.
        kernel: Side of the window, odd.
        iterations: Softmax passes T.
        shared: One projection for query, key and value; else the projections of ``local_bilateral``, and the
            refinement gathers keys. The thesis refines shared projections only.
        geometric: With position logits; without them it is row g.
        border: What neighbours outside the image are.
        scale: Factor of every content product.
    """

    def __init__(
        self,
        dim: int,
        *,
        out_dim: int | None = None,
        heads: int = 8,
        kernel: int = 3,
        iterations: int = 3,
        shared: bool = True,
        geometric: bool = True,
        border: Border = "mask",
        scale: Scale = "none",
    ) -> None:
        super().__init__(
            dim,
            out_dim=out_dim,
            heads=heads,
            kernel=kernel,
            border=border,
            scale=scale,
            content=True,
            geometric=geometric,
            shared=shared,
            iterations=iterations,
        )


MECHANISMS = (
    Mechanism(
        name="local_bilateral_ir",
        build=LocalBilateralIR,
        sockets=("local",),
        summary="k×k bilateral attention, shared projections, iterative refinement",
        paper="Attention thesis, chapter 4",
        equations="algorithm 1, table 4.2 g–i",
    ),
)
