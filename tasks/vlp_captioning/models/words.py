"""Word embeddings with positions."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform.errors import UserError
from vlplatform.layers import sinusoids


class WordEmbedding(nn.Module):
    """``dropout(norm(scale · E[y_t] + P[t]))``.

    The table P is stored with the weights: some published ones are not the sinusoids they began as (MD-SAN's
    initialisation overwrites them), and none is learnt.

    Args:
        size: Words V.
        dim: Model width D.
        length: Positions L.
        scaled: Multiply by √D (Vaswani et al. 2017, §3.4).
        norm: A layer norm before dropout, as in X-Transformer.
        dropout: Rate.
        first: Position number of the first word in the sinusoids.
    """

    positions: Tensor

    def __init__(
        self,
        size: int,
        dim: int,
        length: int,
        *,
        scaled: bool = True,
        norm: bool = False,
        dropout: float = 0.1,
        first: int = 0,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(size, dim)
        nn.init.normal_(self.words.weight, std=dim**-0.5)
        self.scale = math.sqrt(dim) if scaled else 1.0
        self.norm = nn.LayerNorm(dim) if norm else None
        self.dropout = dropout
        self.register_buffer("positions", sinusoids(length, dim, first=first))

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """(R, T, D) from word numbers (R, T), of which the first stands at position ``first``.

        Raises:
            UserError: More words than the table has positions.
        """
        last = first + tokens.shape[1]
        if last > len(self.positions):
            raise UserError(
                f"a caption of {last} words does not fit this model's {len(self.positions)} positions: set "
                "model.max_length higher before training, or decode with a smaller max_length."
            )
        x = self.words(tokens) * self.scale + self.positions[first:last].to(self.words.weight.dtype)
        x = x if self.norm is None else self.norm(x)
        return F.dropout(x, self.dropout, self.training)
