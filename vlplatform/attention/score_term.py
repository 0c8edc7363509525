"""What a mechanism changes in scaled dot-product attention: the ``ScoreTerm`` and what it is handed.

Shapes: B batch, h heads, N queries, M keys, D model width, d head size. A term acts at any of seven points; attention
calls each point of all terms before the next, in the order of its list of terms:

==============  ================================================================================================
``embed``       tokens (B, N, D) → tokens, before the projections
``project``     query, key (B, h, ·, d) → query, key
``modulate``    logits of the content → logits
``bias``        → what is added to the logits, after all terms have modulated them
``visible``     → which keys a query may attend to at all
``weights``     probabilities → probabilities
``output``      probabilities → what is added to each head's output
==============  ================================================================================================

Masks come after the logits' last change, so that no term has to mind them. The last five points see a *block*: some
of the batch and some of the queries, with all heads and keys. What a term computes once for all blocks it returns
from ``prepare``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from vlplatform.attention.cache import Cache
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry

T = TypeVar("T")


@dataclass(frozen=True)
class Sizes:
    """The sizes of the attention that a term is part of.

    Attributes:
        dim: Model width D.
        heads: Heads h.
        key_dim: Width d of one head's query and key.
        value_dim: Width of one head's value.
        scale: Factor of the products of queries and keys.
        memory_dim: Width of the keys' tokens.
    """

    dim: int
    heads: int
    key_dim: int
    value_dim: int
    scale: float
    memory_dim: int


@dataclass
class Depth:
    """What the layers of a stack share in one forward pass over one set of tokens; each gets one with its own index.

    Without one a layer takes itself for the lowest: Swin's windows are not shifted, nothing grows over depth.

    Attributes:
        layer: Index of the layer, 0 at the bottom.
        shared: Results kept for the layers above: geometry computed once, the clusters that grow.
    """

    layer: int = 0
    shared: dict[Hashable, Any] = field(default_factory=dict)

    def at(self, layer: int) -> Depth:
        """The same store seen from another layer."""
        return Depth(layer, self.shared)

    def copy(self) -> Depth:
        """The same layer with a store of its own that has the same contents."""
        kept = {key: dict(value) if isinstance(value, dict) else value for key, value in self.shared.items()}
        return Depth(self.layer, kept)

    def child(self, name: str) -> Depth:
        """A store within this one, for one of several attentions in a layer; the same in all layers."""
        return Depth(self.layer, self.shared.setdefault(("child", name), {}))

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """``compute()``, or what the first call with this key gave."""
        if key not in self.shared:
            self.shared[key] = compute()
        return self.shared[key]


@dataclass(frozen=True)
class Call:
    """One call of an attention module, as its terms see it.

    Attributes:
        query: Tokens (B, N, D).
        key: Tokens (B, M, D) given in this call; fewer than there are keys when a cache holds the others.
        keys: Number M of keys, cached ones included.
        own: The keys are the queries' own sequence.
        causal: A query attends to no later key.
        first: Position of the first query in the sequence of keys; 0 without a cache.
        real_query: (B, N) booleans, or none where all are real.
        real_key: (B, M) booleans, or none where all are real.
        masked: A mask was given.
        allowed: Booleans (B or 1, h or 1, N or 1, M), the mask and causality together; none where all is allowed.
        geometry: Of queries and keys, where given.
        cache: Where a decoder keeps what it computed for earlier tokens.
        depth: What the layers share.
    """

    query: Tensor
    key: Tensor
    keys: int
    own: bool
    causal: bool
    first: int
    real_query: Tensor | None
    real_key: Tensor | None
    masked: bool
    allowed: Tensor | None
    geometry: tuple[Geometry, Geometry] | None
    cache: Cache | None
    depth: Depth

    def needs_geometry(self, name: str) -> tuple[Geometry, Geometry]:
        """The geometry, or one sentence about its absence."""
        if self.geometry is None:
            raise UserError(
                f"attn={name} needs geometry=…, which was not given: Geometry.from_boxes, .from_points or .from_grid."
            )
        return self.geometry

    def needs_own_sequence(self, name: str) -> None:
        """Refuse keys of another sequence: the term knows positions within one."""
        if not self.own:
            raise UserError(
                f"attn={name} relates places of one sequence, hence is self-attention: call it without key=…; "
                f"{self.query.shape[1]} queries came with {self.keys} other keys."
            )


@dataclass(frozen=True)
class Operand:
    """A tensor that blocks read: axis 0 is the batch (or 1), ``rows`` the axis of queries, if it has one."""

    tensor: Tensor
    rows: int | None = None


@dataclass(frozen=True)
class Block:
    """Some of the queries, as a term sees them.

    Attributes:
        first: Place of the block's first query among the queries of the call.
        rows: Number R of its queries.
        keys: Number M of keys.
        offset: Position of the call's first query in the sequence of keys.
        causal: A query attends to no later key.
        allowed: Booleans (b or 1, h or 1, R or 1, M), or none.
        operands: What the term's ``prepare`` returned, cut to the block.
        device: Of the logits.
    """

    first: int
    rows: int
    keys: int
    offset: int
    causal: bool
    allowed: Tensor | None
    operands: Mapping[str, Tensor]
    device: torch.device

    @property
    def start(self) -> int:
        """Position of the block's first query in the sequence of keys."""
        return self.offset + self.first


class ScoreTerm(nn.Module):
    """A mechanism as a change of scaled dot-product attention; a subclass overrides the points where it acts.

    A new one is a few lines::

        class Decay(ScoreTerm):
            name = "decay"

            def bias(self, block: Block) -> Tensor:
                query = torch.arange(block.start, block.start + block.rows, device=block.device)
                return -0.1 * (query[:, None] - torch.arange(block.keys, device=block.device)).abs()

    Attributes:
        name: Name of the mechanism, in messages.
        mixes_queries: A query's result depends on the other queries, later ones included: nothing for a decoder.
        exclusive: Terms with the same word here cannot be combined.
    """

    name: ClassVar[str] = ""
    mixes_queries: bool = False
    exclusive: ClassVar[str] = ""

    def embed(self, tokens: Tensor, geometry: Geometry | None, depth: Depth) -> Tensor:
        """Tokens (B, N, D) with what the term adds to them before the projections."""
        return tokens

    def project(self, query: Tensor, key: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        """Changed query (B, h, N, d) and key (B, h, M', d); M' leaves out what a cache holds."""
        return query, key

    def prepare(self, call: Call, query: Tensor, key: Tensor) -> Mapping[str, Operand]:
        """What the term's other points read from their block, by name; ``query`` and ``key`` are the projected ones."""
        return {}

    def modulate(self, logits: Tensor, block: Block) -> Tensor:
        """Changed logits (b, h, R, M)."""
        return logits

    def bias(self, block: Block) -> Tensor:
        """A tensor that broadcasts to the logits (b, h, R, M), added to them."""
        raise NotImplementedError

    def add(self, logits: Tensor, block: Block) -> Tensor:
        """The logits with the bias, for blocks; overridden where adding can do without a bias of their size."""
        return logits + self.bias(block)

    def visible(self, block: Block) -> Tensor:
        """Booleans that broadcast to (b, h, R, M); a row without any key left gives zeros."""
        raise NotImplementedError

    def weights(self, probabilities: Tensor, block: Block) -> Tensor:
        """Changed probabilities (b, h, R, M); forbidden keys must stay at 0."""
        return probabilities

    def output(self, probabilities: Tensor, block: Block) -> Tensor:
        """A tensor (b, h, R, value width), added to the heads' output."""
        raise NotImplementedError

    @classmethod
    def acts(cls, point: str) -> bool:
        """Whether the class overrides a point."""
        return getattr(cls, point) is not getattr(ScoreTerm, point)

    def floats(self, keys: int) -> int:
        """Numbers that a block holds per query beside the logits; blocks are cut the smaller for it."""
        return 0

    def macs(self, queries: int, keys: int) -> int:
        """Multiply–adds beyond those of plain attention, for one item of a batch."""
        return 0


def forbidden(dtype: torch.dtype) -> float:
    """The logit of a forbidden key: finite, so that a row without keys has no NaN; its weight is exactly 0 else."""
    return torch.finfo(dtype).min
