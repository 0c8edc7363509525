"""Slow, obvious X-Linear attention: loops over items, queries, heads and keys, straight from the equations.

Tokens are NumPy arrays (B, N, D); ``weights`` is the state dict as arrays. Equation numbers are the paper's.
"""

from __future__ import annotations

import numpy as np

Tokens = np.ndarray
Weights = dict[str, np.ndarray]
EPSILON = 1e-5


def activate(z: float, kind: str, alpha: float) -> float:
    if kind == "relu":
        return max(0.0, z)
    if z > 0:
        return z
    return alpha * (np.exp(z / alpha) - 1) if kind == "celu" else alpha * (np.exp(z) - 1)


def linear(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def normalise(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + EPSILON)


def embed(weights: Weights, name: str, x: np.ndarray, heads: int, kind: str, alpha: float) -> np.ndarray:
    """The heads (h, d) of σ(W x) of one token, normalised within each head if there are gains for it."""
    z = np.array([activate(value, kind, alpha) for value in linear(weights, f"{name}.map", x)])
    if f"{name}.norm.weight" in weights:
        z = np.concatenate([normalise(part) for part in np.split(z, heads)])
        z = z * weights[f"{name}.norm.weight"] + weights[f"{name}.norm.bias"]
    return z.reshape(heads, -1)


def block(
    weights: Weights,
    query: Tokens,
    key: Tokens,
    value: Tokens,
    allowed: np.ndarray,
    *,
    heads: int,
    activation: str = "celu",
    alpha: float = 1.3,
) -> Tokens:
    """The attended tokens (B, N, D); ``allowed`` (B, N, M) booleans; a query without keys gives zeros."""
    out = np.zeros(query.shape)
    gated = "channel.weight" in weights
    for b in range(len(query)):
        keys = {i: embed(weights, "key", key[b, i], heads, activation, alpha) for i in range(key.shape[1])}
        values = {i: embed(weights, "value", value[b, i], heads, activation, alpha) for i in range(key.shape[1])}
        for n in range(query.shape[1]):
            seen = [i for i in keys if allowed[b, n, i]]
            if not seen:
                continue
            of_key = embed(weights, "query", query[b, n], heads, activation, alpha)
            attended = []
            for r in range(heads):
                bilinear = [keys[i][r] * of_key[r] for i in seen]  # (2)
                middle = [np.maximum(linear(weights, "middle", pair), 0) for pair in bilinear]  # (3)
                logits = np.array([linear(weights, "spatial", each)[0] for each in middle])
                spatial = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
                if gated:
                    of_value = embed(weights, "value_query", query[b, n], heads, activation, alpha)[r]
                    pooled = sum(middle) / len(middle)  # (4)
                    channel = 1 / (1 + np.exp(-linear(weights, "channel", pooled)))  # (5)
                    attended.append(channel * sum(s * (values[i][r] * of_value) for s, i in zip(spatial, seen)))  # (6)
                else:
                    attended.append(sum(s * values[i][r] for s, i in zip(spatial, seen)))
            out[b, n] = np.concatenate(attended)
    return out


def update(weights: Weights, name: str, whole: np.ndarray, token: np.ndarray) -> np.ndarray:
    """(8) for one token."""
    changed = np.maximum(linear(weights, f"{name}.map", np.concatenate([whole, token])), 0)
    return normalise(changed + token) * weights[f"{name}.norm.weight"] + weights[f"{name}.norm.bias"]


def stack(weights: Weights, tokens: Tokens, real: np.ndarray, *, layers: int, heads: int) -> tuple[Tokens, Tokens]:
    """The whole (B, D) and the tokens (B, N, D) of an encoder; ``real`` (B, N) with one real token at least."""
    wholes, enhanced = [], []
    for x, mask in zip(tokens, real):
        key, value = [row for row, m in zip(x, mask) if m], [row for row, m in zip(x, mask) if m]
        all_outputs = [sum(value) / len(value)]
        for m in range(layers):
            own = {n.removeprefix(f"blocks.{m}."): w for n, w in weights.items() if n.startswith(f"blocks.{m}.")}
            everything = np.ones((1, 1, len(key)), dtype=bool)
            query = all_outputs[-1][None, None]
            out = block(own, query, np.array(key)[None], np.array(value)[None], everything, heads=heads)[0, 0]  # (7)
            all_outputs.append(out)
            of_key = f"key_updates.{m}" if f"key_updates.{m}.map.weight" in weights else f"updates.{m}"
            key = [update(weights, of_key, out, each) for each in key]
            value = [update(weights, f"updates.{m}", out, each) for each in value]
        joined = linear(weights, "joined", np.concatenate(all_outputs))  # (10)
        if "norm.weight" in weights:
            joined = normalise(joined) * weights["norm.weight"] + weights["norm.bias"]
        wholes.append(joined)
        rest = iter(value)
        enhanced.append([next(rest) if m else np.zeros(x.shape[1]) for m in mask])
    return np.array(wholes), np.array(enhanced)
