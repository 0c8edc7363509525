"""Ada-ClustFormer: attention weighted by a clustering matrix over a sequence or a grid (ACF, eq. 2–8).

No public code was found. C_ij ∈ [0, 1] says how far the tokens from i to j belong together; it is one for all heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.score_term import Block, Call, Depth, Operand, ScoreTerm, Sizes, forbidden
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry

Scores = Literal["weights", "logits"]


class _Merge(nn.Module):
    """``FC([s_k ; mean of s_i … s_{k−1}])`` of eq. 4 for all i < k, and the product of its sigmoids (eq. 5).

    The map is linear, hence of every token two numbers are enough, and means come from running sums: O(N·D + N²).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(2 * dim, 1)

    def numbers(self, tokens: Tensor) -> Tensor:
        """What each token (…, N, D) counts for as the new one and within a mean: (…, N, 2)."""
        return F.linear(tokens, self.map.weight.view(2, -1))

    def forward(self, numbers: Tensor, real: Tensor | None) -> Tensor:
        """C (…, N, N), symmetric, 1 on the diagonal; tokens that are not ``real`` (…, N) are as if absent."""
        wide = torch.promote_types(numbers.dtype, torch.float32)
        new, within = (numbers.to(wide) if real is None else numbers.to(wide).masked_fill(~real[..., None], 0)).unbind(
            -1
        )
        count = torch.ones_like(within) if real is None else real.to(wide)
        sums, counts = (F.pad(x.cumsum(-1), (1, 0))[..., :-1] for x in (within, count))  # of all before each token
        before = sums[..., None, :] - sums[..., :, None]  # over i … k−1
        tokens = counts[..., None, :] - counts[..., :, None]
        score = new[..., None, :] + before / tokens.clamp_min(1) + self.map.bias.to(wide)
        step = F.logsigmoid(score)
        if real is not None:
            step = step.masked_fill(~real[..., None, :] | (tokens <= 0), 0)  # a token that is not there parts nothing
        chain = step.triu(1).cumsum(-1).exp().triu(1)
        return chain + chain.transpose(-2, -1) + torch.eye(chain.shape[-1], dtype=wide, device=chain.device)


class _Clusters(ScoreTerm):
    """What the two forms share: the use of C in attention (eq. 2) and its growth over depth (eq. 6)."""

    exclusive = "clustering matrices"

    def __init__(self, sizes: Sizes, scores: Scores, grows: bool, rate: int, window: int | None) -> None:
        super().__init__()
        if scores not in get_args(Scores):
            raise ValueError(f"scores={scores} is not one of {', '.join(get_args(Scores))}")
        if rate < 1 or (window is not None and window < 0):
            raise ValueError(f"rate={rate} must be at least 1 and window={window} at least 0")
        if rate > 1 and window is not None:
            raise ValueError(f"rate={rate} has no meaning with window={window}: a fixed window is not sampled")
        self.scores, self.grows, self.rate, self.window = scores, grows, rate, window

    def forward(self, clusters: Tensor, depth: Depth) -> Tensor:
        """C̃ = (1 − C) C̃_below + C (eq. 6) of C (B or 1, N, M), kept for the layer above; C itself without growth.

        Every call of the attention comes through here, hence a forward hook sees what each layer clustered.
        """
        if not self.grows:
            return clusters
        kept, layer = depth.shared, depth.layer
        below = next((i for i in range(layer - 1, -1, -1) if (self.name, i) in kept), None)
        if below is not None:
            clusters = kept[self.name, below] + clusters * (1 - kept[self.name, below])
        kept[self.name, layer] = clusters  # by layer: a layer that is computed again must find the same
        return clusters

    def _grown(self, clusters: Tensor, call: Call) -> Mapping[str, Operand]:
        """What the blocks read: :meth:`forward` of C (B or 1, N, M), one for all heads."""
        return {"clusters": Operand(self(clusters, call.depth)[:, None].to(call.query.dtype), rows=2)}

    def modulate(self, logits: Tensor, block: Block) -> Tensor:
        """With ``scores=logits``: logits ∘ C."""
        return logits * block.operands["clusters"] if self.scores == "logits" else logits

    def weights(self, probabilities: Tensor, block: Block) -> Tensor:
        """With ``scores=weights``: softmax(A ∘ C) over the keys allowed."""
        if self.scores == "logits":
            return probabilities
        product = probabilities * block.operands["clusters"]
        if block.allowed is not None:
            product = product.masked_fill(~block.allowed, forbidden(product.dtype))
        return product.softmax(-1)


class Clusters1d(_Clusters):
    """``softmax(A ∘ C)`` with C over a sequence (eq. 2–5); C_ij uses nothing beyond i … j, hence is causal as it is.

    Where the text is open: A is the weights, softmaxed once already, as eq. 1 and 2 read; ``scores=logits`` is one
    softmax of the logits times C. Padding is left out of products and means. C is one for all heads.

    Args:
        sizes: Of the attention.
        scores: What C multiplies: the ``weights`` (eq. 2, which softmaxes twice) or the ``logits``.
        grows: C̃ of eq. 6 takes the place of C; without it the ablation "w/o Eq. (6)".
        rate: Down–up sampling: C is computed over means of so many neighbours (2 and 4 in table 1).
        window: C is 1 up to this distance and else 0, and nothing is learnt ("FS@2").

    Raises:
        ValueError: An option out of range.
    """

    name = "acf1d"

    def __init__(
        self, sizes: Sizes, *, scores: Scores = "weights", grows: bool = True, rate: int = 1, window: int | None = None
    ) -> None:
        super().__init__(sizes, scores, grows, rate, window)
        self.causal_calls = False if rate > 1 else None
        self.merge = _Merge(sizes.dim) if window is None else None

    def prepare(self, call: Call, query: Tensor, key: Tensor) -> Mapping[str, Operand]:
        """C of the call's queries."""
        call.needs_own_sequence(self.title)
        if self.merge is None:
            place = torch.arange(call.keys, device=query.device)
            fixed = (place - place[call.first :, None]).abs() <= (self.window or 0)
            return self._grown(fixed[None].to(query.dtype), call)
        if self.rate > 1 and call.causal:
            raise UserError(
                f"attn={self.title} with rate={self.rate} mixes neighbours, later ones too: it cannot be causal."
            )
        numbers = self.merge.numbers(call.query)
        if call.cache is not None:
            numbers = call.cache.extend("acf", numbers, 1)
        sampled, real = pooled(numbers, call.real_key, self.rate)
        clusters = self.merge(sampled, real)
        if self.rate > 1:
            clusters = unpooled(unpooled(clusters, self.rate, 1, call.keys), self.rate, 2, call.keys)
        return self._grown(clusters[:, call.first :], call)

    def macs(self, queries: int, keys: int) -> int:
        """The two numbers of each token."""
        return 0 if self.merge is None else queries * self.merge.map.weight.numel()


class Clusters2d(_Clusters):
    """``softmax(A ∘ C)`` with C over a grid: C along the top row times C along the left column of the pair's rectangle.

    Equations 7 and 8 with independent axes, each with a map of its own. Regions, which have boxes but no grid, are
    arranged on one first (§3.1): sorted by x into groups of ``height``, by y within each. Else as :class:`Clusters1d`.

    Args:
        sizes: Of the attention.
        scores: What C multiplies: the ``weights`` or the ``logits``.
        grows: C̃ of eq. 6 takes the place of C.
        rate: Down–up sampling along both axes; 2 in the paper for a grid of 12 × 12.
        window: C is 1 up to this distance in rows and in columns, else 0, and nothing is learnt.
        height: Rows of the grid that regions are arranged on; 6 in the paper.

    Raises:
        ValueError: An option out of range.
    """

    name = "acf2d"
    causal_calls = False

    def __init__(
        self,
        sizes: Sizes,
        *,
        scores: Scores = "weights",
        grows: bool = True,
        rate: int = 1,
        window: int | None = None,
        height: int = 6,
    ) -> None:
        super().__init__(sizes, scores, grows, rate, window)
        if height < 1:
            raise ValueError(f"height={height} must be at least 1")
        self.height = height
        self.across = _Merge(sizes.dim) if window is None else None
        self.down = _Merge(sizes.dim) if window is None else None

    def prepare(self, call: Call, query: Tensor, key: Tensor) -> Mapping[str, Operand]:
        """C (B, N, N)."""
        call.needs_own_sequence(self.title)
        if call.causal or call.cache is not None:
            raise UserError(f"attn={self.title} is over a whole grid: it cannot be causal or cached.")
        geometry, _ = call.needs_geometry(self.title)
        cell: Tensor | None = None
        if geometry.grid is not None:
            height, width = geometry.grid
        else:
            cell, height, width = arrange(geometry, self.height, call.real_key, query.shape[0])
        if self.window is not None:
            clusters = self._fixed(height, width, query)
        else:
            clusters = self._clusters(call, cell, height, width)
        if cell is not None:
            clusters = clusters.expand(cell.shape[0], -1, -1)
            clusters = clusters.gather(1, cell[:, :, None].expand(-1, -1, clusters.shape[2]))
            clusters = clusters.gather(2, cell[:, None].expand(-1, clusters.shape[1], -1))
        return self._grown(clusters, call)

    def _fixed(self, height: int, width: int, like: Tensor) -> Tensor:
        index = torch.arange(height * width, device=like.device)
        near = [(axis[:, None] - axis).abs() <= (self.window or 0) for axis in (index // width, index % width)]
        return (near[0] & near[1])[None].to(like.dtype)

    def _clusters(self, call: Call, cell: Tensor | None, height: int, width: int) -> Tensor:
        """C (B, H·W, H·W) of the cells."""
        assert self.across is not None
        assert self.down is not None
        numbers = torch.cat((self.across.numbers(call.query), self.down.numbers(call.query)), -1)
        real = call.real_key
        if cell is not None:  # cells without a region are not real
            empty = numbers.new_zeros(numbers.shape[0], height * width, 4)
            there = real if real is not None else torch.ones_like(cell, dtype=torch.bool)
            numbers = empty.scatter(1, cell[..., None].expand(-1, -1, 4), numbers)
            real = torch.zeros_like(empty[..., 0], dtype=torch.bool).scatter(1, cell, there)
        grid = numbers.unflatten(1, (height, width))  # (B, H, W, 4)
        mask = None if real is None else real.unflatten(1, (height, width))
        rows, row_mask = pooled(grid[..., :2].flatten(0, 1), None if mask is None else mask.flatten(0, 1), self.rate)
        turned = grid[..., 2:].transpose(1, 2)
        turned_mask = None if mask is None else mask.transpose(1, 2).flatten(0, 1)
        columns, column_mask = pooled(turned.flatten(0, 1), turned_mask, self.rate)
        along = self.across(rows, row_mask).unflatten(0, (-1, height))  # (B, H, W', W')
        against = self.down(columns, column_mask).unflatten(0, (-1, width))  # (B, W, H', H')
        if self.rate > 1:
            along = unpooled(unpooled(along, self.rate, 2, width), self.rate, 3, width)
            against = unpooled(unpooled(against, self.rate, 2, height), self.rate, 3, height)
        top, left = (torch.minimum(axis[:, None], axis) for axis in (_range(height, grid), _range(width, grid)))
        along = along[:, top].permute(0, 1, 3, 2, 4)  # by row and row: (B, H, W, H, W)
        against = against[:, left].permute(0, 3, 1, 4, 2)
        return (along * against).flatten(3).flatten(1, 2)

    def macs(self, queries: int, keys: int) -> int:
        """The four numbers of each token."""
        return sum(queries * merge.map.weight.numel() for merge in (self.across, self.down) if merge is not None)


def arrange(geometry: Geometry, height: int, real: Tensor | None, batch: int) -> tuple[Tensor, int, int]:
    """Regions on a grid of ``height`` rows (ACF §3.1): each one's cell (B, N), row by row, and the grid's sides.

    Sorted by x, they are cut into columns of ``height``; each column is sorted by y. The last one is filled up with
    cells that hold no region. Padding comes last.

    Args:
        geometry: Of N regions.
        height: Rows H of the grid; its columns are as many as it takes.
        real: (B, N) booleans, or none where all regions are real.
        batch: B.
    """
    points = geometry.points.expand(batch, -1, -1)
    if real is not None:
        points = points.masked_fill(~real[..., None], float("inf"))
    x, y = points.unbind(-1)
    width = -(-x.shape[1] // height)
    column = x.argsort(dim=1, stable=True).argsort(1) // height
    by_y = y.argsort(dim=1, stable=True)
    order = by_y.gather(1, column.gather(1, by_y).argsort(dim=1, stable=True))
    place = order.argsort(1)  # column by column
    return place % height * width + place // height, height, width


def pooled(values: Tensor, real: Tensor | None, rate: int) -> tuple[Tensor, Tensor | None]:
    """Means of ``rate`` neighbours among the real of (…, N, C), and which means have any: (…, ⌈N / rate⌉, C)."""
    if rate == 1:
        return values, real
    length = values.shape[-2]
    spare = -length % rate
    there = torch.ones(values.shape[:-1], dtype=torch.bool, device=values.device) if real is None else real
    there = F.pad(there, (0, spare)).unflatten(-1, (-1, rate))
    values = F.pad(values, (0, 0, 0, spare)).unflatten(-2, (-1, rate)).masked_fill(~there[..., None], 0)
    count = there.sum(-1)
    mean = values.sum(-2) / count.clamp_min(1)[..., None]
    return mean, None if real is None else count > 0


def unpooled(values: Tensor, rate: int, axis: int, length: int) -> Tensor:
    """Each entry along an axis repeated ``rate`` times, cut to ``length``."""
    return values.repeat_interleave(rate, axis).narrow(axis, 0, length)


def _range(length: int, like: Tensor) -> Tensor:
    return torch.arange(length, device=like.device)


MECHANISMS = (
    Mechanism(
        name="acf1d",
        build=Clusters1d,
        term=True,
        sockets=("token",),
        summary="weights times a clustering matrix over the sequence",
        paper="ACF",
        equations="2–6",
    ),
    Mechanism(
        name="acf2d",
        build=Clusters2d,
        term=True,
        sockets=("token",),
        summary="weights times a clustering matrix over the grid's rows and columns",
        paper="ACF",
        equations="2, 6–8",
    ),
)
