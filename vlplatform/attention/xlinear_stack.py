"""A stack of X-Linear blocks with updates of keys and values (Pan et al., X-LAN, CVPR 2020, eq. 7–8 and 10)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform.attention.xlinear import Activation, XLinear, check_rates, check_tokens
from vlplatform.errors import UserError


class XLinearStack(nn.Module):
    """Encoder of X-Linear blocks that update their keys and values (eq. 7, 8 and 10).

    From v̂^0, the mean of the real tokens x_i, for m = 1, 2, …::

        v̂^m = XLinear(v̂^{m−1}, x^{m−1})          x_i^m = LN(x_i^{m−1} + ReLU(W_m [v̂^m ; x_i^{m−1}]))

    and at last ``LN(W_G [v̂^0 ; v̂^1 ; …])`` for the whole.

    Where we differ from the text: the defaults are the authors' code. The paper updates keys and values by maps of
    their own (``separate=True``), and has no normalisation after W_G (``norm=False``). The code's rates of dropout
    are 0.1 (``dropout``), 0.5 (``block_dropout``) and 0.3 (``update_dropout``). Both know the blocks' number as 4,
    the paper's 1 + M with M = 3.

    Args:
        dim: Model width D.
        layers: Number of blocks; without any the tokens stay as they are (table 3, rows 1 and 2).
        heads: As in :class:`XLinear`, like the next five.
        mid: See there.
        activation: See there.
        alpha: See there.
        group_norm: See there.
        gate: See there.
        dropout: See there.
        block_dropout: Rate at which entries of v̂^m are dropped.
        update_dropout: Rate at which entries of an update are dropped.
        separate: Keys and values are two streams, each with maps of its own.
        norm: Layer normalisation after W_G.

    Raises:
        ValueError: What :class:`XLinear` refuses, or a number out of range.
    """

    def __init__(
        self,
        dim: int,
        *,
        layers: int = 4,
        heads: int = 8,
        mid: int | None = None,
        activation: Activation = "celu",
        alpha: float | None = None,
        group_norm: bool = True,
        gate: bool = True,
        dropout: float = 0.0,
        block_dropout: float = 0.0,
        update_dropout: float = 0.0,
        separate: bool = False,
        norm: bool = True,
    ) -> None:
        super().__init__()
        if layers < 0:
            raise ValueError(f"layers={layers} must not be negative")
        check_rates(block_dropout=block_dropout, update_dropout=update_dropout)
        self.block_dropout = block_dropout

        def block() -> XLinear:
            options: dict[str, Any] = {"heads": heads, "mid": mid, "activation": activation, "alpha": alpha}
            return XLinear(dim, **options, group_norm=group_norm, gate=gate, dropout=dropout)

        def updates() -> nn.ModuleList:
            return nn.ModuleList([TokenUpdate(dim, update_dropout) for _ in range(layers)])

        self.blocks = nn.ModuleList([block() for _ in range(layers)])
        self.updates = updates()
        self.key_updates = updates() if separate else None
        self.joined = nn.Linear(dim * (layers + 1), dim)
        self.norm = nn.LayerNorm(dim) if norm else None

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The whole (B, D) and the enhanced tokens (B, N, D); an item without any real token has means of 0.

        Args:
            tokens: (B, N, D).
            mask: (B, N) booleans, true where a token is real; the others are updated too, but nothing reads them.

        Raises:
            UserError: A width, shape or type that does not fit.
        """
        check_tokens("tokens", tokens, self.joined.out_features)
        if mask is None:
            whole = tokens.mean(1, keepdim=True)
        else:
            if mask.dtype != torch.bool or mask.shape != tokens.shape[:2]:
                raise UserError(
                    f"mask has shape {tuple(mask.shape)} and type {mask.dtype}; expected booleans of shape "
                    f"{tuple(tokens.shape[:2])}."
                )
            tokens = tokens.masked_fill(~mask[..., None] & ~tokens.isfinite(), 0)  # NaN would reach gradients
            whole = tokens.masked_fill(~mask[..., None], 0).sum(1, keepdim=True)
            whole = whole / mask.sum(1).clamp_min(1)[:, None, None]
        keys, wholes = tokens, [whole]
        for i, block in enumerate(self.blocks):
            whole = F.dropout(block(whole, keys, tokens, mask=mask), self.block_dropout, self.training)
            tokens = self.updates[i](whole, tokens)
            keys = tokens if self.key_updates is None else self.key_updates[i](whole, keys)
            wholes.append(whole)
        joined = self.joined(torch.cat(wholes, -1).squeeze(1))
        return joined if self.norm is None else self.norm(joined), tokens

    def macs(self, tokens: int) -> int:
        """Multiply–adds for one item with N tokens."""
        dim = self.joined.out_features
        updates = len(self.updates) * (1 if self.key_updates is None else 2)
        blocks = sum(block.macs(1, tokens) for block in self.blocks if isinstance(block, XLinear))
        return blocks + updates * (tokens + 1) * dim * dim + self.joined.weight.numel()


class TokenUpdate(nn.Module):
    """``LN(x_i + dropout(ReLU(W [v̂ ; x_i])))``, the two halves of W apart: v̂ is mapped once for all tokens.

    Args:
        dim: Model width D.
        dropout: Rate at which entries of the change are dropped.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.map = nn.Linear(2 * dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.dropout = dropout

    def forward(self, whole: Tensor, tokens: Tensor) -> Tensor:
        """(B, 1 or N, D) and (B, N, D) → (B, N, D)."""
        of_whole, of_tokens = self.map.weight.chunk(2, 1)
        changed = F.linear(tokens, of_tokens) + F.linear(whole, of_whole, self.map.bias)
        return self.norm(tokens + F.dropout(changed.relu(), self.dropout, self.training))
