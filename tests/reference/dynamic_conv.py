"""Slow, obvious dynamic and lightweight convolution: loops over positions, channels and taps.

Arrays are NumPy; ``weights`` is a module's state dict as arrays. Tokens are (B, N, D), masks (B, N) or None.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray
Weights = dict[str, Array]


def linear(weights: Weights, name: str, row: Array) -> Array:
    out = weights[f"{name}.weight"] @ row
    return out + weights[f"{name}.bias"] if f"{name}.bias" in weights else out


def softmax(logits: Array) -> Array:
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def sigmoid(row: Array) -> Array:
    return 1 / (1 + np.exp(-row))


def convolution(
    tokens: Array,
    weights: Weights,
    mask: Array | None = None,
    *,
    heads: int,
    kernel: int,
    glu: bool = True,
    causal: bool = False,
    renormalise: bool = False,
) -> Array:
    """Dynamic convolution; lightweight where the state dict has filters rather than a map to them."""
    batch, length, dim = tokens.shape
    share = dim // heads
    left = kernel - 1 if causal else (kernel - 1) // 2
    out = np.zeros_like(tokens)
    for b in range(batch):
        real = [mask is None or bool(mask[b, i]) for i in range(length)]
        x = np.zeros((length, dim))
        for i in range(length):
            if real[i]:
                x[i] = linear(weights, "input", tokens[b, i])[:dim]
                if glu:
                    x[i] *= sigmoid(linear(weights, "input", tokens[b, i])[dim:])
        for i in range(length):
            if not real[i]:
                continue
            places = [i + k - left for k in range(kernel)]
            mixed = np.zeros(dim)
            for c in range(dim):
                head = c // share
                if "filter" in weights:
                    logits = weights["filter"][head].copy()
                else:
                    logits = weights["filter.weight"][head * kernel : (head + 1) * kernel] @ x[i]
                if renormalise:
                    logits = np.array([v if 0 <= j < length and real[j] else -np.inf for v, j in zip(logits, places)])
                taps = softmax(logits)
                for tap, j in zip(taps, places):
                    if 0 <= j < length:
                        mixed[c] += tap * x[j, c]
            out[b, i] = linear(weights, "output", mixed)
    return out
