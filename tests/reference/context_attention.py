"""Slow, obvious long-range attention over feature maps: one loop over pixels, straight from the equations.

Maps are NumPy arrays (B, C, H, W); ``weights`` is an operator's state dict as arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Map = np.ndarray
Weights = dict[str, Map]
Pixel = tuple[int, int]
EPSILON = 1e-5


@dataclass(frozen=True)
class Position:
    """Settings of the position logits (thesis eq. 3.12): window k, padding v, smoothing σ."""

    window: int
    padding: str
    smoothing: str


def convolve(weights: Weights, name: str, x: Map) -> Map:
    """A 1×1 convolution."""
    out = np.einsum("oc,bcyx->boyx", weights[f"{name}.weight"][:, :, 0, 0], x)
    return out + weights[f"{name}.bias"][:, None, None] if f"{name}.bias" in weights else out


def softmax(logits: list[float]) -> Map:
    exponentials = np.exp(np.array(logits) - max(logits))
    return exponentials / exponentials.sum()


def place_on_grid(query: Pixel, key: Pixel, window: int) -> int | None:
    """Index of key among the k² logits of query, or None outside the window."""
    half = (window - 1) // 2
    dy, dx = key[0] - query[0], key[1] - query[1]
    return (dy + half) * window + dx + half if abs(dy) <= half and abs(dx) <= half else None


def place_on_cross(query: Pixel, key: Pixel, window: int) -> int | None:
    """Index of key among the 2k − 1 logits of query: k of the row, then k − 1 of the column without its middle."""
    half = (window - 1) // 2
    dy, dx = key[0] - query[0], key[1] - query[1]
    if dy == 0:
        return dx + half if abs(dx) <= half else None
    if abs(dy) > half:
        return None
    return window + dy + half - (dy > 0)


def position_logits(
    f: Map, places: int, query: Pixel, keys: list[Pixel], place: Callable[..., int | None], settings: Position, d: int
) -> list[float]:
    """δ_p(x_i, i, j)/σ_p for every key j; ``f`` are the logits of the query pixel, the padding's last."""
    padded = {"inf": -np.inf, "zero": 0.0, "min": f[:places].min(), "learned": f[-1]}[settings.padding]
    where = [place(query, key, settings.window) for key in keys]
    delta = np.array([padded if at is None else f[at] for at in where])
    if settings.smoothing == "sqrt":
        return list(delta / np.sqrt(d))
    finite = delta[np.isfinite(delta)]
    return list((delta - finite.mean()) / np.sqrt(finite.var() + EPSILON))


def relative_logit(weights: Weights, q: Map, query: Pixel, key: Pixel, on_cross: bool) -> float:
    """q·r^H + q·r^W of Bello et al., offsets clipped at the last vector; on a cross r^W in the row, r^H elsewhere."""
    total = 0.0
    for axis, name in enumerate(("column", "row")):
        if on_cross and (name == "row") != (key[0] == query[0]):
            continue
        vectors = weights[f"relative.{name}"]
        furthest = len(vectors) // 2
        total += q @ vectors[max(-furthest, min(furthest, key[axis] - query[axis])) + furthest]
    return total


def attend(
    x: Map,
    weights: Weights,
    names: tuple[str, str, str],
    keys_of: Callable[[Pixel], list[Pixel]],
    place: Callable[..., int | None],
    *,
    heads: int,
    scale: float | None,
    position: Position | None,
) -> Map:
    """Softmax attention of every pixel over ``keys_of`` it; ``scale`` None means 1/√d."""
    query, key, value = (convolve(weights, name, x) for name in names)
    batch, _, height, width = x.shape
    out = np.zeros_like(value)
    if position is not None:
        f = convolve(weights, "position.logits", convolve(weights, "position.embedding", x))
    for b in range(batch):
        for head in range(heads):
            q, k, v = (np.array_split(t[b], heads)[head] for t in (query, key, value))
            d = len(q)
            factor = d**-0.5 if scale is None else scale
            place_out = np.array_split(out[b], heads)[head]
            for y in range(height):
                for i in range(width):
                    keys = keys_of((y, i))
                    rows, columns = zip(*keys)
                    logits = list(factor * (q[:, y, i] @ k[:, rows, columns]))
                    if "relative.row" in weights:
                        extra = [
                            factor * relative_logit(weights, q[:, y, i], (y, i), key, place is place_on_cross)
                            for key in keys
                        ]
                        logits = [a + e for a, e in zip(logits, extra)]
                    if position is not None:
                        own = np.array_split(f[b], heads)[head][:, y, i]
                        places = len(own) - (position.padding == "learned")
                        extra = position_logits(own, places, (y, i), keys, place, position, d)
                        logits = [a + e for a, e in zip(logits, extra)]
                    place_out[:, y, i] = v[:, rows, columns] @ softmax(logits)
    return out


def criss_cross(
    x: Map,
    weights: Weights,
    *,
    heads: int = 1,
    recurrence: int = 1,
    scale: bool = False,
    position: Position | None = None,
) -> Map:
    """Criss-cross attention, plain, bilateral or with relative positions."""
    height, width = x.shape[2:]

    def cross(query: Pixel) -> list[Pixel]:
        y, i = query
        return [(y, j) for j in range(width)] + [(j, i) for j in range(height) if j != y]

    names = ("query_conv", "key_conv", "value_conv")
    factor = None if scale or (position is not None and position.smoothing == "sqrt") else 1.0
    for _ in range(recurrence):
        mixed = attend(x, weights, names, cross, place_on_cross, heads=heads, scale=factor, position=position)
        x = weights["gamma"][0] * mixed + x
    return x


def non_local(x: Map, weights: Weights, *, heads: int = 1, scale: bool = True, position: Position | None = None) -> Map:
    """Embedded-Gaussian non-local block, plain, bilateral or with relative positions."""
    height, width = x.shape[2:]
    everywhere = [(y, i) for y in range(height) for i in range(width)]
    mixed = attend(
        x,
        weights,
        ("theta", "phi", "g"),
        lambda _: everywhere,
        place_on_grid,
        heads=heads,
        scale=None if scale else 1.0,
        position=position,
    )
    return x + convolve(weights, "conv_out", mixed)
