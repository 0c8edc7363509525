"""Slow, obvious attention whose terms know the places of a sequence or a grid; see ``token_attention``."""

from __future__ import annotations

from typing import Any

import numpy as np
from reference.token_attention import (
    EPSILON,
    Array,
    Inputs,
    Row,
    Term,
    Tokens,
    array,
    attend,
    linear,
    softmax,
)


class Bilateral(Term):
    """Attention thesis, eq. 3.9, 3.11 and 3.12: plus ``δ_p(x_i, i, j) / σ_p``."""

    def __init__(self, term: Any, window: int, padding: str, smoothing: str, causal: bool) -> None:
        self.term, self.window, self.padding, self.smoothing = term, window, padding, smoothing
        self.left = window - 1 if causal else (window - 1) // 2

    def tap(self, place: int, key_place: int) -> int | None:
        """Which of f's numbers belongs to a key."""
        tap = key_place - place + self.left
        return tap if 0 <= tap < self.window else None

    def sees(self, place: int, key_place: int) -> bool:
        return self.padding != "inf" or self.tap(place, key_place) is not None

    def bias(self, logits: Array, row: Row) -> Array:
        f = linear(self.term.logits, linear(self.term.embedding, row.query.rows[row.i]))
        out = []
        for own, line in zip(np.split(f, len(logits)), logits):
            taps = own[: self.window]
            padded = {"inf": np.nan, "zero": 0.0, "min": taps.min(), "learned": own[-1]}[self.padding]
            at = [self.tap(row.place, key_place) for key_place in row.key_places]
            delta = np.array([padded if tap is None else taps[tap] for tap in at])
            if self.smoothing == "sqrt":
                delta = delta / np.sqrt(row.q.shape[-1])
            else:
                delta = (delta - delta.mean()) / np.sqrt(delta.var() + EPSILON)
            out.append(line + delta)
        return np.stack(out)


def bilateral_sa(module: Any, inputs: Inputs, *, window: int, padding: str, smoothing: str) -> Array:
    return attend(module, inputs, [Bilateral(module.terms[0], window, padding, smoothing, inputs.causal)])


class RelativeVectors(Term):
    """Shaw et al., eq. 3–5: keys ``k_j + a^K`` and values ``v_j + a^V`` of the clipped offset."""

    def __init__(self, term: Any, clip: int) -> None:
        self.key, self.value = (None if table is None else array(table) for table in (term.key, term.value))
        self.clip = clip

    def vectors(self, table: Array, row: Row) -> Array:
        offsets = [min(max(key_place - row.place, -self.clip), self.clip) for key_place in row.key_places]
        return np.stack([table[offset + self.clip] for offset in offsets])

    def bias(self, logits: Array, row: Row) -> Array:
        at = self.vectors(self.key, row)
        return np.stack([line + at @ q / np.sqrt(len(q)) for line, q in zip(logits, row.q)])

    def output(self, weights: Array, row: Row) -> Array | float:
        return 0.0 if self.value is None else weights @ self.vectors(self.value, row)


def rel_pos(module: Any, inputs: Inputs, *, clip: int) -> Array:
    return attend(module, inputs, [RelativeVectors(module.terms[0], clip)])


class GridWindows(Term):
    """Keys within a window of the grid, and a bias for each offset of row and column."""

    def __init__(self, term: Any, grid: tuple[int, int], bounds: Any) -> None:
        self.table, self.grid, self.bounds = array(term.table), grid, bounds

    def sees(self, place: int, key_place: int) -> bool:
        for at, key_at in zip(divmod(place, self.grid[1]), divmod(key_place, self.grid[1])):
            low, high = self.bounds(at)
            if not low <= key_at < high:
                return False
        return True

    def bias(self, logits: Array, row: Row) -> Array:
        logits, middle = logits.copy(), self.table.shape[-1] // 2
        y, x = divmod(row.place, self.grid[1])
        for place, key_place in enumerate(row.key_places):
            key_y, key_x = divmod(key_place, self.grid[1])
            logits[:, place] += self.table[:, key_y - y + middle, key_x - x + middle]
        return logits


def swin_window(module: Any, inputs: Inputs, *, window: int, layer: int = 0) -> Array:
    """Liu et al.: windows side by side from the first cell; in odd layers displaced by ⌊window / 2⌋ cells."""
    shift = window // 2 if layer % 2 else 0

    def bounds(at: int) -> tuple[int, int]:
        low = (at - shift) // window * window + shift
        return low, low + window

    assert inputs.grid is not None
    return attend(module, inputs, [GridWindows(module.terms[0], inputs.grid, bounds)])


def halo_window(module: Any, inputs: Inputs, *, block: int, halo: int) -> Array:
    """Vaswani et al. 2021: the query's block and ``halo`` cells around it."""

    def bounds(at: int) -> tuple[int, int]:
        low = at // block * block
        return low - halo, low + block + halo

    assert inputs.grid is not None
    return attend(module, inputs, [GridWindows(module.terms[0], inputs.grid, bounds)])


def joined(layer: Any, cells: list[Array | None], start: int, end: int) -> float:
    """ACF, eq. 3 and 4: the probability that the cells from ``start`` to ``end`` belong together; none is no cell."""
    there = [cell for cell in cells[start : end + 1] if cell is not None]
    product = 1.0
    for k in range(1, len(there)):
        mean = sum(there[:k]) / k
        score = linear(layer, np.concatenate((there[k], mean)))[0]
        product *= 1 / (1 + np.exp(-score))
    return product


def means(cells: list[Array | None], rate: int) -> list[Array | None]:
    """Mean of each ``rate`` neighbours, of those there are."""
    groups = [[cell for cell in cells[i : i + rate] if cell is not None] for i in range(0, len(cells), rate)]
    return [sum(group) / len(group) if group else None for group in groups]


class Clusters(Term):
    """ACF, eq. 2 and 6; ``below`` are the clusters of the layer below, per item a table of pairs of places."""

    def __init__(self, scores: str, below: list[dict] | None) -> None:
        self.scores, self.below = scores, below
        self.grown: list[dict] = []

    def begin(self, queries: list[Tokens], keys: list[Tokens]) -> None:
        for item, tokens in enumerate(queries):
            own = {}
            for pair, c in self.pairs(tokens).items():
                own[pair] = c if self.below is None else (1 - c) * self.below[item][pair] + c
            self.grown.append(own)

    def pairs(self, tokens: Tokens) -> dict[tuple[int, int], float]:
        raise NotImplementedError

    def row(self, row: Row) -> Array:
        return np.array([self.grown[row.item][row.place, key_place] for key_place in row.key_places])

    def modulate(self, logits: Array, row: Row) -> Array:
        return logits * self.row(row) if self.scores == "logits" else logits

    def weights(self, weights: Array, row: Row) -> Array:
        if self.scores == "logits":
            return weights
        return np.stack([softmax(line) for line in weights * self.row(row)])


class Sequence(Clusters):
    """C over a sequence."""

    def __init__(self, term: Any, scores: str, rate: int, window: int | None, below: list[dict] | None) -> None:
        super().__init__(scores, below)
        self.term, self.rate, self.window = term, rate, window

    def pairs(self, tokens: Tokens) -> dict[tuple[int, int], float]:
        pairs, cells = {}, [None] * (1 + max(tokens.places, default=0))
        for place, row in zip(tokens.places, tokens.rows):
            cells[place] = row
        cells = means(cells, self.rate)
        known: dict[tuple[int, int], float] = {}
        for i in tokens.places:
            for j in tokens.places:
                if self.window is not None:
                    pairs[i, j] = float(abs(i - j) <= self.window)
                    continue
                ends = min(i, j) // self.rate, max(i, j) // self.rate
                if ends not in known:
                    known[ends] = joined(self.term.merge.map, cells, *ends)
                pairs[i, j] = known[ends]
        return pairs


def acf1d(
    module: Any,
    inputs: Inputs,
    *,
    scores: str = "weights",
    rate: int = 1,
    window: int | None = None,
    below: list[dict] | None = None,
) -> tuple[Array, list[dict]]:
    """The output, and the clusters for the layer above."""
    term = Sequence(module.terms[0], scores, rate, window, below)
    return attend(module, inputs, [term]), term.grown


class Plane(Clusters):
    """C over a grid, eq. 8: along the top row and along the left column of the rectangle of two cells."""

    def __init__(self, term: Any, scores: str, rate: int, window: int | None, below: list[dict] | None) -> None:
        super().__init__(scores, below)
        self.term, self.rate, self.window = term, rate, window
        self.grid: tuple[int, int] | None = None
        self.height = 0

    def cells(self, tokens: Tokens) -> tuple[dict[int, tuple[int, int]], int, int]:
        """Row and column of each place, and the grid's sides; regions are arranged as in §3.1."""
        if self.grid is not None:
            height, width = self.grid
            return {place: divmod(place, width) for place in tokens.places}, height, width
        by_x = sorted(range(len(tokens.places)), key=lambda i: tokens.points[i][0])
        at = {}
        for column, first in enumerate(range(0, len(by_x), self.height)):
            group = sorted(by_x[first : first + self.height])
            for row, i in enumerate(sorted(group, key=lambda i: tokens.points[i][1])):
                at[tokens.places[i]] = (row, column)
        return at, self.height, -(-len(by_x) // self.height)

    def pairs(self, tokens: Tokens) -> dict[tuple[int, int], float]:
        at, height, width = self.cells(tokens)
        rows: list[list[Array | None]] = [[None] * width for _ in range(height)]
        for place, token in zip(tokens.places, tokens.rows):
            y, x = at[place]
            rows[y][x] = token
        columns = [[row[x] for row in rows] for x in range(width)]
        rows, columns = ([means(line, self.rate) for line in lines] for lines in (rows, columns))
        known: dict[tuple, float] = {}

        def along(name: str, lines: list[list[Array | None]], line: int, a: int, b: int) -> float:
            ends = (name, line, min(a, b) // self.rate, max(a, b) // self.rate)
            if ends not in known:
                known[ends] = joined(getattr(self.term, name).map, lines[line], *ends[2:])
            return known[ends]

        pairs = {}
        for i, (y, x) in at.items():
            for j, (v, u) in at.items():
                if self.window is not None:
                    pairs[i, j] = float(abs(y - v) <= self.window and abs(x - u) <= self.window)
                else:
                    pairs[i, j] = along("across", rows, min(y, v), x, u) * along("down", columns, min(x, u), y, v)
        return pairs


def acf2d(
    module: Any,
    inputs: Inputs,
    *,
    scores: str = "weights",
    rate: int = 1,
    window: int | None = None,
    height: int = 6,
    below: list[dict] | None = None,
) -> tuple[Array, list[dict]]:
    """The output, and the clusters for the layer above."""
    term = Plane(module.terms[0], scores, rate, window, below)
    term.grid, term.height = inputs.grid, height
    return attend(module, inputs, [term]), term.grown
