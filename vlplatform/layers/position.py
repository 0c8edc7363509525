"""Sinusoidal positions in the two layouts that public code has."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Layout = Literal["interleaved", "halves"]


def sinusoids(length: int, dim: int, layout: Layout = "interleaved", *, first: int = 0) -> Tensor:
    """Encodings (length, dim) of the positions first, first + 1, …, float32.

    ``interleaved`` has ``sin(p · 10000^(−2i/dim))`` in channel 2i and the cosine in 2i + 1 (Vaswani et al. 2017, §3.5);
    ``halves`` has all sines, then all cosines, with the exponent ``i / (dim/2 − 1)``, as in fairseq and tensor2tensor.

    Args:
        length: Positions.
        dim: Channels; an odd one lacks the last cosine (interleaved) or ends in a zero (halves).
        layout: See above.
        first: The first position.
    """
    positions = torch.arange(first, first + length, dtype=torch.float32)[:, None]
    if layout == "halves":
        half = dim // 2
        rates = torch.exp(torch.arange(half, dtype=torch.float32) * -(torch.tensor(10000.0).log() / max(1, half - 1)))
        table = torch.cat(((positions * rates).sin(), (positions * rates).cos()), 1)
        return table if table.shape[1] == dim else torch.cat((table, torch.zeros(length, 1)), 1)
    rates = 10000 ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = positions * rates
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :dim]
