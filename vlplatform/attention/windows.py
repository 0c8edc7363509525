"""Attention in local windows of a grid: Swin's shifted windows and HaloNet's blocks with halos.

The baselines of MD-SAN, table IX: Liu et al., "Swin Transformer" (2021), §3.2; Vaswani et al., "Scaling Local
Self-Attention for Parameter Efficient Visual Backbones" (2021), §2.2. Both learn a bias for each relative position; so
does Swin's paper, while HaloNet's multiplies the query with a vector for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from vlplatform.attention.kernels.flex import Pairwise, Sight
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.score_term import Block, Call, Operand, ScoreTerm, Sizes
from vlplatform.errors import UserError


class _Windows(ScoreTerm, ABC):
    """What both kinds share: which cells see each other, and a bias (h, 2 · reach + 1, 2 · reach + 1) per offset."""

    exclusive = "windows over a grid"

    def __init__(self, sizes: Sizes, reach: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(sizes.heads, 2 * reach + 1, 2 * reach + 1))
        nn.init.trunc_normal_(self.table, std=0.02)

    @abstractmethod
    def _sight(self, row: Tensor, column: Tensor, odd: bool) -> Sight:
        """Whether query and key, given by their indices, share a window; in the layers of odd index if ``odd``."""

    def _seen(self, call: Call) -> tuple[Sight, Callable[[Tensor, Tensor], Tensor]]:
        """Which cells see each other, and the place in the table of two that do; once for all layers."""
        row, column = cells(call, self.title)
        odd = bool(call.depth.layer % 2)

        def compute() -> tuple[Sight, Callable[[Tensor, Tensor], Tensor]]:
            sight, side = self._sight(row, column, odd), self.table.shape[-1]
            key = row * side + column
            query = key - side * side // 2

            def place(i: Tensor, j: Tensor) -> Tensor:
                return torch.where(sight(i, j), key[j] - query[i], 0)

            return sight, place

        return call.once(("windows", self.settings(), odd), compute)

    def prepare(self, call: Call, query: Tensor, key: Tensor) -> Mapping[str, Operand]:
        """The bias (1, h, N, N) and which pairs share a window (1, 1, N, N)."""
        sight, place = self._seen(call)

        def compute() -> tuple[Tensor, Tensor]:
            index = torch.arange(call.keys, device=query.device)
            return place(index[:, None], index), sight(index[:, None], index)[None, None]

        places, visible = call.once("places in windows", compute, sight)
        return {
            "bias": Operand(self.table.flatten(1)[:, places][None], rows=2),
            "visible": Operand(visible, rows=2),
        }

    def bias(self, block: Block) -> Tensor:
        """The learnt bias (1, h, R, M)."""
        return block.operands["bias"]

    def visible(self, block: Block) -> Tensor:
        """(1, 1, R, M)."""
        return block.operands["visible"]

    def pairwise(self, call: Call) -> Pairwise:
        """Bias and sight of two cells."""
        sight, place = self._seen(call)
        table = self.table.flatten(1).to(torch.promote_types(self.table.dtype, torch.float32))

        def bias(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return table[h, place(i, j)]

        return Pairwise(bias=bias, visible=sight)


class SwinWindows(_Windows):
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

    def __init__(self, sizes: Sizes, *, window: int = 7) -> None:
        if window < 1:
            raise ValueError(f"window={window} must be at least 1")
        super().__init__(sizes, window - 1)
        self.window = window

    def _sight(self, row: Tensor, column: Tensor, odd: bool) -> Sight:
        shift = self.window // 2 if odd else 0
        in_row, in_column = ((axis - shift) // self.window for axis in (row, column))
        window = in_row * (len(row) + 1) + in_column

        def share(i: Tensor, j: Tensor) -> Tensor:
            return window[i] == window[j]

        return share


class HaloWindows(_Windows):
    """Each token attends to its block of ``block`` × ``block`` cells and those up to ``halo`` cells around the block.

    Args:
        sizes: Of the attention.
        block: Side of a block in cells.
        halo: Cells around it.

    Raises:
        ValueError: ``block`` below 1 or ``halo`` below 0.
    """

    name = "halo_window"

    def __init__(self, sizes: Sizes, *, block: int = 4, halo: int = 2) -> None:
        if block < 1 or halo < 0:
            raise ValueError(f"block={block} must be at least 1 and halo={halo} at least 0")
        super().__init__(sizes, block + halo - 1)
        self.block, self.halo = block, halo

    def _sight(self, row: Tensor, column: Tensor, odd: bool) -> Sight:
        top, left = (axis // self.block * self.block - self.halo for axis in (row, column))
        side = self.block + 2 * self.halo

        def near(i: Tensor, j: Tensor) -> Tensor:
            down, right = row[j] - top[i], column[j] - left[i]
            return (down >= 0) & (down < side) & (right >= 0) & (right < side)

        return near


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
