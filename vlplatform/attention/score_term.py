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
from ``prepare``. A term that can be said for one query and one key says it in ``pairwise`` and is then fused on GPUs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from vlplatform.attention.cache import Cache
from vlplatform.attention.kernels.flex import Pairwise
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
        shared: What grows from layer to layer, as clusters do.
        kept: Results of :meth:`once`, with what they were computed of.
    """

    layer: int = 0
    shared: dict[Hashable, Any] = field(default_factory=dict)
    kept: dict[Hashable, list[tuple[tuple[object, ...], Any]]] = field(default_factory=dict)

    def at(self, layer: int) -> Depth:
        """The same store seen from another layer."""
        return Depth(layer, self.shared, self.kept)

    def copy(self) -> Depth:
        """The same layer with a store of its own that has the same contents."""
        shared = {key: dict(value) if isinstance(value, dict) else value for key, value in self.shared.items()}
        return Depth(self.layer, shared, {key: list(results) for key, results in self.kept.items()})

    def child(self, name: str) -> Depth:
        """A store within this one, for one of several attentions in a layer; the same in all layers.

        What :meth:`once` keeps is common to all: it depends on nothing that is theirs.
        """
        return Depth(self.layer, self.shared.setdefault(("child", name), {}), self.kept)

    def once(self, key: Hashable, compute: Callable[[], T], *of: object) -> T:
        """``compute()``, or what it gave for this key and these very objects before.

        Args:
            key: What is computed, with all settings it depends on.
            compute: It may depend on ``key`` and ``of``, on no learnt weight.
            of: What it is computed of, as a :class:`~vlplatform.geometry.Geometry`: told apart by identity, not value.
        """
        results = self.kept.setdefault(key, [])
        for objects, result in results:
            if len(objects) == len(of) and all(a is b for a, b in zip(objects, of)):
                return result
        result = compute()
        results.append((of, result))
        return result


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

    def once(self, key: Hashable, compute: Callable[[], T], *of: object) -> T:
        """:meth:`Depth.once` of this call's geometry: what layers, and branches in them, share."""
        return self.depth.once(key, compute, *(self.geometry or ()), *of)

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

    ``bias``, ``visible`` and ``output`` have nothing to fall back on: they are called only where a class has its own
    (:meth:`acts`). A setting is kept as the attribute of its name, so that terms can be compared by :meth:`settings`.

    Attributes:
        name: Name of the mechanism.
        title: What messages call it: its name, after that of the preset it belongs to, if any.
        mixes_queries: A query's result depends on the other queries, later ones included: nothing for a decoder.
        causal_calls: True: for causal calls alone; false: for none of them; none: for all calls.
        exclusive: Terms with the same word here cannot be combined.
    """

    name: ClassVar[str] = ""
    mixes_queries: bool = False
    causal_calls: bool | None = None
    exclusive: ClassVar[str] = ""
    _names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, sizes: Sizes | None = None) -> None:
        super().__init__()
        self.title = self.name

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        cls._names = tuple(p.name for p in parameters if p.name != "sizes" and p.kind not in variable)

    def settings(self) -> tuple[Hashable, ...]:
        """Class and settings, equal and of one hash for terms that differ in learnt weights alone.

        Modules themselves stay equal to nothing but themselves, as PyTorch needs them to be.
        """
        values = ((name, getattr(self, name)) for name in self._names)
        return type(self), *((name, tuple(value) if isinstance(value, list) else value) for name, value in values)

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
        return torch.zeros((), device=block.device)

    def add(self, logits: Tensor, block: Block) -> Tensor:
        """The logits with the bias, for blocks; overridden where adding can do without a bias of their size."""
        return logits + self.bias(block)

    def visible(self, block: Block) -> Tensor | None:
        """Booleans that broadcast to (b, h, R, M), None where all is seen; a row without any key left gives zeros."""
        return None

    def weights(self, probabilities: Tensor, block: Block) -> Tensor:
        """Changed probabilities (b, h, R, M); forbidden keys must stay at 0."""
        return probabilities

    def output(self, probabilities: Tensor, block: Block) -> Tensor:
        """A tensor that broadcasts to the heads' output (b, h, R, value width), added to it."""
        return probabilities.new_zeros(())

    def pairwise(self, call: Call) -> Pairwise | None:
        """``modulate``, ``bias`` and ``visible`` for one query and one key; none where they cannot be said so.

        It takes the place of these points and of ``prepare`` on GPUs (:mod:`vlplatform.attention.kernels.flex`).
        """
        return None

    @classmethod
    def pairs(cls) -> bool:
        """Whether ``pairwise`` speaks for all the points where the class acts, none being overridden since."""
        mro = cls.__mro__
        newer = mro[: next(i for i, base in enumerate(mro) if "pairwise" in vars(base))]
        said = ("prepare", "modulate", "bias", "visible")
        return (
            cls.acts("pairwise")
            and not any(point in vars(base) for base in newer for point in said)
            and not (cls.acts("weights") or cls.acts("output"))
        )

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
