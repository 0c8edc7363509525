"""Slow, obvious attention over tokens: one loop over items and queries, straight from the equations.

A module lends its weights and nothing else. Padding is cut away before anything is computed, so that agreement with it
proves that padding counts nowhere. The terms of boxes are in ``token_geometry``, those of places in a
sequence or a grid in ``token_places``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
EPSILON = 1e-5


@dataclass(frozen=True)
class Inputs:
    """What an attention module is called with. Arrays; B batch, N queries, M keys.

    ``boxes`` and ``points`` are those of the queries and of the keys; ``mask`` is (B, M) or (B, h, N, M).
    """

    query: Array
    key: Array | None = None
    value: Array | None = None
    mask: Array | None = None
    query_mask: Array | None = None
    causal: bool = False
    boxes: tuple[Array, Array] | None = None
    points: tuple[Array, Array] | None = None
    grid: tuple[int, int] | None = None
    size: Array | None = None

    def real_keys(self, item: int) -> list[int]:
        tokens = self.query if self.key is None else self.key
        if self.mask is None or self.mask.ndim == 4:
            return list(range(tokens.shape[1]))
        return [j for j in range(tokens.shape[1]) if self.mask[item, j]]

    def real_queries(self, item: int) -> list[int]:
        if self.key is None and self.query_mask is None:
            return self.real_keys(item)
        return [i for i in range(self.query.shape[1]) if self.query_mask is None or self.query_mask[item, i]]


@dataclass
class Tokens:
    """The real tokens of one item, with the places that they had in the padded sequence."""

    places: list[int]
    rows: Array
    points: Array | None = None
    boxes: Array | None = None
    extent: Array | None = None


@dataclass(frozen=True)
class Row:
    """One query, the vector of each of its heads, and the real keys that it may attend to (indices into ``keys``)."""

    item: int
    i: int
    query: Tokens
    keys: Tokens
    q: Array
    allowed: list[int]

    @property
    def place(self) -> int:
        return self.query.places[self.i]

    @property
    def key_places(self) -> list[int]:
        return [self.keys.places[j] for j in self.allowed]


class Term:
    """What a mechanism changes. Logits and weights are (heads, keys allowed)."""

    def embed(self, tokens: Tokens) -> Array:
        return tokens.rows

    def project(self, q: list[Array], k: list[Array]) -> tuple[list[Array], list[Array]]:
        return q, k

    def begin(self, queries: list[Tokens], keys: list[Tokens]) -> None: ...

    def sees(self, place: int, key_place: int) -> bool:
        return True

    def modulate(self, logits: Array, row: Row) -> Array:
        return logits

    def bias(self, logits: Array, row: Row) -> Array:
        """Logits with what is added to them, after all terms have changed those of the content."""
        return logits

    def weights(self, weights: Array, row: Row) -> Array:
        return weights

    def output(self, weights: Array, row: Row) -> Array | float:
        return 0.0


def array(parameter: Any) -> Array:
    return parameter.detach().numpy()


def linear(layer: Any, x: Array) -> Array:
    y = x @ array(layer.weight).T
    return y if layer.bias is None else y + array(layer.bias)


def softmax(logits: Array) -> Array:
    """Of one row; keys at −∞ have no weight, and where all are there is none at all."""
    if not len(logits) or np.isneginf(logits.max()):
        return np.zeros_like(logits)
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def cut(inputs: Inputs, rows: Array, places: list[int], item: int, side: int) -> Tokens:
    """The tokens of one item without padding."""

    def of(values: Array | None) -> Array | None:
        return None if values is None else values[item if len(values) > 1 else 0][places]

    boxes = of(None if inputs.boxes is None else inputs.boxes[side])
    points = of(None if inputs.points is None else inputs.points[side])
    extent = None if inputs.size is None else inputs.size[item if len(inputs.size) > 1 else 0]
    if inputs.grid is not None:
        corners = np.array([(place % inputs.grid[1], place // inputs.grid[1]) for place in places], float).reshape(
            -1, 2
        )
        boxes, extent = np.concatenate((corners, corners + 1), -1), np.array(inputs.grid[::-1], float)
        points = corners
    elif boxes is not None:
        points = (boxes[:, :2] + boxes[:, 2:]) / 2
    return Tokens(places, rows[item][places], points, boxes, extent)


def attend(module: Any, inputs: Inputs, terms: Sequence[Term] = (), *, scale: str = "head") -> Array:
    """``W_o concat_h softmax(q_h k_hᵀ / √d) v_h`` and its terms, in the order of the list; zeros without any key."""
    heads, batch = module.sizes.heads, len(inputs.query)
    memory = inputs.query if inputs.key is None else inputs.key
    repeats = batch // len(memory)
    queries = [cut(inputs, inputs.query, inputs.real_queries(b), b, 0) for b in range(batch)]
    keys = [cut(inputs, memory, inputs.real_keys(b), b, 1) for b in range(len(memory))]
    for term in terms:
        for tokens in (*queries, *keys):
            tokens.rows = term.embed(tokens)
    values = [tokens.rows for tokens in keys]
    if inputs.value is not None:
        values = [inputs.value[b][tokens.places] for b, tokens in enumerate(keys)]
    q, k, v = (
        [linear(layer, rows).reshape(len(rows), heads, len(layer.weight) // heads) for rows in many]
        for layer, many in (
            (module.query, [tokens.rows for tokens in queries]),
            (module.key, [tokens.rows for tokens in keys]),
            (module.value, values),
        )
    )
    for term in terms:
        q, k = term.project(q, k)
    for term in terms:
        term.begin(queries, keys)
    root = np.sqrt(q[0].shape[-1] if scale == "head" else inputs.query.shape[-1])
    out = np.zeros((batch, inputs.query.shape[1], module.output.weight.shape[0]))
    for b, tokens in enumerate(queries):
        own = keys[b // repeats]
        for i, place in enumerate(tokens.places):
            allowed = [
                j
                for j, key_place in enumerate(own.places)
                if (not inputs.causal or key_place <= place) and all(term.sees(place, key_place) for term in terms)
            ]
            forbidden = np.zeros((heads, len(allowed)), bool)
            if inputs.mask is not None and inputs.mask.ndim == 4:
                wide = np.broadcast_to(inputs.mask, (len(memory), heads, inputs.query.shape[1], memory.shape[1]))
                forbidden = ~wide[b // repeats, :, place][:, [own.places[j] for j in allowed]]
                some = ~forbidden.all(0)
                allowed, forbidden = [j for j, any_head in zip(allowed, some) if any_head], forbidden[:, some]
            if not allowed:
                continue
            row = Row(b, i, tokens, own, q[b][i], allowed)
            logits = np.stack([k[b // repeats][allowed, head] @ row.q[head] / root for head in range(heads)])
            for term in terms:
                logits = term.modulate(logits, row)
            for term in terms:
                logits = term.bias(logits, row)
            logits = np.where(forbidden, -np.inf, logits)
            weights = np.stack([softmax(line) for line in logits])
            for term in terms:
                weights = term.weights(weights, row)
            mixed = np.stack([weights[head] @ v[b // repeats][allowed, head] for head in range(heads)])
            for term in terms:
                mixed = mixed + term.output(weights, row)
            out[b, place] = linear(module.output, mixed.reshape(1, -1))[0]
    return out


def sa(module: Any, inputs: Inputs, *, scale: str = "head") -> Array:
    return attend(module, inputs, scale=scale)


class Normalised(Term):
    """NG-SAN, eq. 5–7, with the layer and batch norms of its table 2."""

    def __init__(self, term: Any, norm: str, on: str, training: bool = False) -> None:
        self.norm, self.training = norm, training
        self.layers = {"query": (term.query,), "key": (term.key,), "both": (term.query, term.key)}[on]
        self.on = on
        self.buffers = [self._running(layer) for layer in self.layers] if norm == "batch" else []

    @staticmethod
    def _running(layer: Any) -> dict[str, Array]:
        return {name: array(getattr(layer, name)).copy() for name in ("running_mean", "running_var")}

    def project(self, q: list[Array], k: list[Array]) -> tuple[list[Array], list[Array]]:
        if self.on == "query":
            return self.normalise(0, q), k
        if self.on == "key":
            return q, self.normalise(0, k)
        return self.normalise(0, q), self.normalise(1, k)

    def normalise(self, which: int, items: list[Array]) -> list[Array]:
        """Each item is (tokens, heads, d)."""
        done = [x.copy() for x in items]
        if self.norm == "instance":
            for b, x in enumerate(items):
                for head, channel in np.ndindex(x.shape[1:]):
                    if len(x):
                        done[b][:, head, channel] = standard(x[:, head, channel], x[:, head, channel])
        elif self.norm == "layer":
            for b, x in enumerate(items):
                for t in range(len(x)):
                    done[b][t] = standard(x[t], x[t])
        else:
            self.by_batch(self.buffers[which], items, done)
        layer = self.layers[which]
        if layer.weight is not None:
            gain, offset = array(layer.weight)[:, 0], array(layer.bias)[:, 0]
            done = [x * gain + offset for x in done]
        return done

    def by_batch(self, running: dict[str, Array], items: list[Array], done: list[Array]) -> None:
        every = np.concatenate(items)
        for head, channel in np.ndindex(every.shape[1:]):
            at = (head, 0, channel)
            values = every[:, head, channel]
            for b, x in enumerate(items):
                if not self.training:
                    mean, variance = running["running_mean"][at], running["running_var"][at]
                    done[b][:, head, channel] = (x[:, head, channel] - mean) / np.sqrt(variance + EPSILON)
                elif len(x):
                    done[b][:, head, channel] = standard(x[:, head, channel], values)
            if self.training and len(values):
                unbiased = values.var(ddof=1) if len(values) > 1 else values.var()
                running["running_mean"][at] = 0.9 * running["running_mean"][at] + 0.1 * values.mean()
                running["running_var"][at] = 0.9 * running["running_var"][at] + 0.1 * unbiased


def standard(x: Array, of: Array) -> Array:
    """``x`` by the mean and the biased variance of a set of numbers."""
    return (x - of.mean()) / np.sqrt(((of - of.mean()) ** 2).mean() + EPSILON)


def nsa(module: Any, inputs: Inputs, *, norm: str = "instance", on: str = "query") -> tuple[Array, list[dict]]:
    """The output, and the running statistics after the call."""
    term = Normalised(module.terms[0], norm, on, module.training)
    return attend(module, inputs, [term]), term.buffers


class MixedHeads(Term):
    """Shazeer et al.: logits, and weights, are linear mixtures of those of all heads."""

    def __init__(self, term: Any) -> None:
        self.before, self.after = (None if x is None else array(x) for x in (term.before, term.after))

    def modulate(self, logits: Array, row: Row) -> Array:
        return logits if self.before is None else self.mixed(self.before, logits)

    def weights(self, weights: Array, row: Row) -> Array:
        return weights if self.after is None else self.mixed(self.after, weights)

    @staticmethod
    def mixed(matrix: Array, maps: Array) -> Array:
        return np.stack([sum(matrix[to, of] * maps[of] for of in range(len(maps))) for to in range(len(maps))])


def talking_heads(module: Any, inputs: Inputs) -> Array:
    return attend(module, inputs, [MixedHeads(module.terms[0])])


def multi_branch(
    module: Any, inputs: Inputs, branch: Any, *, form: str, drop: float = 0.0, draws: Array | None = None
) -> Array:
    """MD-SAN, eq. 9–11, of ``branch(module, inputs)``; with ``draws`` as in training.

    The code's form has a residual and a norm in each branch.
    """
    total = np.zeros_like(inputs.query)
    for j, own in enumerate(module.branches):
        out = branch(own, inputs)
        if form == "code":
            out = inputs.query + out
            for at in np.ndindex(out.shape[:2]):
                out[at] = standard(out[at], out[at]) * array(module.norms[j].weight) + array(module.norms[j].bias)
        beta = 1.0 if draws is None else float(draws[j] >= drop) / (1 - drop)
        total = total + beta * out
    return total / len(module.branches)
