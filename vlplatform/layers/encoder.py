"""Transformer encoder: attention and feed-forward, each with its residual and norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from vlplatform.attention.cache import Cache
from vlplatform.attention.score_term import Depth
from vlplatform.geometry import Geometry
from vlplatform.layers.feed_forward import Activation, FeedForward
from vlplatform.layers.norm import Norm, make
from vlplatform.layers.residual import Order, Residual
from vlplatform.layers.spec import Spec, attentions


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network.

    Dropout stands where Vaswani et al. (2017) have it, on the output of each sublayer, and on the hidden units of the
    feed-forward network, as all code of the five papers does.

    Args:
        attention: Any token attention.
        dim: Model width D.
        hidden: Width of the feed-forward network.
        dropout: Rate of all of them.
        hidden_dropout: Of the hidden units where it differs (fairseq's ``activation_dropout``, 0 by default there).
        order: ``post`` or ``pre`` norm.
        norm: Which norm.
        activation: Of the feed-forward network.
    """

    def __init__(
        self,
        attention: nn.Module,
        dim: int,
        hidden: int,
        *,
        dropout: float = 0.1,
        hidden_dropout: float | None = None,
        order: Order = "post",
        norm: Norm = "layer",
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.attention = attention
        of_hidden = dropout if hidden_dropout is None else hidden_dropout
        self.feed_forward = FeedForward(dim, hidden, dropout=of_hidden, activation=activation)
        self.around_attention = Residual(dim, dropout=dropout, order=order, norm=norm)
        self.around_feed_forward = Residual(dim, dropout=dropout, order=order, norm=norm)

    def forward(
        self,
        tokens: Tensor,
        *,
        geometry: Geometry | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        cache: Cache | None = None,
        depth: Depth | None = None,
    ) -> Tensor:
        """(B, N, D) → (B, N, D); arguments as :class:`~vlplatform.attention.multi_head.MultiHeadAttention` has them."""

        def attend(x: Tensor) -> Tensor:
            return self.attention(x, geometry=geometry, mask=mask, causal=causal, cache=cache, depth=depth)

        return self.around_feed_forward(self.around_attention(tokens, attend), self.feed_forward)


class Encoder(nn.Module):
    """A stack of encoder layers.

    Args:
        dim: Model width D.
        layers: How many.
        attn: One spec for all layers, or one per layer.
        heads: Heads.
        hidden: Width of the feed-forward networks, 4 D unless given.
        dropout: Of sublayers' outputs and hidden units.
        attention_dropout: Of attention weights.
        hidden_dropout: Of hidden units where it differs.
        order: ``post`` norm, or ``pre`` with one more norm at the end.
        norm: Which norm.
        activation: Of the feed-forward networks.
    """

    def __init__(
        self,
        dim: int,
        layers: int,
        *,
        attn: Spec | Sequence[Spec] = "sa",
        heads: int = 8,
        hidden: int | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        hidden_dropout: float | None = None,
        order: Order = "post",
        norm: Norm = "layer",
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        made = attentions(attn, layers, dim=dim, heads=heads, dropout=attention_dropout)
        common: dict[str, Any] = {"dropout": dropout, "hidden_dropout": hidden_dropout, "order": order}
        common |= {"norm": norm, "activation": activation}
        self.layers = nn.ModuleList(EncoderLayer(each, dim, hidden or 4 * dim, **common) for each in made)
        self.norm = make(norm, dim) if order == "pre" else None

    def forward(
        self, tokens: Tensor, *, geometry: Geometry | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """The last layer's tokens (B, N, D), and those of all layers from the bottom up.

        Args:
            tokens: (B, N, D).
            geometry: Where they lie, for attention that needs it.
            mask: (B, N) booleans, true for real tokens.
        """
        depth, every = Depth(), []
        for i, layer in enumerate(self.layers):
            tokens = layer(tokens, geometry=geometry, mask=mask, depth=depth.at(i))
            every.append(tokens)
        return (tokens if self.norm is None else self.norm(tokens)), every
