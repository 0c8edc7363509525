"""Slow, obvious entangled attention: loops over queries, heads and keys, from the thesis' equations 2.2–2.12.

Arrays are NumPy; ``weights`` is a module's state dict as arrays. The query is (B, N, D), a memory (B', M, width)
with B' a divisor of B, a mask (B', M) or None.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Weights = dict[str, Array]
EPSILON = 1e-5
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda row: row,
    "relu": lambda row: np.maximum(row, 0),
    "tanh": np.tanh,
    "sigmoid": lambda row: 1 / (1 + np.exp(-row)),
}


def linear(weights: Weights, name: str, row: Array) -> Array:
    return weights[f"{name}.weight"] @ row + weights[f"{name}.bias"]


def norm(weights: Weights, name: str, row: Array) -> Array:
    centred = row - row.mean()
    return centred / np.sqrt((centred**2).mean() + EPSILON) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def attend(weights: Weights, step: str, row: Array, memory: Array, real: Array, heads: int) -> Array:
    """``norm(row + MultiHead(row, memory, memory))`` over the real tokens of one memory (M, width)."""
    keys = [j for j in range(len(memory)) if real[j]]
    out = np.zeros_like(row)
    if keys:
        query = np.split(linear(weights, f"{step}.attention.query", row), heads)
        found = []
        for head in range(heads):
            logits, values = [], []
            for j in keys:
                key = np.split(linear(weights, f"{step}.attention.key", memory[j]), heads)[head]
                values.append(np.split(linear(weights, f"{step}.attention.value", memory[j]), heads)[head])
                logits.append(query[head] @ key / np.sqrt(len(key)))
            probabilities = np.exp(np.array(logits) - max(logits))
            probabilities /= probabilities.sum()
            found.append(sum(p * v for p, v in zip(probabilities, values)))
        out = linear(weights, f"{step}.attention.output", np.concatenate(found))
    return norm(weights, f"{step}.norm", row + out)


def fuse(
    query: Array,
    memories: tuple[Array, Array],
    weights: Weights,
    masks: tuple[Array | None, Array | None],
    *,
    heads: int,
    variant: str,
    activation: str = "identity",
) -> Array:
    out = np.zeros_like(query)
    f = FUNCTIONS[activation]
    for b in range(len(query)):
        visual, semantic = (memory[b // (len(query) // len(memory))] for memory in memories)
        real_v, real_s = (
            np.ones(memory.shape[1], bool) if mask is None else mask[b // (len(query) // len(memory))]
            for memory, mask in zip(memories, masks)
        )

        def to_visual(step: str, row: Array, memory=visual, real=real_v) -> Array:
            return attend(weights, step, row, memory, real, heads)

        def to_semantic(step: str, row: Array, memory=semantic, real=real_s) -> Array:
            return attend(weights, step, row, memory, real, heads)

        for i, a in enumerate(query[b]):
            if variant == "visual":
                out[b, i] = to_visual("visual", a)
            elif variant == "semantic":
                out[b, i] = to_semantic("semantic", a)
            elif variant == "stacked_v":
                out[b, i] = to_visual("visual", to_semantic("guide_semantic", a))
            elif variant == "stacked_s":
                out[b, i] = to_semantic("semantic", to_visual("guide_visual", a))
            else:
                if variant == "eta":
                    g_s, g_v = to_semantic("guide_semantic", a), to_visual("guide_visual", a)
                    v, s = to_visual("visual", g_s), to_semantic("semantic", g_v)
                else:
                    v, s = to_visual("visual", a), to_semantic("semantic", a)
                    g_s, g_v = s, v
                gate = FUNCTIONS["sigmoid"](linear(weights, "join.gate", np.concatenate([g_s, g_v, a])))
                out[b, i] = f(v) * gate + f(s) * (1 - gate)
    return out
