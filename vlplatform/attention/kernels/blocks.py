"""A function of attention's blocks, computed block by block and once more, block by block, in the backward pass.

Nothing of size queries × keys leaves the cache of the processor or is kept: forwards a block's logits and weights are
thrown away once its output is written, backwards they are computed again, with gradients, from what entered. That
costs one more pass of arithmetic and saves the traffic of every element-wise step, which on a CPU is the larger part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Piece:
    """Some items of the batch and some rows of each."""

    items: slice
    rows: slice


Function = Callable[[Piece, Sequence[Tensor]], Tensor]


@dataclass(frozen=True)
class Plan:
    """How a call is cut.

    Attributes:
        batch: Items B.
        rows: Queries N.
        axes: Per tensor its axis of queries, or none; axis 0 is the batch, of size B or 1.
        items_per_piece: Items in a piece.
        rows_per_piece: Rows in a piece; all of them unless it has a single item.
    """

    batch: int
    rows: int
    axes: tuple[int | None, ...]
    items_per_piece: int
    rows_per_piece: int

    def pieces(self) -> Iterator[Piece]:
        """All pieces, those of one item side by side."""
        for item in range(0, self.batch, self.items_per_piece):
            for row in range(0, self.rows, self.rows_per_piece):
                yield Piece(
                    slice(item, min(item + self.items_per_piece, self.batch)),
                    slice(row, min(row + self.rows_per_piece, self.rows)),
                )

    def cut(self, index: int, tensor: Tensor, piece: Piece) -> Tensor:
        """The part of the tensor ``index`` that belongs to a piece, as a view."""
        part = tensor if len(tensor) == 1 else tensor[piece.items]
        axis = self.axes[index]
        if axis is None or part.shape[axis] == 1:
            return part
        return part.narrow(axis, piece.rows.start, piece.rows.stop - piece.rows.start)


def plan(batch: int, rows: int, row_bytes: int, axes: Sequence[int | None], room: int, shared_bytes: int = 0) -> Plan:
    """Pieces that take about ``room`` bytes.

    Args:
        batch: Items.
        rows: Queries.
        row_bytes: What one query of one item takes.
        axes: See :class:`Plan`.
        room: Bytes.
        shared_bytes: What one query takes that is the same for all items: where there is any, a piece has all items.
    """
    row_bytes = row_bytes * batch + shared_bytes if shared_bytes else row_bytes
    items = batch if shared_bytes else min(batch, max(1, room // (row_bytes * rows)))
    count = -(-rows // max(1, room // row_bytes)) if items == 1 or shared_bytes else 1
    return Plan(batch, rows, tuple(axes), items, -(-rows // count))


Slots = list[tuple[nn.Module, str]]


def slots(modules: Iterable[nn.Module]) -> list[Slots]:
    """Where each parameter of modules stands; one that is tied stands in several places."""
    places: dict[int, Slots] = {}
    for part in (part for module in modules for part in module.modules()):
        for name, value in part._parameters.items():
            if value is not None and (part, name) not in places.get(id(value), []):
                places.setdefault(id(value), []).append((part, name))
    return list(places.values())


@contextmanager
def _holding(places: Sequence[Slots], tensors: Sequence[Tensor]) -> Iterator[None]:
    """The modules hold ``tensors`` as their parameters: those of the forward pass may have been lent to them."""
    changed: list[tuple[nn.Module, str, Any]] = []
    try:
        for several, tensor in zip(places, tensors):
            for module, name in several:
                own: Any = module._parameters[name]
                if own is not tensor:
                    changed.append((module, name, own))
                    module._parameters[name] = tensor  # pyright: ignore[reportArgumentType]
        yield
    finally:
        for module, name, own in changed:
            module._parameters[name] = own


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Function, plan: Plan, places: Sequence[Slots], *tensors: Tensor) -> Tensor:
        cuttable = tensors[: len(tensors) - len(places)]
        out: Tensor | None = None
        for piece in plan.pieces():
            part = function(piece, [plan.cut(i, tensor, piece) for i, tensor in enumerate(cuttable)])
            if out is None:
                out = part.new_empty(plan.batch, plan.rows, part.shape[-1])
            out[piece.items, piece.rows] = part
        ctx.save_for_backward(*tensors)
        ctx.function, ctx.plan, ctx.count, ctx.places = function, plan, len(cuttable), places
        assert out is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,), function, plan = grad_outputs, ctx.function, ctx.plan
        tensors, parameters = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        wanted = ctx.needs_input_grad[3:]
        grads: list[Tensor | None] = [
            torch.zeros_like(tensor, memory_format=torch.contiguous_format) if need else None
            for tensor, need in zip(ctx.saved_tensors, wanted)
        ]
        for piece in plan.pieces():
            parts = [
                plan.cut(i, tensor, piece).detach().requires_grad_(need)
                for i, (tensor, need) in enumerate(zip(tensors, wanted))
            ]
            with torch.enable_grad(), _holding(ctx.places, parameters):
                out = function(piece, parts)
            leaves = [leaf for leaf, need in zip((*parts, *parameters), wanted) if need]
            found = iter(torch.autograd.grad(out, leaves, gradient[piece.items, piece.rows], allow_unused=True))
            for i, (grad, need) in enumerate(zip(grads, wanted)):
                if need and (new := next(found)) is not None and grad is not None:
                    (plan.cut(i, grad, piece) if i < ctx.count else grad).add_(new)
        return None, None, None, *grads


def by_blocks(function: Function, plan: Plan, tensors: Sequence[Tensor], modules: Iterable[nn.Module]) -> Tensor:
    """``function`` over all pieces: (B, N, width).

    Args:
        function: Of a piece and the parts of the tensors that belong to it, (items, rows, width). It must give the
            same result when called again, and may depend on nothing else that changes in between.
        plan: The pieces.
        tensors: What is cut, one axis of queries each in ``plan.axes``.
        modules: Whose parameters the function reads besides.
    """
    places = slots(modules)
    parameters = [several[0][0]._parameters[several[0][1]] for several in places]
    return _Blocks.apply(function, plan, places, *tensors, *parameters)


def drop(values: Tensor, rate: float, seed: int | None) -> Tensor:
    """Dropout; with a seed it drops the same again in the backward pass."""
    if not rate:
        return values
    if seed is None:
        return F.dropout(values, rate)
    generator = torch.Generator(values.device).manual_seed(seed)
    keep = torch.empty_like(values).bernoulli_(1 - rate, generator=generator)
    return values * keep.div_(1 - rate)
