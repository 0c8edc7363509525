"""Slow, obvious attention whose terms know boxes and points; see ``token_attention``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from reference.token_attention import Array, Inputs, Row, Term, Tokens, array, attend, linear


class Distance(Term):
    """MD-SAN, eq. 6–8, 17 and 18: ``ReLU(logit) · R`` with R of the distance of two points."""

    def __init__(self, term: Any, distance: str, scaling: str) -> None:
        self.w = array(term.w).ravel()
        self.v = array(term.v).ravel() if scaling == "dynamic_sigmoid" else None
        self.distance, self.scaling = distance, scaling

    def coefficient(self, head: int, difference: Array) -> float:
        dx, dy = np.abs(difference)
        far = {"manhattan": dx + dy, "euclidean": np.sqrt(dx**2 + dy**2), "chebyshev": max(dx, dy)}[self.distance]
        w = self.w[head]
        if self.scaling == "dynamic_sigmoid":
            with np.errstate(over="ignore"):
                return (1 + np.exp(self.v[head])) / (1 + np.exp(self.v[head] - w * far))
        if self.scaling == "scalar":
            return w * far
        return min(max(w * (far if self.scaling == "linear" else far**2), 0.0), 2.0)

    def modulate(self, logits: Array, row: Row) -> Array:
        out = np.zeros_like(logits)
        for head in range(len(logits)):
            for place, j in enumerate(row.allowed):
                apart = row.keys.points[j] - row.query.points[row.i]
                out[head, place] = max(logits[head, place], 0.0) * self.coefficient(head, apart)
        return out


def dsa(module: Any, inputs: Inputs, *, distance: str = "manhattan", scaling: str = "dynamic_sigmoid") -> Array:
    return attend(module, inputs, [Distance(module.terms[0], distance, scaling)])


def relative_geometry(a: Array, b: Array, inclusive: bool = False) -> Array:
    """NG-SAN, eq. 8, of query box a and key box b; ratios of places and all sides are at least a thousandth."""
    sides_a, sides_b = ([max(box[axis + 2] - box[axis] + inclusive, 1e-3) for axis in (0, 1)] for box in (a, b))
    out = []
    for axis in (0, 1):
        apart = abs((a[axis] + a[axis + 2]) / 2 - (b[axis] + b[axis + 2]) / 2)
        out.append(np.log(max(apart / sides_a[axis], 1e-3)))
    return np.array([*out, *(np.log(sides_a[axis] / sides_b[axis]) for axis in (0, 1))])


class GeometricBias(Term):
    """NG-SAN, eq. 8–13."""

    def __init__(self, term: Any, kinds: Sequence[str]) -> None:
        self.term, self.kinds = term, kinds

    def bias(self, logits: Array, row: Row) -> Array:
        logits, term = logits.copy(), self.term
        geometric_query = linear(term.query, row.query.rows[row.i]) if "query" in self.kinds else None
        for place, j in enumerate(row.allowed):
            f = relative_geometry(row.query.boxes[row.i], row.keys.boxes[j])
            g = np.maximum(linear(term.geometry, f), 0)
            geometric_key = linear(term.key, row.keys.rows[j]) if "key" in self.kinds else None
            for head in range(len(logits)):
                if "content_independent" in self.kinds:
                    logits[head, place] += max(array(term.weight)[head] @ g, 0.0)
                if geometric_query is not None:
                    logits[head, place] += geometric_query[head * len(g) :][: len(g)] @ g
                if geometric_key is not None:
                    logits[head, place] += geometric_key[head * len(g) :][: len(g)] @ g
        return logits


def gsa(module: Any, inputs: Inputs, *, kinds: Sequence[str] = ("query",)) -> Array:
    return attend(module, inputs, [GeometricBias(module.terms[0], kinds)])


class BoxRelation(Term):
    """Herdade et al.: plus ``log max(ReLU(W_G Emb(f)), 1e-6)``."""

    def __init__(self, term: Any, inclusive: bool) -> None:
        self.term, self.inclusive = term, inclusive

    def bias(self, logits: Array, row: Row) -> Array:
        logits = logits.copy()
        for place, j in enumerate(row.allowed):
            f = relative_geometry(row.query.boxes[row.i], row.keys.boxes[j], self.inclusive)
            angles = [100 * number * 1000 ** (-k / 8) for number in f for k in range(8)]
            omega = linear(self.term.geometry, np.concatenate((np.sin(angles), np.cos(angles))))
            logits[:, place] += np.log(np.maximum(np.maximum(omega, 0), 1e-6))
        return logits


def rel_pe(module: Any, inputs: Inputs, *, inclusive: bool = False) -> Array:
    return attend(module, inputs, [BoxRelation(module.terms[0], inclusive)])


class AbsolutePlaces(Term):
    """Tokens plus sines and cosines of their centre, width and height, in pictures of unit sides."""

    def embed(self, tokens: Tokens) -> Array:
        rows = tokens.rows.copy()
        for i in range(len(rows)):
            sides = np.zeros(2) if tokens.boxes is None else tokens.boxes[i, 2:] - tokens.boxes[i, :2]
            encoding = []
            for number in (*(tokens.points[i] / tokens.extent), *(sides / tokens.extent)):
                steps = rows.shape[1] // 8
                angles = [100 * number * 10000 ** (-k / steps) for k in range(steps)]
                encoding += [*np.sin(angles), *np.cos(angles)]
            rows[i] += encoding
        return rows


def abs_pe(module: Any, inputs: Inputs, *, layer: int = 0, every_layer: bool = False) -> Array:
    return attend(module, inputs, [AbsolutePlaces()] if layer == 0 or every_layer else [])
