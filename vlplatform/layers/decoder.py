"""Transformer decoder: self-attention, attention to a memory or several, feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from vlplatform.attention.cache import Cache
from vlplatform.attention.mechanism import Socket
from vlplatform.attention.score_term import Depth
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry
from vlplatform.layers.feed_forward import Activation, FeedForward
from vlplatform.layers.norm import Norm, make
from vlplatform.layers.residual import Order, Residual
from vlplatform.layers.spec import Spec, attentions


class DecoderLayer(nn.Module):
    """Self-attention, attention to the memory, then the feed-forward network.

    The second is a token attention with the memory as keys or, for the socket ``fusion``, one over several memories:
    then ``memory`` and its mask are sequences. MCAN's guided attention is this layer with ``causal=False``.

    Args:
        attention: Token attention of the queries to themselves.
        cross: Attention to the memory.
        dim: Model width D.
        hidden: Width of the feed-forward network.
        dropout: Rate of the sublayers' outputs and hidden units.
        hidden_dropout: Of hidden units where it differs.
        order: ``post`` or ``pre`` norm.
        norm: Which norm.
        activation: Of the feed-forward network.
    """

    def __init__(
        self,
        attention: nn.Module,
        cross: nn.Module,
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
        self.attention, self.cross = attention, cross
        self._mixes = any(getattr(part, "mixes_queries", False) for part in cross.modules())
        of_hidden = dropout if hidden_dropout is None else hidden_dropout
        self.feed_forward = FeedForward(dim, hidden, dropout=of_hidden, activation=activation)
        self.around_attention = Residual(dim, dropout=dropout, order=order, norm=norm)
        bare = not getattr(cross, "has_residual", False)  # entangled attention has residuals and norms inside
        self.around_cross = Residual(dim, dropout=dropout, order=order, norm=norm) if bare else None
        self.around_feed_forward = Residual(dim, dropout=dropout, order=order, norm=norm)

    def forward(
        self,
        tokens: Tensor,
        memory: Tensor | Sequence[Tensor],
        *,
        memory_mask: Tensor | Sequence[Tensor | None] | None = None,
        mask: Tensor | None = None,
        causal: bool = True,
        geometry: Geometry | tuple[Geometry, Geometry] | None = None,
        memory_geometry: tuple[Geometry, Geometry] | None = None,
        cache: Cache | None = None,
        depth: Depth | None = None,
    ) -> Tensor:
        """Tokens (B, N, D) with what they found in the memory.

        Args:
            tokens: (B, N, D); with a cache the new ones only.
            memory: (B, M, D'), or one per memory of the socket ``fusion``.
            memory_mask: (B, M) booleans, true for real tokens; one or none per memory.
            mask: Of the tokens, those in the cache included.
            causal: A token attends to no later one.
            geometry: Of the tokens; with a cache a pair, of the new ones and of all so far.
            memory_geometry: Of the tokens and of the memory, for attention to it that needs both.
            cache: What earlier steps left.
            depth: What the layers share.
        """
        if causal and self._mixes:
            raise UserError(
                "the attention to the memory normalises over all queries, later ones included, in a causal decoder: "
                "use norm=layer, or another mechanism there."
            )
        own, other = (None, None) if cache is None else (cache.child("self"), cache.child("memory"))

        def attend(x: Tensor) -> Tensor:
            return self.attention(x, geometry=geometry, mask=mask, causal=causal, cache=own, depth=depth)

        def look(x: Tensor) -> Tensor:
            return self.cross(x, memory, geometry=memory_geometry, mask=memory_mask, cache=other)

        tokens = self.around_attention(tokens, attend)
        tokens = look(tokens) if self.around_cross is None else self.around_cross(tokens, look)
        return self.around_feed_forward(tokens, self.feed_forward)


class Decoder(nn.Module):
    """A stack of decoder layers; each reads the same memory.

    Args:
        dim: Model width D.
        layers: How many.
        attn: Spec of the self-attention, one for all layers or one per layer.
        cross: Spec of the attention to the memory, likewise.
        heads: Heads.
        hidden: Width of the feed-forward networks, 4 D unless given.
        memory_dim: Width of the memory, D unless given.
        fusion: ``cross`` is of the socket ``fusion`` and reads several memories.
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
        cross: Spec | Sequence[Spec] = "sa",
        heads: int = 8,
        hidden: int | None = None,
        memory_dim: int | None = None,
        fusion: bool = False,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        hidden_dropout: float | None = None,
        order: Order = "post",
        norm: Norm = "layer",
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        given: dict[str, Any] = {} if memory_dim is None else {"memory_dim": memory_dim}
        of_tokens = attentions(attn, layers, dim=dim, heads=heads, dropout=attention_dropout)
        given["dropout"] = attention_dropout
        socket: Socket = "fusion" if fusion else "token"
        of_memory = attentions(cross, layers, dim=dim, heads=heads, socket=socket, **given)
        common: dict[str, Any] = {"dropout": dropout, "hidden_dropout": hidden_dropout, "order": order}
        common |= {"norm": norm, "activation": activation}
        self.layers = nn.ModuleList(
            DecoderLayer(own, other, dim, hidden or 4 * dim, **common) for own, other in zip(of_tokens, of_memory)
        )
        self.norm = make(norm, dim) if order == "pre" else None

    def forward(
        self,
        tokens: Tensor,
        memory: Tensor | Sequence[Tensor],
        *,
        memory_mask: Tensor | Sequence[Tensor | None] | None = None,
        mask: Tensor | None = None,
        causal: bool = True,
        geometry: Geometry | tuple[Geometry, Geometry] | None = None,
        memory_geometry: tuple[Geometry, Geometry] | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """(B, N, D) → (B, N, D); arguments as :class:`DecoderLayer` has them.

        With a cache, the tokens are the new ones, one per step say, and give what the parallel pass gives at
        their places.
        """
        depth = Depth()
        for i, layer in enumerate(self.layers):
            own = None if cache is None else cache.child(str(i))
            tokens = layer(
                tokens,
                memory,
                memory_mask=memory_mask,
                mask=mask,
                causal=causal,
                geometry=geometry,
                memory_geometry=memory_geometry,
                cache=own,
                depth=depth.at(i),
            )
        return tokens if self.norm is None else self.norm(tokens)
