"""Absolute geometry added to the tokens: the ``absolute`` of NG-SAN (table 4) and ``AbsPE`` of MD-SAN (table VII)."""

from __future__ import annotations

import torch
from torch import Tensor

from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.score_term import Depth, ScoreTerm, Sizes
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry, box_sizes


class AbsoluteGeometry(ScoreTerm):
    """Tokens plus sines and cosines of their box's centre, width and height, at the bottom of a stack.

    Each of the four numbers, divided by the picture's width or height, gets a quarter of the channels: sines of
    ``100 · z · 10000^{−k/K}``, k = 0…K−1, then cosines: the positional encoding of Vaswani et al. with a hundredth
    of the picture as its unit. Points get zeros for the width and height. Neither paper gives the unit.

    Args:
        sizes: Of the attention; the model's width must be a multiple of 8.
        every_layer: Added in all layers, not in the lowest alone.

    Raises:
        ValueError: The width is no multiple of 8.
    """

    name = "abs_pe"

    def __init__(self, sizes: Sizes, *, every_layer: bool = False) -> None:
        super().__init__()
        if sizes.dim % 8 or sizes.memory_dim % 8:
            raise ValueError(
                f"dim={sizes.dim} and memory_dim={sizes.memory_dim} must be multiples of 8: "
                "sine and cosine of each of four numbers"
            )
        self.every_layer = every_layer

    def embed(self, tokens: Tensor, geometry: Geometry | None, depth: Depth) -> Tensor:
        """Tokens with their geometry's encoding."""
        if depth.layer and not self.every_layer:
            return tokens
        if geometry is None:
            raise UserError(f"attn={self.title} needs geometry=…, which was not given.")
        return tokens + self.encoding(geometry, tokens.shape[-1]).to(tokens.dtype)

    def encoding(self, geometry: Geometry, dim: int) -> Tensor:
        """(B or 1, N, dim)."""
        extent = geometry.extent
        if extent is None:
            raise UserError(f"attn={self.title} needs the picture's size: make the geometry with size=(width, height).")
        sides = torch.zeros_like(geometry.points) if geometry.boxes is None else box_sizes(geometry.boxes)
        numbers = torch.cat((geometry.points, sides), -1) / torch.cat((extent, extent), -1)
        steps = dim // 8
        waves = 10000 ** (-torch.arange(steps, device=numbers.device, dtype=numbers.dtype) / steps)
        angles = 100 * numbers[..., None] * waves
        return torch.cat((angles.sin(), angles.cos()), -1).flatten(-2)


MECHANISMS = (
    Mechanism(
        name="abs_pe",
        build=AbsoluteGeometry,
        term=True,
        sockets=("token",),
        summary="sines of each box's absolute place and size, added to the tokens",
        paper="NG-SAN; MD-SAN",
        equations="table 4; table VII",
    ),
)
