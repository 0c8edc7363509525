"""Normalised self-attention (NG-SAN, Guo et al., eq. 5–7; tables 2 and 3). No public code was found."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.score_term import Call, ScoreTerm, Sizes
from vlplatform.errors import UserError

Norm = Literal["instance", "layer", "batch"]
Normalised = Literal["query", "key", "both"]


class NormalizedQueries(ScoreTerm):
    """``softmax(IN(Q) Kᵀ / √d) V``: each channel of the queries has mean 0 and variance 1 over the tokens of its item.

    Variances are biased, ε = 1e-5 inside the root (the text names none), padding is left out of the statistics, and
    the division by √d stays. A single query becomes 0: its output is the plain mean of the values.

    Args:
        sizes: Of the attention.
        norm: ``instance`` (the paper's), ``layer`` (over the channels of each token), ``batch`` (over all items,
            with running statistics in evaluation).
        on: What is normalised (table 3).
        affine: A learnt gain and offset per channel follow (table 2).

    Raises:
        ValueError: Unknown norm or place.
    """

    name = "nsa"

    def __init__(
        self, sizes: Sizes, *, norm: Norm = "instance", on: Normalised = "query", affine: bool = False
    ) -> None:
        super().__init__()
        if norm not in get_args(Norm):
            raise ValueError(f"norm={norm} is not one of {', '.join(get_args(Norm))}")
        if on not in get_args(Normalised):
            raise ValueError(f"on={on} is not one of {', '.join(get_args(Normalised))}")
        self.norm, self.on, self.affine = norm, on, affine
        self.mixes_queries = norm != "layer" and on != "key"
        self.causal_calls = None if norm == "layer" else False
        self.query = _Norm(sizes, norm, affine) if on != "key" else None
        self.key = _Norm(sizes, norm, affine) if on != "query" else None

    def project(self, query: Tensor, key: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        """Normalised query, key or both."""
        if self.norm != "layer" and (call.causal or call.first or (call.own and call.cache is not None)):
            raise UserError(
                f"attn={self.title} with norm={self.norm} has statistics over the whole sequence, later tokens "
                "included: it cannot be causal; use norm=layer or another mechanism there."
            )
        if self.query is not None:
            query = self.query(query, call.real_query)
        if self.key is not None and key.shape[2] == call.key.shape[1]:
            key = self.key(key, call.real_key)
        return query, key


class _Norm(nn.Module):
    """The norm of (B, h, N, d) with statistics per item, per token or over the batch."""

    def __init__(self, sizes: Sizes, kind: Norm, affine: bool) -> None:
        super().__init__()
        shape = (sizes.heads, 1, sizes.key_dim)
        self.axes = {"instance": (2,), "layer": (1, 3), "batch": (0, 2)}[kind]
        self.kind = kind
        self.weight = nn.Parameter(torch.ones(shape)) if affine else None
        self.bias = nn.Parameter(torch.zeros(shape)) if affine else None
        if kind == "batch":
            self.register_buffer("running_mean", torch.zeros(shape))
            self.register_buffer("running_var", torch.ones(shape))

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        if self.kind == "batch" and not self.training:
            mean, variance = self.get_buffer("running_mean"), self.get_buffer("running_var")
            return self._affine((x - mean) * torch.rsqrt(variance + 1e-5))
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if real is None or self.kind == "layer":
            mean = wide.mean(self.axes, keepdim=True)
            centred = wide - mean
            variance = (centred * centred).mean(self.axes, keepdim=True)  # var_mean is slow along strided axes
            count = x[:, :, :, 0].numel() // x.shape[1]
        else:
            there = real[:, None, :, None]
            count = there.sum(self.axes, keepdim=True).clamp_min(1)
            mean = wide.masked_fill(~there, 0).sum(self.axes, keepdim=True) / count
            centred = (wide - mean).masked_fill(~there, 0)
            variance = (centred * centred).sum(self.axes, keepdim=True) / count
            count = count.sum()
        if self.kind == "batch":
            self._update(mean[0], variance[0], count)
        return self._affine((centred * torch.rsqrt(variance + 1e-5)).to(x.dtype))

    def _affine(self, x: Tensor) -> Tensor:
        return x if self.weight is None or self.bias is None else x * self.weight + self.bias

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor, count: Tensor | int) -> None:
        """The running statistics, unbiased, with momentum 0.1 as ``BatchNorm1d``."""
        freedom = (count - 1).clamp_min(1) if isinstance(count, Tensor) else max(count - 1, 1)
        unbiased = variance * count / freedom
        self.get_buffer("running_mean").lerp_(mean.to(self.get_buffer("running_mean").dtype), 0.1)
        self.get_buffer("running_var").lerp_(unbiased.to(self.get_buffer("running_var").dtype), 0.1)


MECHANISMS = (
    Mechanism(
        name="nsa",
        build=NormalizedQueries,
        term=True,
        sockets=("token",),
        summary="queries normalised over the tokens of each item",
        paper="NG-SAN",
        equations="5–7",
    ),
)
