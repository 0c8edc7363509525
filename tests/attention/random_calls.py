"""What the tests of token attention share: modules with random weights, and random calls with padding anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import strategies as st
from reference.token_attention import Array, Inputs
from torch import Tensor, nn

from vlplatform.attention import build, multi_head
from vlplatform.attention.kernels import using
from vlplatform.attention.score_term import Depth
from vlplatform.geometry import Geometry

DIM = 8
_FEW = st.one_of(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7))
LENGTHS = st.one_of(_FEW, _FEW, st.integers(1, 40))
HEADS = st.sampled_from([1, 2, 4])


def attention(name: str, seed: int = 0, *, dim: int = DIM, **settings: Any) -> nn.Module:
    """Attention ``name`` in float64 with a normal number added to each parameter, so that none is at its start."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        module = build(name, dim=dim, socket="token", **settings).to(torch.float64).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.5)
    for key, buffer in module.named_buffers():
        drawn = torch.rand(buffer.shape, generator=generator, dtype=torch.float64)
        buffer.copy_(drawn + 0.1 if key.endswith("var") else drawn - 0.5)
    return module


@dataclass(frozen=True)
class Case:
    """A call: what the reference gets, whether batch items share one geometry, and the library's path through it."""

    inputs: Inputs
    room: int | None
    path: Any

    def call(self, module: nn.Module, *, depth: Depth | None = None, **more: Any) -> Tensor:
        given, causal = self.inputs, {"causal": True} if self.inputs.causal else {}
        tokens = {"query": given.query, "key": given.key, "value": given.value}
        masks = {"mask": given.mask, "query_mask": given.query_mask}
        arguments = {k: torch.from_numpy(v) for k, v in (tokens | masks).items() if v is not None}
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(using(self.path))
            if self.room is not None:
                stack.enter_context(patch.object(multi_head, "_ROOM", self.room))
            return module(**arguments, geometry=self.geometry(), depth=depth, **causal, **more)

    def geometry(self) -> Geometry | tuple[Geometry, Geometry] | None:
        given = self.inputs
        size = None if given.size is None else torch.from_numpy(given.size)
        if given.grid is not None:
            return Geometry.from_grid(*given.grid, dtype=torch.float64)
        sides, make = given.boxes, Geometry.from_boxes
        if sides is None:
            sides, make = given.points, Geometry.from_points
        if sides is None:
            return None
        of_queries, of_keys = (make(torch.from_numpy(side), size) for side in sides)
        return of_queries if given.key is None else (of_queries, of_keys)

    def keys(self, item: int) -> list[int]:
        """The real keys of an item of the queries' batch."""
        given = self.inputs
        return given.real_keys(item if given.key is None else item * len(given.key) // len(given.query))

    def compare(self, actual: Tensor, expected: Array) -> None:
        """Real queries agree; items without any key give zeros everywhere."""
        for item, own in enumerate(expected):
            rows = self.inputs.real_queries(item) if self.keys(item) else list(range(len(own)))
            torch.testing.assert_close(actual[item, rows], torch.from_numpy(own)[rows], rtol=1e-10, atol=1e-10)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    causal: bool = False,
    others: bool = True,
    geometry: Sequence[str] = (),
    sized: bool = False,
    dim: int = DIM,
    lengths: st.SearchStrategy[int] = LENGTHS,
    sides: st.SearchStrategy[int] = st.integers(1, 6),  # noqa: B008
) -> Case:
    """Calls with random tokens, padding, boxes and paths.

    Args:
        draw: Of hypothesis.
        causal: Some are causal.
        others: Some have keys of another set, of which several queries' items may share one.
        geometry: Kinds of geometry: boxes, points, grid.
        sized: The size of the picture is given; for keys of another set one for all items.
        dim: Width of tokens.
        lengths: Numbers of tokens.
        sides: Sides of grids.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch, queries = draw(st.integers(1, 3)), draw(lengths)
    kind = draw(st.sampled_from([*geometry])) if geometry else None
    other = others and kind != "grid" and draw(st.booleans())
    grid = None
    if kind == "grid":
        grid = (draw(sides), draw(sides))
        queries = grid[0] * grid[1]
    keys, memories = (draw(lengths), batch) if other else (queries, batch)
    if other:
        batch *= draw(st.sampled_from([1, 1, 2]))
    padded, padded_queries = draw(st.booleans()), other and draw(st.booleans())
    mask = rng.random((memories, keys)) < draw(st.sampled_from([0.3, 0.7, 0.9])) if padded else None
    query_mask = rng.random((batch, queries)) < 0.7 if padded_queries else None
    junk = draw(st.sampled_from([np.nan, 1e4, 0.0]))
    x, key = rng.normal(size=(batch, queries, dim)), rng.normal(size=(memories, keys, dim)) if other else None
    if mask is not None:
        (x if key is None else key)[~mask] = junk
    if query_mask is not None:
        x[~query_mask] = junk
    shared = draw(st.booleans()) and batch == memories
    sets = {"boxes": None, "points": None}
    if kind in sets:
        make = boxes if kind == "boxes" else points
        of_queries = make(rng, 1 if shared else batch, queries)
        sets[kind] = (of_queries, make(rng, 1 if shared else memories, keys) if other else of_queries)
    size = None
    if sized and grid is None:
        size = rng.uniform(50, 150, size=(1 if shared or other or draw(st.booleans()) else batch, 2))
    inputs = Inputs(
        query=x,
        key=key,
        mask=mask,
        query_mask=query_mask,
        causal=causal and not other and draw(st.booleans()),
        grid=grid,
        size=size,
        **sets,
    )
    room, path = st.sampled_from([None, 100, 400, 3000]), st.sampled_from(["auto", "fused", "plain"])
    return Case(inputs, draw(room), draw(path))


def boxes(rng: np.random.Generator, batch: int, count: int) -> Array:
    """Boxes of a picture of about 100 × 100: some without width or height, equal, or far outside."""
    corner, side = rng.uniform(0, 100, (batch, count, 2)), rng.uniform(1, 50, (batch, count, 2))
    side[rng.random(side.shape) < 0.15] = 0
    corner += np.where(rng.random((batch, count, 1)) < 0.1, 1000 * rng.normal(size=(batch, count, 1)), 0)
    out = np.concatenate((corner, corner + side), -1)
    same = rng.random((batch, count)) < 0.2
    out[same] = np.broadcast_to(out[:, :1], out.shape)[same]
    return out


def points(rng: np.random.Generator, batch: int, count: int) -> Array:
    """Whole and broken numbers, some equal."""
    at = rng.uniform(0, 100, (batch, count, 2))
    return np.where(rng.random((batch, count, 1)) < 0.5, np.round(at / 20), at)
