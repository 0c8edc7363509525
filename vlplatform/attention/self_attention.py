"""Plain self-attention by name, the host of all score terms, and the wider baselines of MD-SAN, table X."""

from __future__ import annotations

from typing import Any

from torch import nn

from vlplatform.attention import composition
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.multi_head import MultiHeadAttention, Scale, sizes_of


def _with_terms(
    dim: int,
    *,
    heads: int = 8,
    head_dim: int | None = None,
    key_dim: int | None = None,
    bias: bool = True,
    scale: Scale = "head",
    dropout: float = 0.0,
    terms: list[Any] | None = None,
    memory_dim: int | None = None,
) -> nn.Module:
    """``W_o concat_i softmax(q_i k_iᵀ / √d) v_i``, and the host of all score terms.

    Terms are listed in ``terms``, or their names joined by a plus (``attn=nsa+gsa``).

    Args:
        dim: Model width D.
        heads: Heads h.
        head_dim: Width of one head's query, key and value; D / h unless given.
        key_dim: Width of one head's query and key, where it differs.
        bias: The four projections have biases.
        scale: Logits are divided by the root of the head's width or of the model's.
        dropout: Rate at which attention weights are dropped.
        terms: Names of score terms, each alone or with its settings: [nsa, {name: dsa, distance: euclidean}].
        memory_dim: Width of the keys' tokens.
    """
    sizes = sizes_of(dim, heads, head_dim, key_dim, scale, memory_dim)
    made = composition.terms(terms or [], sizes)
    return MultiHeadAttention(
        dim,
        heads=heads,
        head_dim=head_dim,
        key_dim=key_dim,
        bias=bias,
        scale=scale,
        dropout=dropout,
        memory_dim=memory_dim,
        terms=made,
    )


def _many_heads(
    dim: int,
    *,
    heads: int = 8,
    times: int = 3,
    head_dim: int | None = None,
    key_dim: int | None = None,
    bias: bool = True,
    scale: Scale = "head",
    dropout: float = 0.0,
    memory_dim: int | None = None,
) -> nn.Module:
    """``times`` · h heads of width D / h: ``W_o`` reads ``times`` · D numbers.

    Args:
        dim: Model width D.
        heads: h.
        times: How many times as many heads.
        head_dim: Width of one head's query, key and value; D / h unless given.
        key_dim: Width of one head's query and key, where it differs.
        bias: The four projections have biases.
        scale: Logits are divided by the root of the head's width or of the model's.
        dropout: Rate at which attention weights are dropped.
        memory_dim: Width of the keys' tokens.

    Raises:
        ValueError: A size below 1, or D that h does not divide without ``head_dim``.
    """
    return MultiHeadAttention(
        dim,
        heads=heads * _checked(times),
        head_dim=sizes_of(dim, heads, head_dim).value_dim,
        key_dim=key_dim,
        bias=bias,
        scale=scale,
        dropout=dropout,
        memory_dim=memory_dim,
    )


def _extended(
    dim: int,
    *,
    heads: int = 8,
    head_dim: int | None = None,
    bias: bool = True,
    scale: Scale = "head",
    dropout: float = 0.0,
    memory_dim: int | None = None,
) -> nn.Module:
    """``softmax(q_i k_iᵀ / √D) v_i`` with queries and keys of each head as wide as the model.

    Args:
        dim: Model width D.
        heads: Heads h.
        head_dim: Width of one head's value; D / h unless given.
        bias: The four projections have biases.
        scale: Logits are divided by the root of the head's width or of the model's, which are one here.
        dropout: Rate at which attention weights are dropped.
        memory_dim: Width of the keys' tokens.

    Raises:
        ValueError: A size below 1, or D that h does not divide without ``head_dim``.
    """
    return MultiHeadAttention(
        dim,
        heads=heads,
        head_dim=head_dim,
        key_dim=dim,
        bias=bias,
        scale=scale,
        dropout=dropout,
        memory_dim=memory_dim,
    )


def _large(
    dim: int,
    *,
    heads: int = 8,
    times: int = 3,
    head_dim: int | None = None,
    key_dim: int | None = None,
    bias: bool = True,
    scale: Scale = "head",
    dropout: float = 0.0,
    memory_dim: int | None = None,
) -> nn.Module:
    """h heads of width ``times`` · D / h.

    Args:
        dim: Model width D.
        heads: Heads h.
        times: How many times as wide.
        head_dim: Width that is multiplied; D / h unless given.
        key_dim: Width of one head's query and key, where it differs; not multiplied.
        bias: The four projections have biases.
        scale: Logits are divided by the root of the head's width or of the model's.
        dropout: Rate at which attention weights are dropped.
        memory_dim: Width of the keys' tokens.

    Raises:
        ValueError: A size below 1, or D that h does not divide without ``head_dim``.
    """
    return MultiHeadAttention(
        dim,
        heads=heads,
        head_dim=_checked(times) * sizes_of(dim, heads, head_dim).value_dim,
        key_dim=key_dim,
        bias=bias,
        scale=scale,
        dropout=dropout,
        memory_dim=memory_dim,
    )


def _checked(times: int) -> int:
    if times < 1:
        raise ValueError(f"times={times} must be at least 1")
    return times


MECHANISMS = (
    Mechanism(
        name="sa",
        build=_with_terms,
        sockets=("token",),
        summary="multi-head scaled dot-product attention",
        paper="Vaswani et al. 2017",
        equations="§3.2",
    ),
    Mechanism(
        name="mh_heads",
        build=_many_heads,
        sockets=("token",),
        summary="three times as many heads of the same width",
        paper="MD-SAN",
        equations="table X",
    ),
    Mechanism(
        name="extend_qk",
        build=_extended,
        sockets=("token",),
        summary="queries and keys of each head as wide as the model",
        paper="MD-SAN",
        equations="table X",
    ),
    Mechanism(
        name="large",
        build=_large,
        sockets=("token",),
        summary="heads three times as wide",
        paper="MD-SAN",
        equations="table X",
    ),
)
