"""Multi-head scaled dot-product attention over tokens, with every size free and a list of score terms.

Vaswani et al., "Attention Is All You Need" (2017), §3.2; the mechanisms of the five papers are its terms
(:mod:`vlplatform.attention.score_term`). Shapes: B batch, h heads, N queries, M keys, D model width.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform.attention import masks
from vlplatform.attention.cache import Cache
from vlplatform.attention.kernels import flex, fused_wanted, path
from vlplatform.attention.kernels.blocks import Piece, by_blocks, drop, plan
from vlplatform.attention.score_term import Block, Call, Depth, Operand, ScoreTerm, Sizes, forbidden
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry

Scale = Literal["head", "model"]
_POINTS = ("modulate", "bias", "visible", "weights", "output")
_ROOM = 1 << 22  # bytes of a block per thread: it stays in the cache
_SMALL = 4  # so many blocks' bytes are quicker kept than computed twice
_FEW = 32  # keys up to which plain steps train faster on a CPU than PyTorch's fused attention (1.5 to 2.5 times at 15)


class MultiHeadAttention(nn.Module):
    """``W_o concat_i softmax(q_i k_iᵀ / √d) v_i``, and what its terms make of it.

    A row without any key allowed gives zeros, also after the output projection, and no gradient.

    Args:
        dim: Model width D.
        heads: Heads h.
        head_dim: Width of one head's query, key and value; D / h unless given.
        key_dim: Width of one head's query and key, where it differs.
        bias: The four projections have biases.
        scale: Logits are divided by the root of the head's width or of the model's (NG-SAN, MD-SAN and ACF print the
            model's; MD-SAN's code, as all public code here, takes the head's).
        dropout: Rate at which attention weights are dropped.
        memory_dim: Width of the keys' tokens, D unless given.
        terms: Score terms in the order in which they act: classes, or anything else that makes one from the sizes
            (``functools.partial(Bilateral, window=5)``), or terms made with :func:`sizes_of`.

    Raises:
        ValueError: ``dim`` is not divisible by ``heads`` and no head size is given, or terms that exclude each other.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        head_dim: int | None = None,
        key_dim: int | None = None,
        bias: bool = True,
        scale: Scale = "head",
        dropout: float = 0.0,
        memory_dim: int | None = None,
        terms: Sequence[ScoreTerm | Callable[[Sizes], ScoreTerm]] = (),
    ) -> None:
        super().__init__()
        self.sizes = sizes_of(dim, heads, head_dim, key_dim, scale, memory_dim)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must be at least 0 and below 1")
        made = [term if isinstance(term, ScoreTerm) else term(self.sizes) for term in terms]
        check_together(made)
        self.dropout = dropout
        self.scale = self.sizes.scale
        self.query = nn.Linear(dim, heads * self.sizes.key_dim, bias=bias)
        self.key = nn.Linear(memory_dim or dim, heads * self.sizes.key_dim, bias=bias)
        self.value = nn.Linear(memory_dim or dim, heads * self.sizes.value_dim, bias=bias)
        self.output = nn.Linear(heads * self.sizes.value_dim, dim, bias=bias)
        self.terms = nn.ModuleList(made)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        geometry: Geometry | tuple[Geometry, Geometry] | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        cache: Cache | None = None,
        query_mask: Tensor | None = None,
        depth: Depth | None = None,
    ) -> Tensor:
        """Attended tokens (B, N, D).

        Args:
            query: (B, N, D).
            key: (B, M, memory width); the queries themselves unless given. Its batch may divide that of the queries
                (B = r · B', as with r captions or beams per image): keys are then projected once.
            value: As ``key``, which it is unless given.
            geometry: Of the tokens, or of queries and keys, for terms that need it.
            mask: Booleans, true where a key may be attended to: (B, M), (B, N, M) or (B, h or 1, N or 1, M).
            causal: A query attends to no later key.
            cache: What earlier steps of a decoder left; the query then holds the new tokens only.
            query_mask: (B, N) booleans, true where a query is real, for terms with statistics over queries; in
                self-attention it follows from a mask (B, M).
            depth: What the layers of a stack share.

        Raises:
            UserError: A width, shape or type that does not fit, or geometry missing.
        """
        if isinstance(key, Tensor) and key.ndim == 3 and not key.shape[1]:
            return torch.zeros_like(query)
        flexes = self._flexes(query, query if key is None else key, geometry, cache)
        call, projected = self._prepare(
            query, key, value, geometry, mask, causal, cache, query_mask, depth, with_causality=not flexes
        )
        if flexes:
            attended, seen = self._flexed(call, projected)
            operands: list[dict[str, Operand]] = []
        else:
            operands, seen = self._operands(call, projected), None
            attended = self._attend(call, projected, operands)
        if attended.shape[0] != query.shape[0]:
            attended = attended.unflatten(1, (-1, query.shape[1])).flatten(0, 1)
        out = self.output(attended)
        if call.masked:  # else each query sees itself at least
            seen = self._seen(call, operands).any(-1) if seen is None else seen
            dead = (~seen).all(1)[..., None]  # (B or 1, N or 1, 1): no head has any key
            if dead.shape[0] not in (1, out.shape[0]):
                dead = dead.repeat_interleave(out.shape[0] // dead.shape[0], 0)
            out = out.masked_fill(dead, 0)
        return out

    def _seen(self, call: Call, operands: list[dict[str, Operand]]) -> Tensor:
        """What the mask, causality and the terms allow together."""
        seen = call.allowed
        assert seen is not None
        for term, own in zip(self._terms(), operands):
            if term.acts("visible"):
                tensors = {name: operand.tensor for name, operand in own.items()}
                sight = term.visible(_block_of(call, 0, call.query.shape[1], seen, tensors))
                seen = seen if sight is None else seen & sight
        return seen

    def attention_weights(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, **rest: Any
    ) -> Tensor:
        """The probabilities (B, h, N, M) of a call with these arguments, by the plain path; rows without keys are 0."""
        call, (q, k, v), operands = self._looked(query, key, value, rest)
        kept: list[Tensor] = []
        self._block(call, 0, (q, k, v, call.allowed), operands, 0.0, kept=kept)
        return kept[0]

    def attention_parts(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, **rest: Any
    ) -> dict[str, Tensor]:
        """What each summand of the logits alone would attend to: name → probabilities (B or 1, h or 1, N, M).

        ``content`` is the product of queries and keys; each term that adds to the logits has its own name. Rows without
        keys are 0.
        """
        call, (q, k, _), operands = self._looked(query, key, value, rest)
        summands, allowed = {"content": (q * self.scale) @ k.transpose(-2, -1)}, call.allowed
        for term, own in zip(self._terms(), operands):
            block = _block_of(call, 0, q.shape[2], call.allowed, own)
            if term.acts("bias"):
                summands[term.name] = term.bias(block)
            if term.acts("visible"):
                allowed = masks.both(allowed, term.visible(block))
        parts: dict[str, Tensor] = {}
        for name, logits in summands.items():
            seen = logits if allowed is None else logits.masked_fill(~allowed, forbidden(logits.dtype))
            parts[name] = masks.alive(seen.softmax(-1), allowed)
        return parts

    def _looked(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, rest: dict[str, Any]
    ) -> tuple[Call, tuple[Tensor, Tensor, Tensor], list[dict[str, Tensor]]]:
        """A call made ready to be looked at, which changes neither its cache nor its depth."""
        given = {"value": value, "geometry": None, "mask": None, "causal": False, "cache": None}
        given |= {"query_mask": None, "depth": None} | rest
        if given["cache"] is not None:
            given["cache"] = given["cache"].copy()
        if given["depth"] is not None:
            given["depth"] = given["depth"].copy()
        call, projected = self._prepare(query, key, **given)
        operands = self._operands(call, projected)
        return call, projected, [{name: operand.tensor for name, operand in own.items()} for own in operands]

    def macs(self, queries: int, keys: int | None = None) -> int:
        """Multiply–adds for one item with N queries and M keys (as many as queries unless given)."""
        keys = queries if keys is None else keys
        maps = (
            queries * self.query.weight.numel()
            + keys * (self.key.weight.numel() + self.value.weight.numel())
            + queries * self.output.weight.numel()
        )
        products = self.sizes.heads * queries * keys * (self.sizes.key_dim + self.sizes.value_dim)
        return maps + products + sum(term.macs(queries, keys) for term in self._terms())

    def _terms(self) -> list[ScoreTerm]:
        return cast("list[ScoreTerm]", list(self.terms.children()))

    def _prepare(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        geometry: Geometry | tuple[Geometry, Geometry] | None,
        mask: Tensor | None,
        causal: bool,
        cache: Cache | None,
        query_mask: Tensor | None,
        depth: Depth | None,
        *,
        with_causality: bool = True,
    ) -> tuple[Call, tuple[Tensor, Tensor, Tensor]]:
        self._check(query, key, value)
        own, depth = key is None, depth or Depth()
        batch, queries, _ = query.shape
        first = cache.length if cache is not None and own else 0
        keys = first + queries if key is None else key.shape[1]
        groups = 1 if key is None else batch // key.shape[0]
        pair = self._pair(geometry, (batch, queries), (batch // groups, keys), own, query, depth)
        wide = None if mask is None else masks.check(mask, batch // groups, self.sizes.heads, queries, keys)
        # one row for all queries is padding; of a single query it may be what this one must not see
        of_keys = mask is not None and (mask.ndim == 2 or queries > 1)
        real_key: Tensor | None = None
        if wide is not None and of_keys and wide.shape[1] == 1 and wide.shape[2] == 1:
            real_key = wide[:, 0, 0].expand(batch // groups, -1)
        real_query = real_key[:, first:] if own and query_mask is None and real_key is not None else query_mask
        if real_query is not None and (real_query.shape != query.shape[:2] or real_query.dtype != torch.bool):
            raise UserError(
                f"query_mask has shape {tuple(real_query.shape)} and type {real_query.dtype}; expected booleans "
                f"of shape {tuple(query.shape[:2])}."
            )
        key = query if key is None else key
        value = None if value is key else value
        new = None if real_key is None else real_key[:, first:] if own else real_key
        if new is not None and key.shape[1] == new.shape[1]:  # whatever stands in padding, NaN even, has weight 0
            if own:  # its own output is nobody's concern, but NaN would reach the maps' gradients
                query = query.masked_fill(~new[..., None] & ~query.isfinite(), 0)
            key = key.masked_fill(~new[..., None], 0)
            value = None if value is None else value.masked_fill(~new[..., None], 0)
        value = key if value is None else value
        for term in self._terms():
            if term.acts("embed"):
                of_new = pair and pair[0 if own else 1]  # a cache holds the other keys with what was added to them
                at_key = term.embed(key, of_new, depth)
                query = term.embed(query, pair[0] if pair else None, depth)
                value, key = (at_key if value is key else value), at_key
        allowed = wide
        if causal and with_causality and first + 1 < keys:  # the last token sees all
            allowed = masks.both(wide, masks.causal(queries, keys, first, query.device)[None, None])
        call = Call(
            query, key, keys, own, causal, first, real_query, real_key, mask is not None, allowed, pair, cache, depth
        )
        q, k, v = self._project(call, value)
        if groups > 1:
            if self.terms or (wide is not None and wide.shape[2] > 1) or causal:
                k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
                call = _repeated(call, groups)
            else:  # the queries of one memory side by side: nothing is copied
                q = q.unflatten(0, (-1, groups)).transpose(1, 2).flatten(2, 3)
        return call, (q, k, v)

    def _operands(self, call: Call, projected: tuple[Tensor, Tensor, Tensor]) -> list[dict[str, Operand]]:
        return [dict(term.prepare(call, projected[0], projected[1])) for term in self._terms()]

    def _flexes(
        self, query: Tensor, key: Tensor, geometry: Geometry | tuple[Geometry, Geometry] | None, cache: Cache | None
    ) -> bool:
        """Whether the call takes :mod:`~vlplatform.attention.kernels.flex`: all terms that act on logits allow it."""
        if not (isinstance(query, Tensor) and isinstance(key, Tensor) and query.ndim == key.ndim == 3):
            return False  # refused in a moment
        if not flex.wanted(query, key.shape[1], (self.sizes.key_dim, self.sizes.value_dim)):
            return False
        acting = [term for term in self._terms() if any(term.acts(point) for point in _POINTS)]
        pair = geometry if isinstance(geometry, tuple) else (geometry,)
        moving = any(
            isinstance(part, Geometry) and part.points.requires_grad for part in pair
        )  # no gradient at 0 there
        kept = cache is not None or (self.dropout and self.training)
        return bool(acting) and all(term.pairs() for term in acting) and not (moving or kept)

    def _flexed(self, call: Call, projected: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The heads' outputs side by side, (B, N, h · value width), and which rows have a key, (B, h, N)."""
        pairs = [pair for term in self._terms() if (pair := term.pairwise(call)) is not None]
        sights = [pair.visible for pair in pairs if pair.visible is not None]
        queries, device = call.query.shape[1], call.query.device
        seen = call.once(
            ("blocks", queries, call.keys, call.causal, device),
            lambda: flex.blocks(queries, call.keys, sights, call.causal, device),
            *sights,
        )
        out, alive = flex.attend(*projected, pairs, mask=call.allowed, seen=seen, scale=self.scale)
        return out.transpose(1, 2).flatten(2), alive

    def _project(self, call: Call, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self._heads(self.query(call.query))
        cache = call.cache
        if cache is not None and not call.own and cache.tensors:
            k, v = cache.tensors["key"], cache.tensors["value"]
            for term in self._terms():
                if term.acts("project"):
                    q, _ = term.project(q, k, call)
            return q, k, v
        k, v = self._heads(self.key(call.key)), self._heads(self.value(value))
        for term in self._terms():
            if term.acts("project"):
                q, k = term.project(q, k, call)
        if cache is not None:
            k, v = cache.extend("key", k, 2), cache.extend("value", v, 2)
            cache.length, cache.share = k.shape[2], 1 if call.own else call.query.shape[0] // k.shape[0]
            cache.memory = not call.own
        return q, k, v

    def _heads(self, rows: Tensor) -> Tensor:
        heads = self.sizes.heads  # ``unflatten`` takes longer
        return rows.view(*rows.shape[:-1], heads, rows.shape[-1] // heads).transpose(1, 2)

    def _attend(
        self, call: Call, projected: tuple[Tensor, Tensor, Tensor], operands: list[dict[str, Operand]]
    ) -> Tensor:
        """The heads' outputs side by side, (B, N, h · value width)."""
        q, k, v = projected
        terms = [term for term in self._terms() if any(term.acts(point) for point in _POINTS)]
        dropped = self.dropout if self.training else 0.0
        if not terms and _few(call, q):
            return self._block(call, 0, (q, k, v, call.allowed), [{} for _ in operands], dropped, quick=True)
        if not terms and path() != "plain":
            bare = call.causal and call.own and call.first == 0 and not call.masked
            out = F.scaled_dot_product_attention(
                q, k, v, None if bare else call.allowed, dropout_p=dropped, is_causal=bare, scale=self.scale
            )
            return masks.alive(out, None if bare else call.allowed).transpose(1, 2).flatten(2)
        whole = [{name: operand.tensor for name, operand in own.items()} for own in operands]
        additive = not any(term.acts(point) for term in terms for point in ("modulate", "weights", "output"))
        step = additive and q.shape[2] == 1 and not torch.is_grad_enabled()  # one query's logits are no burden
        if terms and fused_wanted(q) and not step:
            if self._bytes(call, q, operands) <= _SMALL * _ROOM * torch.get_num_threads():
                return self._block(call, 0, (q, k, v, call.allowed), whole, dropped, quick=True)
            return self._by_blocks(call, projected, operands, dropped)
        if path() != "plain" and additive:
            bias, allowed = self._dense_bias(call, operands, q)
            out = F.scaled_dot_product_attention(q, k, v, bias, dropout_p=dropped, scale=self.scale)
            return masks.alive(out, allowed).transpose(1, 2).flatten(2)
        return self._block(call, 0, (q, k, v, call.allowed), whole, dropped)

    def _bytes(self, call: Call, q: Tensor, operands: list[dict[str, Operand]]) -> int:
        """What the logits of a call take, and what its terms hold beside them."""
        floats = self.sizes.heads * q.shape[0] * call.keys
        for term, own in zip(self._terms(), operands):
            floats += term.floats(call.keys) * min((operand.tensor.shape[0] for operand in own.values()), default=1)
        return floats * q.shape[2] * q.element_size()

    def _by_blocks(
        self,
        call: Call,
        projected: tuple[Tensor, Tensor, Tensor],
        operands: list[dict[str, Operand]],
        dropped: float,
    ) -> Tensor:
        q, k, v = projected
        entries = [(i, name, operand) for i, own in enumerate(operands) for name, operand in own.items()]
        tensors, axes = [q, k, v], [2, None, None]
        if call.allowed is not None:
            tensors, axes = [*tensors, call.allowed], [*axes, 2]
        fixed = len(tensors)
        seed = int(torch.randint(1 << 62, ())) if dropped else None

        def function(piece: Piece, parts: Sequence[Tensor]) -> Tensor:
            owned: list[dict[str, Tensor]] = [{} for _ in operands]
            for (i, name, _), part in zip(entries, parts[fixed:], strict=True):
                owned[i][name] = part
            allowed = parts[3] if fixed == 4 else None
            own_seed = None if seed is None else seed + (piece.items.start << 32) + piece.rows.start
            return self._block(
                call,
                piece.rows.start,
                (parts[0], parts[1], parts[2], allowed),
                owned,
                dropped,
                seed=own_seed,
                quick=True,
            )

        floats = [(term.floats(call.keys), own) for term, own in zip(self._terms(), operands)]
        common = [any(len(operand.tensor) < len(q) for operand in own.values()) for _, own in floats]
        width = q.element_size()
        cut = plan(
            len(q),
            q.shape[2],
            width * (self.sizes.heads * call.keys + sum(n for (n, _), all_ in zip(floats, common) if not all_)),
            [*axes, *(operand.rows for _, _, operand in entries)],
            _ROOM * torch.get_num_threads(),
            width * sum(n for (n, _), all_ in zip(floats, common) if all_),
        )
        own_tensors = [operand.tensor for _, _, operand in entries]
        return by_blocks(function, cut, [*tensors, *own_tensors], self._terms())

    def _dense_bias(
        self, call: Call, operands: list[dict[str, Operand]], q: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """All biases and masks, (B or 1, h or 1, N, M), where a forbidden key has the least number; the masks alone."""
        total, allowed = None, call.allowed
        for term, own in zip(self._terms(), operands):
            block = _block_of(
                call, 0, q.shape[2], call.allowed, {name: operand.tensor for name, operand in own.items()}
            )
            if term.acts("bias"):
                bias = term.bias(block).to(q.dtype)
                total = bias if total is None else total + bias
            if term.acts("visible"):
                allowed = masks.both(allowed, term.visible(block))
        if allowed is not None:
            total = q.new_zeros(1, 1, 1, call.keys) if total is None else total
            total = total.masked_fill(~allowed, forbidden(q.dtype))
        return total, allowed

    def _block(
        self,
        call: Call,
        first: int,
        tensors: tuple[Tensor, Tensor, Tensor, Tensor | None],
        operands: Sequence[dict[str, Tensor]],
        dropped: float,
        *,
        kept: list[Tensor] | None = None,
        seed: int | None = None,
        quick: bool = False,
    ) -> Tensor:
        """The outputs (b, R, h · value width) of a block whose first query is the call's query ``first``."""
        q, k, v, allowed = tensors
        acting = [
            (term, _block_of(call, first, q.shape[2], allowed, own)) for term, own in zip(self._terms(), operands)
        ]
        logits = (q * self.scale) @ k.transpose(-2, -1)
        for term, block in acting:
            if term.acts("modulate"):
                logits = term.modulate(logits, block)
        for term, block in acting:
            if term.acts("bias"):
                logits = term.add(logits, block) if quick else logits + term.bias(block)
            if term.acts("visible"):
                allowed = masks.both(allowed, term.visible(block))
        if allowed is not None:
            logits = logits.masked_fill(~allowed, forbidden(logits.dtype))
        acting = [(term, dataclasses.replace(block, allowed=allowed)) for term, block in acting]
        weights = logits.softmax(-1)
        for term, block in acting:
            if term.acts("weights"):
                weights = term.weights(weights, block)
        if kept is not None:
            kept.append(masks.alive(weights, allowed))
        weights = drop(weights, dropped, seed).to(v.dtype)
        out = weights @ v
        for term, block in acting:
            if term.acts("output"):
                out = out + term.output(weights, block)
        return masks.alive(out, allowed).transpose(1, 2).flatten(2)

    def _check(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> None:
        for name, tokens, width in (
            ("query", query, self.query.in_features),
            ("key", key, self.key.in_features),
            ("value", value, self.value.in_features),
        ):
            if tokens is not None and not isinstance(tokens, Tensor):
                raise UserError(f"{name} is a {type(tokens).__name__}; expected one tensor (batch, tokens, {width}).")
            if tokens is not None and (tokens.ndim != 3 or tokens.shape[-1] != width):
                raise UserError(f"{name} has shape {tuple(tokens.shape)}; expected (batch, tokens, {width}).")
        if key is None and self.key.in_features != self.query.in_features:
            raise UserError(
                f"key was not given, and queries of width {self.query.in_features} cannot be the keys of memory_dim="
                f"{self.key.in_features}: give key=…."
            )
        if key is None and value is not None:
            raise UserError("value was given without key: give both, or neither for self-attention.")
        if key is not None:
            if not key.shape[0] or query.shape[0] % key.shape[0]:
                raise UserError(
                    f"query has a batch of {query.shape[0]}, key of {key.shape[0]}; expected a divisor of it."
                )
            if value is not None and value.shape[:2] != key.shape[:2]:
                raise UserError(
                    f"value has shape {tuple(value.shape)}; expected batch and tokens of key, {tuple(key.shape)}."
                )

    def _pair(
        self,
        geometry: Geometry | tuple[Geometry, Geometry] | None,
        queries: tuple[int, int],
        keys: tuple[int, int],
        own: bool,
        like: Tensor,
        depth: Depth,
    ) -> tuple[Geometry, Geometry] | None:
        """The geometry of queries and of keys, each given as (items, tokens); the same objects in all layers."""
        if geometry is None:
            return None
        pair = (geometry, geometry) if isinstance(geometry, Geometry) else geometry
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, Geometry) for part in pair)):
            raise UserError(
                f"geometry is a {type(geometry).__name__}; expected a Geometry (Geometry.from_boxes, .from_points, "
                ".from_grid) or a pair of them, of queries and of keys."
            )
        for name, part, (items, tokens) in (("queries", pair[0], queries), ("keys", pair[1], keys)):
            if part.points.shape[1] != tokens:
                same = own and queries[1] == keys[1]
                hint = "" if same else " (queries and keys differ: give a pair, geometry=(of_queries, of_all_keys))"
                raise UserError(f"geometry has {len(part)} tokens; expected the {tokens} {name}{hint}.")
            if part.points.shape[0] not in (1, items, keys[0]):
                raise UserError(f"geometry has a batch of {len(part.points)}; expected 1 or the {items} of the {name}.")
        of_query, of_key = (
            depth.once(("geometry", like.dtype, like.device), functools.partial(part.to, like), part) for part in pair
        )
        return of_query, of_key


def _few(call: Call, q: Tensor) -> bool:
    """Whether plain steps are the faster ones: few keys, many queries, a gradient, on a CPU."""
    short = q.shape[2] > 1 and call.keys <= _FEW and q.requires_grad
    return short and path() == "auto" and fused_wanted(q)


def sizes_of(
    dim: int,
    heads: int,
    head_dim: int | None = None,
    key_dim: int | None = None,
    scale: Scale = "head",
    memory_dim: int | None = None,
) -> Sizes:
    """The sizes of attention with these settings.

    Raises:
        ValueError: ``dim`` is not divisible by ``heads`` without a head size, a size below 1, or an unknown scale.
    """
    if scale not in get_args(Scale):
        raise ValueError(f"scale={scale} is not one of {', '.join(get_args(Scale))}")
    if dim < 1 or heads < 1:
        raise ValueError(f"dim={dim} and heads={heads} must be at least 1")
    if head_dim is None:
        if dim % heads:
            raise ValueError(f"dim={dim} is not divisible by heads={heads}; choose another number or give head_dim")
        head_dim = dim // heads
    if head_dim < 1 or (key_dim is not None and key_dim < 1):
        raise ValueError(f"head_dim={head_dim} and key_dim={key_dim} must be at least 1")
    key_dim = head_dim if key_dim is None else key_dim
    factor = (key_dim if scale == "head" else dim) ** -0.5
    return Sizes(dim, heads, key_dim, head_dim, factor, memory_dim or dim)


def check_together(terms: Sequence[ScoreTerm]) -> None:
    """Refuse lists of terms that make no sense, with the reason (``ValueError``)."""
    for i, term in enumerate(terms):
        for other in terms[:i]:
            if type(term) is type(other):
                raise ValueError(f"the term {term.name} stands twice in the list")
            if term.exclusive and term.exclusive == other.exclusive:
                raise ValueError(f"{other.name} and {term.name} cannot be combined: both are {term.exclusive}")
            if {term.causal_calls, other.causal_calls} >= {True, False}:
                causal, never = (term, other) if term.causal_calls else (other, term)
                raise ValueError(
                    f"{causal.name} and {never.name} cannot be combined: with these settings {causal.name} is for "
                    f"causal calls alone, and {never.name} for none of them"
                )


def _block_of(call: Call, first: int, rows: int, allowed: Tensor | None, operands: dict[str, Tensor]) -> Block:
    return Block(first, rows, call.keys, call.first, call.causal, allowed, operands, call.query.device)


def _repeated(call: Call, groups: int) -> Call:
    """The call with what belongs to the keys repeated for each of the queries that share them."""

    def each(tensor: Tensor) -> Tensor:
        return tensor if tensor.shape[0] in (1, call.query.shape[0]) else tensor.repeat_interleave(groups, 0)

    def maybe(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else each(tensor)

    def of(g: Geometry) -> Geometry:
        return Geometry(each(g.points), maybe(g.boxes), g.grid, maybe(g.extent))

    pair = None if call.geometry is None else (of(call.geometry[0]), of(call.geometry[1]))
    key = call.key.repeat_interleave(groups, 0)
    return dataclasses.replace(call, key=key, real_key=maybe(call.real_key), allowed=maybe(call.allowed), geometry=pair)
