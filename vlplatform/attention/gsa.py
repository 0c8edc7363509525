"""Geometry-aware self-attention (NG-SAN, Guo et al., eq. 8–13, table 4). No public code was found."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vlplatform.attention import composition
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.multi_head import MultiHeadAttention, Scale, sizes_of
from vlplatform.attention.nsa import Norm, Normalised
from vlplatform.attention.score_term import Block, Call, Operand, ScoreTerm, Sizes
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry, relative_boxes

KINDS = ("content_independent", "query", "key")


class GeometryAware(ScoreTerm):
    """``q kᵀ / √d + φ(Q', K', G)`` with ``G_ij = ReLU(FC(f_ij))`` of the boxes' relative geometry f (eq. 8–10).

    ==========================  ======================================
    ``content_independent``     ``φ¹ = ReLU(w_gᵀ G_ij)`` (eq. 11)
    ``query`` (default)         ``φ² = Q'_iᵀ G_ij`` (eq. 12)
    ``key``                     ``φ³ = K'_jᵀ G_ij`` (eq. 13)
    ==========================  ======================================

    Kinds add up. Each head has a Q', K' and w_g of its own; G is one for all heads. Where the text is open: logarithms
    are clamped (:func:`vlplatform.geometry.relative_boxes`), φ is not divided by √d, and of the kinds the default is
    the one that table 4 names, not the one that eq. 11 prints. The ``absolute`` baseline of table 4 is ``abs_pe``.

    Nothing of size N × M × geometry width is held for more than a block of queries.

    Args:
        sizes: Of the attention.
        kinds: Which of the three are added.
        geometry_dim: Width d_g of G; a head's width unless given.

    Raises:
        ValueError: An unknown kind, one named twice, or none.
    """

    name = "gsa"

    def __init__(self, sizes: Sizes, *, kinds: list[str] | None = None, geometry_dim: int | None = None) -> None:
        super().__init__()
        kinds = ["query"] if kinds is None else list(kinds)
        if not kinds or len(set(kinds)) < len(kinds) or not set(kinds) <= set(KINDS):
            hint = "; absolute geometry is attn=abs_pe" if "absolute" in kinds else ""
            raise ValueError(f"kinds={kinds} must be one or more of {', '.join(KINDS)}, each once{hint}")
        width = sizes.key_dim if geometry_dim is None else geometry_dim
        if width < 1:
            raise ValueError(f"geometry_dim={geometry_dim} must be at least 1")
        self.heads, self.kinds, self.geometry_dim = sizes.heads, tuple(kinds), width
        self.geometry = nn.Linear(4, width)
        self.weight = nn.Parameter(torch.empty(sizes.heads, width)) if "content_independent" in kinds else None
        if self.weight is not None:
            nn.init.normal_(self.weight, std=width**-0.5)
        self.query = nn.Linear(sizes.dim, sizes.heads * width) if "query" in kinds else None
        self.key = nn.Linear(sizes.memory_dim, sizes.heads * width) if "key" in kinds else None

    def prepare(self, call: Call, query: Tensor, key: Tensor) -> Mapping[str, Operand]:
        """The relative geometry (B or 1, N, M, 4), once for all layers, and the geometric queries and keys."""
        pair = call.needs_geometry(self.title)

        def compute() -> Tensor:
            return relative_boxes(*(boxes(g, self.title) for g in pair)).transpose(2, 3).contiguous()

        relative = call.once("relative boxes, numbers before keys", compute).to(self.geometry.weight.dtype)
        operands = {"relative": Operand(relative, rows=1)}
        if self.query is not None:
            operands["query"] = Operand(self.query(call.query).unflatten(-1, (self.heads, -1)), rows=1)
        if self.key is not None:
            if call.cache is not None:
                raise UserError(
                    f"attn={self.title} with kinds=[key] keeps nothing between decoding steps: call it without cache=…."
                )
            operands["key"] = Operand(self.key(call.key).unflatten(-1, (self.heads, -1)))
        return operands

    def bias(self, block: Block) -> Tensor:
        """φ (b, h, R, M)."""
        relation = self.geometry.weight @ block.operands["relative"] + self.geometry.bias[:, None]
        relation = relation.relu()  # (b or 1, R, g, M)
        total: Tensor | None = None
        if self.weight is not None:
            total = (self.weight @ relation).relu().transpose(1, 2)
        if "query" in block.operands:
            of_query = _per_query(block.operands["query"], relation)
            total = of_query if total is None else total + of_query
        if "key" in block.operands:  # per key (h, g) by (g, R)
            of_key = (block.operands["key"] @ relation.permute(0, 3, 2, 1)).permute(0, 2, 3, 1)
            total = of_key if total is None else total + of_key
        assert total is not None
        return total

    def floats(self, keys: int) -> int:
        """G of one query, twice."""
        return 2 * keys * self.geometry_dim

    def macs(self, queries: int, keys: int) -> int:
        """The maps of boxes, queries and keys, and a product per kind."""
        kinds = (self.weight is not None) + (self.query is not None) + (self.key is not None)
        maps = sum(n * m.weight.numel() for n, m in ((queries, self.query), (keys, self.key)) if m is not None)
        return queries * keys * self.geometry_dim * (4 + kinds * self.heads) + maps


def _per_query(query: Tensor, relation: Tensor) -> Tensor:
    """``Q'_iᵀ G_ij`` (b, h, R, M) of (b, R, h, g) and (b or 1, R, g, M)."""
    items, _, heads, _ = query.shape
    if relation.shape[0] == items:
        return (query @ relation).transpose(1, 2)
    side_by_side = query.transpose(0, 1).flatten(1, 2)  # one relation for all items: (R, b·h, g)
    return (side_by_side @ relation[0]).unflatten(1, (items, heads)).permute(1, 2, 0, 3)


def boxes(geometry: Geometry, name: str) -> Tensor:
    """The boxes of a geometry, or one sentence about their absence."""
    if geometry.boxes is None:
        raise UserError(f"attn={name} needs boxes; the geometry has points alone: make it by Geometry.from_boxes.")
    return geometry.boxes


def _normalized(
    dim: int,
    *,
    heads: int = 8,
    head_dim: int | None = None,
    key_dim: int | None = None,
    bias: bool = True,
    scale: Scale = "head",
    norm: Norm = "instance",
    on: Normalised = "query",
    affine: bool = False,
    kinds: list[str] | None = None,
    geometry_dim: int | None = None,
    dropout: float = 0.0,
    memory_dim: int | None = None,
) -> nn.Module:
    """NG-SAN's attention: ``softmax(IN(Q) Kᵀ / √d + φ(Q', K', G)) V``, the terms ``nsa`` and ``gsa``.

    Args:
        dim: Model width D.
        heads: Heads h.
        head_dim: Width of one head's query, key and value; D / h unless given.
        key_dim: Width of one head's query and key, where it differs.
        bias: The four projections have biases.
        scale: Logits are divided by the root of the head's width or of the model's.
        norm: As of ``nsa``.
        on: As of ``nsa``.
        affine: As of ``nsa``.
        kinds: As of ``gsa``.
        geometry_dim: As of ``gsa``.
        dropout: Rate at which attention weights are dropped.
        memory_dim: Width of the keys' tokens.
    """
    listed = (
        {"name": "nsa", "norm": norm, "on": on, "affine": affine},
        {"name": "gsa", "kinds": kinds, "geometry_dim": geometry_dim},
    )
    return MultiHeadAttention(
        dim,
        heads=heads,
        head_dim=head_dim,
        key_dim=key_dim,
        bias=bias,
        scale=scale,
        dropout=dropout,
        memory_dim=memory_dim,
        terms=composition.terms(listed, sizes_of(dim, heads, head_dim, key_dim, scale, memory_dim)),
    )


MECHANISMS = (
    Mechanism(
        name="gsa",
        build=GeometryAware,
        term=True,
        sockets=("token",),
        summary="bias from the relative geometry of boxes, by the query's content",
        paper="NG-SAN",
        equations="8–13",
    ),
    Mechanism(
        name="ngsa",
        build=_normalized,
        sockets=("token",),
        summary="normalised queries and geometric bias",
        paper="NG-SAN",
        equations="5–13",
    ),
)
