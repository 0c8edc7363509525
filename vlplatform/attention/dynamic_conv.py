"""Dynamic and lightweight convolution over tokens: a small window of weights, from the position alone or fixed.

Wu et al., "Pay Less Attention with Lightweight and Dynamic Convolutions" (ICLR 2019), §3 and §4. Public code:
facebookresearch/fairseq. Shapes: B batch, N positions, D model width, h heads, K taps of the kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform.attention.cache import Cache
from vlplatform.attention.kernels.band import dense, skew
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.score_term import Depth, forbidden
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry

_WHOLE = 128  # positions up to which one band over all of them is faster than several
_BLOCK = 32  # positions of a band where there are several


def dynamic_convolution(x: Tensor, weights: Tensor, *, causal: bool = False) -> Tensor:
    """``y_{i,c} = Σ_k w_{i,head(c),k} x_{i+k−P,c}``, zero outside the sequence; P = K − 1 if causal, else ⌊(K−1)/2⌋.

    The filters of some positions, laid out as a band, are one matrix; it multiplies the positions they reach. Beyond
    128 positions the bands are of max(32, K − 1), so that time and memory grow with N, not N²; a program exported for
    any length has one band.

    Args:
        x: (B, M, D).
        weights: (B or 1, N, h, K), of the last N ≤ M positions; each head has D / h neighbouring channels.
        causal: The window ends at the position itself.

    Returns:
        (B, N, D).
    """
    length, (heads, kernel) = weights.shape[1], weights.shape[2:]
    before = _before(kernel, causal) - (x.shape[1] - length)  # places that the first window reaches before x
    if before < 0:
        x, before = x[:, -before:], 0
    if not isinstance(length, int) or length <= _WHOLE:  # a program exported for any length has no int here
        band = skew(weights.transpose(1, 2))[..., before : before + x.shape[1]]  # (B or 1, h, N, M)
        mixed = band @ x.unflatten(2, (heads, -1)).transpose(1, 2)
        return mixed.transpose(1, 2).flatten(2)
    block = max(_BLOCK, kernel - 1)
    blocks = -(-length // block)
    rows = F.pad(weights, (0, 0, 0, 0, 0, blocks * block - length)).unflatten(1, (blocks, block))
    own = F.pad(x, (0, 0, before, (blocks + 1) * block - x.shape[1] - before)).unflatten(1, (blocks + 1, block))
    reached = torch.cat((own[:, :-1], own[:, 1:, : kernel - 1]), 2)  # (B, blocks, block + K − 1, D)
    mixed = skew(rows.transpose(2, 3)) @ reached.unflatten(3, (heads, -1)).transpose(2, 3)
    return mixed.transpose(2, 3).flatten(1, 2).flatten(2)[:, :length]


def lightweight_convolution(x: Tensor, weights: Tensor, queries: int | None = None, *, causal: bool = False) -> Tensor:
    """:func:`dynamic_convolution` with the same filters at all positions.

    Args:
        x: (B, M, D).
        weights: (h, K).
        queries: Number N of the last positions to compute; all M unless given.
        causal: The window ends at the position itself.

    Returns:
        (B, N, D).
    """
    filters = weights.expand(1, x.shape[1] if queries is None else queries, -1, -1)
    return dynamic_convolution(x, filters, causal=causal)  # conv1d's backward pass was measured far slower


def inside(real: Tensor, queries: int, kernel: int, *, causal: bool = False) -> Tensor:
    """Whether each place of the windows exists and is real.

    Args:
        real: (B, M) booleans.
        queries: Number N of the last positions.
        kernel: Taps K.
        causal: The window ends at the position itself.

    Returns:
        (B, N, K) booleans.
    """
    before = _before(kernel, causal) - (real.shape[1] - queries)
    padded = F.pad(real, (before, queries + kernel - 1 - before - real.shape[1]))
    steps = torch.arange(queries + kernel - 1, device=real.device)
    return padded[:, steps[:queries, None] + steps[:kernel]]


def _before(kernel: int, causal: bool) -> int:
    return kernel - 1 if causal else (kernel - 1) // 2


class _Convolution(nn.Module, ABC):
    """What both convolutions share: maps in and out, padding, the cache, and the calling of token attention."""

    name: ClassVar[str]

    def __init__(self, dim: int, heads: int, kernel: int, glu: bool, dropout: float, renormalise: bool) -> None:
        super().__init__()
        if min(dim, heads, kernel) < 1:
            raise ValueError(f"dim={dim}, heads={heads} and kernel={kernel} must be at least 1")
        if dim % heads:
            raise ValueError(f"dim={dim} is not divisible by heads={heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must be at least 0 and below 1")
        self.heads, self.kernel, self.glu = heads, kernel, glu
        self.dropout, self.renormalise = dropout, renormalise
        self.input = nn.Linear(dim, 2 * dim if glu else dim)
        self.output = nn.Linear(dim, dim)

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """The filters before the softmax over their taps, from what is convolved (B, N, D)."""

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        geometry: Geometry | tuple[Geometry, Geometry] | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        cache: Cache | None = None,
        query_mask: Tensor | None = None,
        depth: Depth | None = None,
    ) -> Tensor:
        """Mixed tokens (B, N, D); padded positions, and hence fully padded sequences, give zeros.

        Args:
            query: (B, N, D).
            key: None: the mechanism mixes places of one sequence.
            value: None.
            geometry: Not used: positions are those in the sequence.
            mask: (B, N) booleans, true where a token is real; with a cache (B, M), of the earlier tokens too.
            causal: The window holds the position and the K − 1 before it; else it is centred.
            cache: What earlier steps of a decoder left; the query then holds the new tokens only.
            query_mask: Not used: the mask says which queries are real.
            depth: Not used.

        Raises:
            UserError: A key or value, a shape or type that does not fit, or a cache without ``causal``.
        """
        real, new, x, places = self._places(query, key, value, mask, causal, cache)
        taps = self._taps(x, places, real, causal)
        mixed = (
            lightweight_convolution(places, taps, query.shape[1], causal=causal)
            if taps.ndim == 2
            else dynamic_convolution(places, taps, causal=causal)
        )
        out = self.output(mixed)
        return out if new is None else out.masked_fill(~new, 0)

    def attention_weights(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        cache: Cache | None = None,
        **_: Any,
    ) -> Tensor:
        """The filters at the places that they weigh, (B, h, N, M); rows of padding are 0."""
        own_cache = None if cache is None else cache.copy()  # looking changes nothing
        real, new, x, places = self._places(query, key, value, mask, causal, own_cache)
        taps = self._taps(x, places, real, causal)
        taps = taps.expand(*x.shape[:2], self.heads, self.kernel).transpose(1, 2)
        taps = taps if new is None else taps.masked_fill(~new[:, None], 0)
        first = places.shape[1] - x.shape[1]
        weights = dense(taps, first, _before(self.kernel, causal), places.shape[1])
        return weights if real is None else weights.masked_fill(~real[:, None, None, -places.shape[1] :], 0)

    def _places(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Tensor | None,
        causal: bool,
        cache: Cache | None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
        """The mask, its part for the queries (B, N, 1), what is convolved there, and at all places."""
        real = self._check(query, key, value, mask, causal, cache)
        new = None if real is None else real[:, real.shape[1] - query.shape[1] :, None]
        if new is not None:  # before the maps too, so that not even NaN in padding reaches anything
            query = query.masked_fill(~new, 0)
        x = self.input(query)
        x = F.glu(x, -1) if self.glu else x
        if new is not None:
            x = x.masked_fill(~new, 0)
        return real, new, x, x if cache is None else self._remember(cache, x)

    def macs(self, queries: int, keys: int | None = None) -> int:
        """Multiply–adds for one item with N queries: the maps and K taps a channel (bands multiply zeros as well)."""
        maps = sum(part.weight.numel() for part in self.children() if isinstance(part, nn.Linear))
        return queries * (maps + self.output.in_features * self.kernel)

    def _taps(self, x: Tensor, places: Tensor, real: Tensor | None, causal: bool) -> Tensor:
        """The filters of the last positions ``x`` (B, N, D) of ``places`` (B, M, D): (B or 1, N, h, K), or (h, K)."""
        batch, queries, _ = x.shape
        logits = self.logits(x)
        if self.renormalise:
            if real is None:
                real = torch.ones(1, places.shape[1], dtype=torch.bool, device=x.device)
            within = inside(real[:, real.shape[1] - places.shape[1] :], queries, self.kernel, causal=causal)
            logits = logits.masked_fill(~within[:, :, None], forbidden(logits.dtype))
        weights = logits.softmax(-1)
        if self.training and self.dropout:
            weights = F.dropout(weights.expand(batch, queries, -1, -1), self.dropout)
        return weights

    def _remember(self, cache: Cache, x: Tensor) -> Tensor:
        """The kept places with the new ones behind them; the next step needs the last K − 1."""
        kept = cache.tensors.get("places")
        places = x if kept is None else torch.cat((kept, x), 1)
        cache.tensors["places"] = places[:, max(0, places.shape[1] - self.kernel + 1) :]
        cache.length += x.shape[1]
        return places

    def _check(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Tensor | None,
        causal: bool,
        cache: Cache | None,
    ) -> Tensor | None:
        for name, given in (("key", key), ("value", value)):
            if given is not None:
                raise UserError(
                    f"{name} of shape {tuple(given.shape)} was given, but attn={self.name} mixes places of one "
                    f"sequence, hence is self-attention: call it without {name}=…."
                )
        width = self.input.in_features
        if query.ndim != 3 or query.shape[-1] != width:
            raise UserError(f"query has shape {tuple(query.shape)}; expected (batch, tokens, {width}).")
        if cache is not None and not causal:
            raise UserError(
                f"cache was given with causal=False, but step by step attn={self.name} has no later tokens to look "
                "at; expected causal=True."
            )
        if mask is None:
            return None
        expected = (query.shape[0], query.shape[1] + (cache.length if cache is not None else 0))
        if mask.dtype != torch.bool or mask.shape != expected:
            raise UserError(
                f"mask has shape {tuple(mask.shape)} and type {mask.dtype}; attn={self.name} expects booleans of shape "
                f"{expected}, true where a token is real."
            )
        return mask


class DynamicConvolution(_Convolution):
    """``W_o y`` with ``y_{i,c} = Σ_k softmax_K(W_f x_i)_{head(c),k} x_{i+k−P,c}`` and ``x = GLU(W_i tokens)``.

    W_f has no bias; D / h neighbouring channels share a filter, which depends on its position's token alone. P is
    K − 1 under ``causal``, else ⌊(K−1)/2⌋.

    Where we differ: taps outside the sequence keep their weight, as in the authors' code, and so do taps on padding
    (its tokens are zeros); ``renormalise`` leaves both out of the softmax, which is the position attention of the
    bilateral paper with padding −∞. The code's window path cuts a causal filter longer than the sequence before the
    softmax, its band path and its decoding after it; here always after. Padded positions give zeros.

    Args:
        dim: Model width D.
        heads: Filters h of a position.
        kernel: Taps K.
        glu: The map in has a gated linear unit.
        dropout: Rate at which taps are dropped after the softmax.
        renormalise: The softmax is over real places inside the sequence.

    Raises:
        ValueError: ``dim`` is not divisible by ``heads``, or a number out of range.
    """

    name = "dynamic_conv"

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        kernel: int = 31,
        glu: bool = True,
        dropout: float = 0.0,
        renormalise: bool = False,
    ) -> None:
        super().__init__(dim, heads, kernel, glu, dropout, renormalise)
        self.filter = nn.Linear(dim, heads * kernel, bias=False)

    def logits(self, x: Tensor) -> Tensor:
        """(B, N, h, K)."""
        return self.filter(x).unflatten(-1, (self.heads, self.kernel))


class LightConvolution(_Convolution):
    """:class:`DynamicConvolution` with the same learnt filters ``softmax_K(W)`` at all positions.

    Where we differ: as there.

    Args:
        dim: Model width D.
        heads: Filters h.
        kernel: Taps K.
        glu: The map in has a gated linear unit.
        dropout: Rate at which taps are dropped after the softmax, at each position anew.
        renormalise: The softmax is over real places inside the sequence.

    Raises:
        ValueError: ``dim`` is not divisible by ``heads``, or a number out of range.
    """

    name = "light_conv"

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        kernel: int = 31,
        glu: bool = True,
        dropout: float = 0.0,
        renormalise: bool = False,
    ) -> None:
        super().__init__(dim, heads, kernel, glu, dropout, renormalise)
        self.filter = nn.Parameter(torch.empty(heads, kernel))
        nn.init.xavier_uniform_(self.filter[:, None])

    def logits(self, x: Tensor) -> Tensor:
        """(h, K)."""
        return self.filter


MECHANISMS = (
    Mechanism(
        name="dynamic_conv",
        build=DynamicConvolution,
        sockets=("token",),
        summary="convolution whose filters each position predicts",
        paper="Wu et al., ICLR 2019",
        equations="§4",
    ),
    Mechanism(
        name="light_conv",
        build=LightConvolution,
        sockets=("token",),
        summary="depthwise convolution with softmaxed filters that heads share",
        paper="Wu et al., ICLR 2019",
        equations="§3",
    ),
)
