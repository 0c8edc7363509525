"""X-Linear attention: bilinear pooling of query and keys weighs places and channels.

Pan et al., "X-Linear Attention Networks for Image Captioning" (CVPR 2020), §3.2–3.3; original repository:
JDAI-CV/image-captioning. Shapes: B batch, h heads, N queries, M keys, D model width, d = D / h, c middle width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform.attention import masks
from vlplatform.attention.cache import Cache
from vlplatform.attention.kernels import fused_wanted
from vlplatform.attention.kernels.bilinear import bilinear
from vlplatform.attention.kernels.blocks import Piece, by_blocks, drop, plan
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.score_term import Depth, forbidden
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry

Activation = Literal["celu", "relu", "elu"]
Tokens = Tensor | Sequence[Tensor]
Mask = Tensor | Sequence[Tensor | None] | None
_ROOM = 1 << 22  # bytes of a block's bilinear features per thread
_KEPT = 16  # rooms: so much is kept for the backward pass, of more each block is computed again


class XLinear(nn.Module):
    r"""Bilinear attention over places and channels (eq. 2–6).

    With the embeddings Q, U of the query and K_i, V_i of a key, cut into heads::

        b_i = ReLU(W_B (Q ⊙ K_i))                     β^s = softmax_i(w_b · b_i)
        v̂  = β^c ⊙ U ⊙ Σ_i β^s_i V_i                  β^c = sigmoid(W_e · mean_i b_i)

    the mean over the keys that the query may attend to. An embedding is a linear map, an activation, and group
    normalisation of each token's channels, a group per head. W_B, w_b and W_e are shared by the heads; nothing
    follows the concatenation of the heads. Each query's ``W_B diag(Q)`` meets the keys in one matrix product: no
    product Q ⊙ K_i is ever formed. A row without any key allowed gives zeros and no gradient.

    Where we differ from the text: the defaults are the authors' code. The paper has one distribution (``heads=1``),
    ReLU embeddings (``activation="relu"``) or, for "infinity order", ELU in its place (``activation="elu"``), and
    no normalisation (``group_norm=False``). ``gate=False`` is the code's ``BasicAtt``: neither the channel gate nor
    the factor U, whose map, there computed and thrown away, does not exist here.

    Args:
        dim: Model width D.
        heads: Heads h.
        mid: Width c of W_B; half a head's width unless given, as in both published models.
        activation: Of the embeddings.
        alpha: Of CELU and ELU; 1.3 (the code's) for the former and 1 for the latter unless given.
        group_norm: The embeddings end with group normalisation.
        gate: Gate channels and multiply by the query's second embedding.
        dropout: Rate at which entries of b_i are dropped; the code's is 0.1.
        memory_dim: Width of the keys' tokens, D unless given.

    Raises:
        ValueError: ``dim`` that the heads cannot split, an unknown activation, a number out of range.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        mid: int | None = None,
        activation: Activation = "celu",
        alpha: float | None = None,
        group_norm: bool = True,
        gate: bool = True,
        dropout: float = 0.0,
        memory_dim: int | None = None,
    ) -> None:
        super().__init__()
        if min(dim, heads) < 1 or dim % heads:
            raise ValueError(f"dim={dim} is not divisible by heads={heads}")
        width = dim // heads
        mid = max(1, width // 2) if mid is None else mid
        if mid < 1 or (memory_dim is not None and memory_dim < 1):
            raise ValueError(f"mid={mid} and memory_dim={memory_dim} must be at least 1")
        check_rates(dropout=dropout)
        self.dim, self.heads, self.dropout, self.memory_dim = dim, heads, dropout, memory_dim or dim

        def embedding(from_dim: int) -> _Embedding:
            return _Embedding(from_dim, dim, heads, activation, alpha, group_norm)

        self.query = embedding(dim)
        self.key = embedding(self.memory_dim)
        self.value_query = embedding(dim) if gate else None
        self.value = embedding(self.memory_dim)
        self.middle = nn.Linear(width, mid)
        self.spatial = nn.Linear(mid, 1)
        self.channel = nn.Linear(mid, width) if gate else None

    def forward(
        self,
        query: Tensor,
        key: Tokens | None = None,
        value: Tokens | None = None,
        *,
        geometry: Geometry | tuple[Geometry, Geometry] | None = None,
        mask: Mask = None,
        causal: bool = False,
        cache: Cache | None = None,
        query_mask: Tensor | None = None,
        depth: Depth | None = None,
        grow: bool = False,
    ) -> Tensor:
        """Attended tokens (B, N, D).

        Args:
            query: (B, N, D).
            key: (B, M, memory width); the queries themselves unless given. Its batch may divide that of the queries
                (B = r · B', as with r captions or beams per image): keys are then projected once. Several memories,
                as a list, are read as one, side by side.
            value: As ``key``, which it is unless given.
            geometry: Not read.
            mask: Booleans, true where a key may be attended to: (B, M), (B, N, M) or (B, h or 1, N or 1, M). For a
                list of memories a list of such or none.
            causal: A query attends to no later key.
            cache: What earlier steps of a decoder left; the query then holds the new tokens only.
            query_mask: Not read: a padded query changes no other's result.
            depth: Not read.
            grow: ``key`` is no memory but a second stream beside the queries, as long as they are: with a cache, what
                comes is new and joins what was kept, as in self-attention.

        Raises:
            UserError: A width, shape or type that does not fit.
        """
        if key is None and isinstance(mask, Tensor) and mask.shape == query.shape[:2] and mask.dtype == torch.bool:
            query = query.masked_fill(~mask[..., None] & ~query.isfinite(), 0)  # NaN would reach the maps' gradients
        tensors = self._prepare(query, key, value, mask, causal, cache, grow)
        if not query.numel() or not tensors[2].shape[2]:
            return torch.zeros_like(query)
        return self._attend(*tensors).reshape(query.shape)

    def attention_weights(
        self,
        query: Tensor,
        key: Tokens | None = None,
        value: Tokens | None = None,
        *,
        mask: Mask = None,
        causal: bool = False,
        cache: Cache | None = None,
        grow: bool = False,
        **_: Any,
    ) -> Tensor:
        """β^s (B, h, N, M), the weights of places; rows without keys are 0."""
        return self.distributions(query, key, value, mask=mask, causal=causal, cache=cache, grow=grow)[0]

    def distributions(
        self,
        query: Tensor,
        key: Tokens | None = None,
        value: Tokens | None = None,
        *,
        mask: Mask = None,
        causal: bool = False,
        cache: Cache | None = None,
        grow: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """β^s (B, h, N, M) and β^c (B, h, N, d), if there is a gate; rows without keys are 0."""
        own_cache = None if cache is None else cache.copy()  # looking changes nothing
        q, _, k, _, allowed = self._prepare(query, key, value, mask, causal, own_cache, grow)
        weights, gate = self._distributions(self._heads(q), k, allowed, self.dropout if self.training else 0.0, None)
        weights = masks.alive(weights, allowed)
        gate = None if gate is None else masks.alive(gate, allowed)

        def ungrouped(rows: Tensor) -> Tensor:
            return rows.unflatten(2, (-1, query.shape[1])).transpose(1, 2).flatten(0, 1)

        return ungrouped(weights), None if gate is None else ungrouped(gate)

    def macs(self, queries: int, keys: int | Sequence[int] | None = None) -> int:
        """Multiply–adds for one item with N queries and M keys (as many unless given), or several memories."""
        keys = queries if keys is None else keys if isinstance(keys, int) else sum(keys)
        embeddings = (2 if self.channel is not None else 1) * queries * self.dim * self.dim
        embeddings += 2 * keys * self.memory_dim * self.dim
        width, middle = self.middle.in_features, self.middle.out_features
        gated = self.channel is not None
        per_pair = middle * width + middle + width + (middle if gated else 0)
        per_query = middle * width * (2 if gated else 1) + (2 * width if gated else 0)
        return embeddings + self.heads * queries * (per_query + keys * per_pair)

    def _prepare(
        self,
        query: Tensor,
        key: Tokens | None,
        value: Tokens | None,
        mask: Mask,
        causal: bool,
        cache: Cache | None,
        grow: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
        """Q and U (B', r · N, D), K and V (B', h, M, d), and what is allowed (B' or 1, h or 1, r · N or 1, M)."""
        check_tokens("query", query, self.dim)
        own, queries = key is None or grow, query.shape[1]
        keys, values, given = self._memories(query, key, value, mask)
        batch = keys[0].shape[0]
        if grow and (len(keys) > 1 or keys[0].shape[:2] != query.shape[:2]):
            raise UserError(
                f"query has shape {tuple(query.shape)} and key {tuple(keys[0].shape)}; with grow=True, expected one "
                "key for each query."
            )
        first = cache.length if cache is not None and own else 0
        counts = [first + queries] if own else [memory.shape[1] for memory in keys]
        wide = [m if m is None else masks.check(m, batch, self.heads, queries, n) for m, n in zip(given, counts)]
        for i, m in enumerate(given):
            if m is not None and m.ndim == 2:  # whatever stands in padding, NaN even, has weight 0
                padded = ~(m[:, first:] if own else m)[..., None]
                same, keys[i] = values[i] is keys[i], keys[i].masked_fill(padded, 0)
                values[i] = keys[i] if same else values[i].masked_fill(padded, 0)
        allowed = _side_by_side(wide, counts)
        if causal:
            allowed = masks.both(allowed, masks.causal(queries, sum(counts), first, query.device)[None, None])
        groups = query.shape[0] // batch
        if groups > 1 and allowed is not None and allowed.shape[2] > 1:
            allowed = allowed.repeat(1, 1, groups, 1)
        k, v = self._project(keys, values, own, cache)
        if cache is not None:
            cache.memory, cache.share = not own, 1 if own else groups
        q = self.query(query).view(batch, groups * queries, self.dim)
        u = None if self.value_query is None else self.value_query(query).view_as(q)
        return q, u, k, v, allowed

    def _memories(
        self, query: Tensor, key: Tokens | None, value: Tokens | None, mask: Mask
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
        """Keys, values and masks, a memory each."""
        if key is None:
            if value is not None:
                raise UserError("value was given without key: give both, or neither for self-attention.")
            check_tokens("query", query, self.memory_dim)
            key = query
        if isinstance(key, Tensor):
            several, keys = False, [key]
            values = [value] if isinstance(value, Tensor) else keys
            given: list[Tensor | None] = [mask] if isinstance(mask, Tensor) else [None]
        else:
            several, keys = True, list(key)
            values = keys if value is None else list(value)
            given = [None] * len(keys) if mask is None else list(mask)
        for name, also in (("value", value), ("mask", mask)):
            if also is not None and isinstance(also, Tensor) == several:
                raise UserError(f"key is {_form(key)} and {name} {_form(also)}; expected both alike.")
        if not len(keys) == len(values) == len(given) or not keys:
            raise UserError(
                f"key has {len(keys)} memories, value {len(values)} and mask {len(given)}; expected as many of each."
            )
        for memory, its_value in zip(keys, values):
            check_tokens("key", memory, self.memory_dim)
            check_tokens("value", its_value, self.memory_dim)
            size = memory.shape[0]
            if size != keys[0].shape[0] or not size or query.shape[0] % size:
                raise UserError(f"query has a batch of {query.shape[0]}, key of {size}; expected a divisor of it.")
            if its_value.shape[:2] != memory.shape[:2]:
                raise UserError(
                    f"value has shape {tuple(its_value.shape)}; expected batch and tokens of key, "
                    f"{tuple(memory.shape)}."
                )
        return list(keys), list(values), given

    def _project(
        self, keys: list[Tensor], values: list[Tensor], own: bool, cache: Cache | None
    ) -> tuple[Tensor, Tensor]:
        """K and V (B', h, M, d), those of earlier steps included."""
        if cache is not None and not own and cache.tensors:
            return cache.tensors["key"], cache.tensors["value"]
        key = keys[0] if len(keys) == 1 else torch.cat(keys, 1)
        value = key
        if any(a is not b for a, b in zip(keys, values)):
            value = values[0] if len(values) == 1 else torch.cat(values, 1)
        k, v = self._heads(self.key(key)), self._heads(self.value(value))
        if cache is not None:
            k, v = cache.extend("key", k, 2), cache.extend("value", v, 2)
            cache.length = k.shape[2]
        return k, v

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (self.heads, -1)).transpose(1, 2).contiguous()

    def _attend(self, q: Tensor, u: Tensor | None, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
        rate = self.dropout if self.training else 0.0
        if not fused_wanted(q):
            return self._block(q, k, v, u, allowed, rate, None)
        features = self.heads * self.middle.out_features * q.element_size()  # bytes of a query with one key
        if not rate and len(q) * q.shape[1] * k.shape[2] * features <= _KEPT * _room():
            return self._block(q, k, v, u, allowed, rate, None)
        wide = features * max(k.shape[2:])
        optional = [tensor for tensor in (u, allowed) if tensor is not None]
        axes = [1, None, None, *([1] if u is not None else []), *([2] if allowed is not None else [])]
        cut = plan(len(q), q.shape[1], wide, axes, _room())
        if (cut.items_per_piece, cut.rows_per_piece) == (cut.batch, cut.rows):
            return self._block(q, k, v, u, allowed, rate, None)
        seed = int(torch.randint(1 << 62, ())) if rate else None

        def function(piece: Piece, parts: Sequence[Tensor]) -> Tensor:
            own_seed = None if seed is None else seed + (piece.items.start << 32) + piece.rows.start
            rest = list(parts[3:])
            own_u = None if u is None else rest.pop(0)
            return self._block(parts[0], parts[1], parts[2], own_u, rest[0] if rest else None, rate, own_seed)

        read = [m for m in (self.middle, self.spatial, self.channel) if m is not None]
        return by_blocks(function, cut, [q, k, v, *optional], read)

    def _block(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        u: Tensor | None,
        allowed: Tensor | None,
        rate: float,
        seed: int | None,
    ) -> Tensor:
        """Attended rows (b, R, D) of Q and U (b, R, D), K and V (b, h, M, d)."""
        weights, gate = self._distributions(self._heads(q), k, allowed, rate, seed)
        out = weights @ v
        if gate is not None:
            out = out * gate
        out = out.transpose(1, 2)  # (b, R, h, d)
        out = out if u is None else out * u.unflatten(-1, out.shape[2:])
        return masks.alive(out.transpose(1, 2), allowed).transpose(1, 2).flatten(2)

    def _distributions(
        self, q: Tensor, k: Tensor, allowed: Tensor | None, rate: float, seed: int | None
    ) -> tuple[Tensor, Tensor | None]:
        """β^s (b, h, R, M) and β^c (b, h, R, d); rows without keys hold anything finite."""
        share: Tensor | None = None
        if self.channel is not None and allowed is not None:
            share = allowed.to(k.dtype) / allowed.sum(-1, keepdim=True).clamp_min(1)
        if fused_wanted(q) and not rate:
            middle, spatial = self.middle, self.spatial
            logits, pooled = bilinear(q, k, share, middle.weight, middle.bias, spatial.weight, _room())
            logits = logits + spatial.bias
        else:
            of_query = (q[..., None, :] * self.middle.weight).flatten(2, 3)  # (b, h, R · c, d)
            pairs = (k @ of_query.transpose(-2, -1)).unflatten(-1, (q.shape[2], -1))  # (b, h, M, R, c)
            pairs = drop((pairs + self.middle.bias).relu(), rate, seed)
            logits = self.spatial(pairs).squeeze(-1).transpose(-2, -1)
            pooled = _pool(pairs, share)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, forbidden(logits.dtype))
        return logits.softmax(-1), None if self.channel is None else self.channel(pooled).sigmoid()


def activation_named(name: Activation, alpha: float | None = None) -> nn.Module:
    """The activation of X-LAN's authors by its name.

    Args:
        name: celu, relu, elu.
        alpha: Of CELU and ELU; 1.3 (the code's) for the former and 1 for the latter unless given.

    Raises:
        ValueError: An unknown name, or ``alpha`` not above 0.
    """
    if name not in get_args(Activation):
        raise ValueError(f"activation={name} is not one of {', '.join(get_args(Activation))}")
    if alpha is not None and alpha <= 0:
        raise ValueError(f"alpha={alpha} must be above 0")
    if name == "relu":
        return nn.ReLU()
    if name == "elu":
        return nn.ELU(1.0 if alpha is None else alpha)
    return nn.CELU(1.3 if alpha is None else alpha)


class _Embedding(nn.Module):
    """Linear map, activation, group normalisation of each token."""

    def __init__(
        self, from_dim: int, dim: int, groups: int, activation: Activation, alpha: float | None, norm: bool
    ) -> None:
        super().__init__()
        self.map = nn.Linear(from_dim, dim)
        self.activation = activation_named(activation, alpha)
        self.norm = nn.GroupNorm(groups, dim) if norm else None

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, ·) → (B, N, D)."""
        out = self.activation(self.map(tokens))
        if (norm := self.norm) is None:
            return out
        # group normalisation of vectors is layer normalisation of their parts, which is the faster kernel
        parts = F.layer_norm(
            out.unflatten(-1, (norm.num_groups, -1)), (out.shape[-1] // norm.num_groups,), eps=norm.eps
        )
        return torch.addcmul(norm.bias, parts.flatten(-2), norm.weight)


def _pool(pairs: Tensor, share: Tensor | None) -> Tensor:
    """Means (b, h, R, c) of pairs (b, h, M, R, c), weighed by shares (b or 1, h or 1, R or 1, M)."""
    if share is None:
        return pairs.mean(2)
    if share.shape[2] == 1:  # all rows pool the same keys: one product
        return (share @ pairs.flatten(3)).unflatten(-1, pairs.shape[3:]).squeeze(2)
    return (share[..., None, :] @ pairs.transpose(2, 3)).squeeze(-2)


def check_tokens(name: str, tokens: Tensor, width: int) -> None:
    """Refuse what is not (batch, tokens, width), in one sentence."""
    if tokens.ndim != 3 or tokens.shape[-1] != width:
        raise UserError(f"{name} has shape {tuple(tokens.shape)}; expected (batch, tokens, {width}).")


def _room() -> int:
    return _ROOM * torch.get_num_threads()


def _form(given: Tokens | Mask) -> str:
    return "one tensor" if isinstance(given, Tensor) else "a list"


def check_rates(**rates: float) -> None:
    """Refuse rates outside [0, 1) (``ValueError``)."""
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise ValueError(f"{name}={rate} must be at least 0 and below 1")


def _side_by_side(wide: Sequence[Tensor | None], counts: Sequence[int]) -> Tensor | None:
    """One mask of several memories' masks, none where nothing is forbidden."""
    some = next((m for m in wide if m is not None), None)
    if some is None or len(wide) == 1:
        return some
    shape = torch.broadcast_shapes(*(m.shape[:3] for m in wide if m is not None))
    full = [some.new_ones(()) if m is None else m for m in wide]
    return torch.cat([m.expand(*shape, count) for m, count in zip(full, counts)], -1)


MECHANISMS = (
    Mechanism(
        name="xlinear",
        build=XLinear,
        sockets=("token", "fusion"),
        summary="bilinear pooling of query and keys weighs places and channels",
        paper="Pan et al., X-LAN, CVPR 2020",
        equations="2–6",
    ),
)
