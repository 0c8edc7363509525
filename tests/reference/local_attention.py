"""Slow, obvious attention inside k×k windows: one loop over pixels, straight from the equations of thesis chapter 4.

Maps are NumPy arrays (B, C, H, W); ``state`` is an operator's state dict as arrays, whose running statistics are
moved in training mode as a batch norm moves them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Map = np.ndarray
State = dict[str, Map]
EPSILON, MOMENTUM = 1e-5, 0.1


@dataclass(frozen=True)
class Settings:
    """Which of the chapter's operators it is."""

    heads: int
    kernel: int
    content: bool
    geometric: bool
    border: str = "mask"
    scale: str = "none"
    shared: bool = False
    iterations: int = 1


def normalise(state: State, name: str, x: Map, training: bool) -> Map:
    """Batch norm, channel by channel."""
    out = np.empty_like(x)
    for c in range(x.shape[1]):
        mean, variance = state[f"{name}.running_mean"][c], state[f"{name}.running_var"][c]
        if training:
            mean, variance, count = x[:, c].mean(), x[:, c].var(), x[:, c].size
            for statistic, now in (("running_mean", mean), ("running_var", variance * count / (count - 1))):
                state[f"{name}.{statistic}"][c] += MOMENTUM * (now - state[f"{name}.{statistic}"][c])
        standard = (x[:, c] - mean) / np.sqrt(variance + EPSILON)
        out[:, c] = standard * state[f"{name}.weight"][c] + state[f"{name}.bias"][c]
    if training:
        state[f"{name}.num_batches_tracked"] += 1
    return out


def project(state: State, name: str, x: Map, training: bool) -> Map:
    """A 1×1 convolution, its bias and its batch norm where the state has them."""
    out = np.einsum("oc,bcyx->boyx", state[f"{name}.conv.weight"][:, :, 0, 0], x)
    if f"{name}.conv.bias" in state:
        out = out + state[f"{name}.conv.bias"][:, None, None]
    return normalise(state, f"{name}.norm", out, training) if f"{name}.norm.weight" in state else out


def softmax(logits: Map) -> Map:
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def squash(x: Map) -> Map:
    length = np.sqrt(x @ x)
    return length**2 / (1 + length**2) * x / length if length > 0 else 0 * x


def refine(query: Map, keys: Map, factor: float, iterations: int) -> Map:
    """Content logits (algorithm 1), ``iterations`` counting the softmax that follows too."""
    logits = factor * (keys @ query)
    for _ in range(iterations - 1):
        updated = softmax(logits) @ keys
        logits = logits + factor * (keys @ squash(updated))
    return logits


def attend(x: Map, state: State, settings: Settings, training: bool) -> tuple[Map, dict[str, Map]]:
    """The operator's output, and its weights (B, M, H, W of the query, H, W of the key)."""

    def feature(name: str) -> Map:
        return project(state, f"projections.{name}", x, training)

    if settings.shared:
        query = key = value = feature("projection")
    else:
        query, value = feature("query"), feature("value")
        key = feature("key") if settings.content else query
    position = project(state, "position", query, training) if settings.geometric else None
    batch, channels, height, width = query.shape
    heads, kernel, reach = settings.heads, settings.kernel, settings.kernel // 2
    depth = channels // heads
    factor = 1 / np.sqrt(depth) if settings.scale == "sqrt" else 1.0
    attended = np.zeros_like(value)
    names = ["content"] * settings.content + ["position"] * settings.geometric
    names += ["bilateral"] * (settings.content and settings.geometric)
    maps = {name: np.zeros((batch, heads, height, width, height, width)) for name in names}
    for b, m, row, col in np.ndindex(batch, heads, height, width):
        own = slice(m * depth, (m + 1) * depth)
        places, keys, values, predicted = [], [], [], []
        for t, (dy, dx) in enumerate(np.ndindex(kernel, kernel)):
            y, x_ = row + dy - reach, col + dx - reach
            inside = 0 <= y < height and 0 <= x_ < width
            if not inside and settings.border == "mask":
                continue
            places.append((y, x_) if inside else None)
            keys.append(key[b, own, y, x_] if inside else np.zeros(depth))
            values.append(value[b, own, y, x_] if inside else np.zeros(depth))
            predicted.append(0.0 if position is None else position[b, t * heads + m, row, col])
        logits = {"position": np.array(predicted)}
        if settings.content:
            logits["content"] = refine(query[b, own, row, col], np.array(keys), factor, settings.iterations)
            logits["bilateral"] = logits["content"] + logits["position"]
        for name in names:
            weights = softmax(logits[name])
            for place, weight in zip(places, weights):
                if place is not None:
                    maps[name][b, m, row, col][place] = weight
        attended[b, own, row, col] = softmax(logits[names[-1]]) @ np.array(values)
    return project(state, "output", attended, training), maps


def convolve(x: Map, weight: Map, bias: Map) -> Map:
    """A k×k convolution with zeros around the map."""
    reach, (batch, _, height, width) = weight.shape[2] // 2, x.shape
    out = np.tile(bias[None, :, None, None], (batch, 1, height, width))
    for row, col, dy, dx in np.ndindex(height, width, *weight.shape[2:]):
        y, x_ = row + dy - reach, col + dx - reach
        if 0 <= y < height and 0 <= x_ < width:
            out[:, :, row, col] += x[:, :, y, x_] @ weight[:, :, dy, dx].T
    return out
