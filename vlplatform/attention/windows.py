"""Attention in local windows of a grid: Swin's shifted windows and HaloNet's blocks with halos.

The baselines of MD-SAN, table IX: Liu et al., "Swin Transformer" (2021), §3.2; Vaswani et al., "Scaling Local
Self-Attention for Parameter Efficient Visual Backbones" (2021), §2.2. Both learn a bias for each relative position; so
does Swin's paper, while HaloNet's multiplies the query with a vector for each.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.score_term import Block, Call, Operand, ScoreTerm, Sizes
from vlplatform.errors import UserError


class SwinWindows(ScoreTerm):
    """Each token attends to those of its window of ``window`` × ``window`` cells; every other layer shifts them
    by half.

    Windows at the border of a grid that they do not divide are smaller. As in the original code, cells that a cyclic
    shift would bring together from opposite borders do not see each other.

    Args:
        sizes: Of the attention.
        window: Side of a window in cells.

    Raises:
        ValueError: ``window`` below 1.
    """

    name = "swin_window"
    exclusive = "windows over a grid"

    def __init__(self, sizes: Sizes, *, window: int = 7) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window={window} must be at least 1")
        self.window = window
        self.table = nn.Parameter(torch.empty(sizes.heads, 2 * window - 1, 2 * window - 1))
        nn.init.trunc_normal_(self.table, std=0.02)

    def prepare(self, call: Call, query: Tensor, key: Tensor) -> Mapping[str, Operand]:
        """The bias (1, h, N, N) and which pairs share a window (1, 1, N, N)."""
        row, column = cells(call, self.name)
        shift = self.window // 2 if call.depth.layer % 2 else 0
        in_row, in_column = (((axis - shift) // self.window) for axis in (row, column))
        visible = (in_row[:, None] == in_row) & (in_column[:, None] == in_column)
        return _operands(self.table, row, column, visible)

    def bias(self, block: Block) -> Tensor:
        """The learnt bias (1, h, R, M)."""
        return block.operands["bias"]

    def visible(self, block: Block) -> Tensor:
        """(1, 1, R, M)."""
        return block.operands["visible"]


class HaloWindows(ScoreTerm):
    """Each token attends to its block of ``block`` × ``block`` cells and those up to ``halo`` cells around the block.

    Args:
        sizes: Of the attention.
        block: Side of a block in cells.
        halo: Cells around it.

    Raises:
        ValueError: ``block`` below 1 or ``halo`` below 0.
    """

    name = "halo_window"
    exclusive = "windows over a grid"

    def __init__(self, sizes: Sizes, *, block: int = 4, halo: int = 2) -> None:
        super().__init__()
        if block < 1 or halo < 0:
            raise ValueError(f"block={block} must be at least 1 and halo={halo} at least 0")
        self.block, self.halo = block, halo
        side = 2 * (block + halo) - 1
        self.table = nn.Parameter(torch.empty(sizes.heads, side, side))
        nn.init.trunc_normal_(self.table, std=0.02)

    def prepare(self, call: Call, query: Tensor, key: Tensor) -> Mapping[str, Operand]:
        """The bias (1, h, N, N) and which keys lie within a query's halo (1, 1, N, N)."""
        row, column = cells(call, self.name)
        visible = self._near(row) & self._near(column)
        return _operands(self.table, row, column, visible)

    def _near(self, axis: Tensor) -> Tensor:
        """(N, N): the key's coordinate lies in the query's block or its halo."""
        start = (axis // self.block * self.block)[:, None]
        return (axis >= start - self.halo) & (axis < start + self.block + self.halo)

    def bias(self, block: Block) -> Tensor:
        """The learnt bias (1, h, R, M)."""
        return block.operands["bias"]

    def visible(self, block: Block) -> Tensor:
        """(1, 1, R, M)."""
        return block.operands["visible"]


def cells(call: Call, name: str) -> tuple[Tensor, Tensor]:
    """Row and column (N,) of each token of a grid, or one sentence about its absence."""
    call.needs_own_sequence(name)
    if call.cache is not None:
        raise UserError(f"attn={name} is over a whole grid: it cannot be cached.")
    geometry, _ = call.needs_geometry(name)
    if geometry.grid is None:
        raise UserError(
            f"attn={name} needs the tokens of a grid: make the geometry by Geometry.from_grid(height, width)."
        )
    index = torch.arange(geometry.grid[0] * geometry.grid[1], device=call.query.device)
    return index // geometry.grid[1], index % geometry.grid[1]


def _operands(table: Tensor, row: Tensor, column: Tensor, visible: Tensor) -> dict[str, Operand]:
    middle = table.shape[-1] // 2
    down, right = ((axis - axis[:, None]).clamp(-middle, middle) + middle for axis in (row, column))
    return {"bias": Operand(table[:, down, right][None], rows=2), "visible": Operand(visible[None, None], rows=2)}


MECHANISMS = (
    Mechanism(
        name="swin_window",
        build=SwinWindows,
        term=True,
        sockets=("token",),
        summary="shifted windows of a grid with relative position bias",
        paper="Liu et al. 2021",
        equations="4",
    ),
    Mechanism(
        name="halo_window",
        build=HaloWindows,
        term=True,
        sockets=("token",),
        summary="blocks of a grid with a halo around each",
        paper="Vaswani et al. 2021",
        equations="§2.2",
    ),
)
