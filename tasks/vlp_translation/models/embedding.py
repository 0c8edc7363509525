"""fairseq's embedding of tokens and positions."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform.errors import UserError
from vlplatform.layers import sinusoids

Positions = Literal["sinusoid", "learned", "none"]


class Embedding(nn.Module):
    """``dropout(norm(√D · E[y] + P[n]))``, zeros for padding before the norm.

    The number n of a position counts the real tokens of its sentence from pad + 1, so that padding may stand on either
    side. Sines come first, then cosines, with the exponent i / (D/2 − 1), computed in float32 as fairseq's are.

    Args:
        size: Tokens V.
        dim: Model width D.
        pad: Number of the filler.
        positions: ``sinusoid`` (any length), ``learned``, ``none``.
        length: Positions that can be learnt.
        scaled: Multiply by √D.
        norm: A layer norm before the dropout.
        dropout: Rate.
    """

    def __init__(
        self,
        size: int,
        dim: int,
        pad: int,
        *,
        positions: Positions = "sinusoid",
        length: int = 1024,
        scaled: bool = True,
        norm: bool = False,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.dim, self.pad, self.kind, self.length, self.dropout = dim, pad, positions, length, dropout
        self.scale = math.sqrt(dim) if scaled else 1.0
        self.tokens = _vectors(size, dim, pad)
        self.positions = _vectors(pad + 1 + length, dim, pad) if positions == "learned" else None
        self.norm = nn.LayerNorm(dim) if norm else None
        self.table = torch.zeros(0, dim)  # of sines; no buffer: a model's change of precision must not round it

    def forward(self, tokens: Tensor, first: int | None = None) -> Tensor:
        """(B, T, D) from numbers (B, T).

        Args:
            tokens: Numbers, padding among them.
            first: Tokens that came before, in decoding step by step, where no padding is; None: these are whole
                sentences.

        Raises:
            UserError: More tokens than positions were learnt.
        """
        x = self.tokens(tokens) * self.scale
        if self.kind != "none":
            x = x + self.places(tokens, first)
        x = x if self.norm is None else self.norm(x)
        return F.dropout(x, self.dropout, self.training)

    def places(self, tokens: Tensor, first: int | None = None) -> Tensor:
        """Vectors of the positions, (B or 1, T, D)."""
        last = (first or 0) + tokens.shape[1]
        if self.positions is not None and last > self.length:
            raise UserError(
                f"a sentence of {last} tokens does not fit this model's {self.length} positions: shorten it, or train "
                "with a greater model.max_length, or with model.positions=sinusoid."
            )
        table = self._sines(self.pad + 1 + last) if self.positions is None else self.positions.weight
        if first is not None:
            return table[None, self.pad + 1 + first : self.pad + 1 + last]
        real = tokens != self.pad
        return F.embedding(real.cumsum(1) * real + self.pad, table, self.pad)

    def _sines(self, length: int) -> Tensor:
        """The table (at least ``length``, D) in the weights' precision and place."""
        like = self.tokens.weight
        if len(self.table) < length or self.table.dtype != like.dtype or self.table.device != like.device:
            with torch.inference_mode(False):  # it serves training too
                table = sinusoids(1 << (length - 1).bit_length(), self.dim, "halves")
                table[self.pad] = 0
                self.table = table.to(like)
        return self.table


def _vectors(size: int, dim: int, pad: int) -> nn.Embedding:
    """Vectors of deviation D^−½, zeros for the filler."""
    vectors = nn.Embedding(size, dim, padding_idx=pad)
    nn.init.normal_(vectors.weight, std=dim**-0.5)
    nn.init.zeros_(vectors.weight[pad])
    return vectors
