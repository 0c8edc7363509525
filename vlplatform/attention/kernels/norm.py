"""A product and the batch norm behind it, taken apart so that both can be computed a piece of the map at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Linear:
    """A 1×1 convolution and, where ``gamma`` is given, the batch norm in training mode behind it.

    Attributes:
        weight: (N, C).
        bias: (N,) or None.
        gamma: Scale (N,) of the norm, or None without a norm.
        beta: Shift (N,) of the norm.
        eps: Added to the variance.
    """

    TENSORS: ClassVar[tuple[str, ...]] = ("weight", "bias", "gamma", "beta")

    weight: Tensor
    bias: Tensor | None = None
    gamma: Tensor | None = None
    beta: Tensor | None = None
    eps: float = 1e-5


class Norm:
    """Scale and shift (N,) behind a product: batch norm with the statistics of all pieces, or a bias alone.

    The product is computed without its bias and without ``constant``, which a norm would subtract again; a pivot,
    the mean of the first piece, is taken out of every piece, so that sums of squares keep their digits.
    """

    def __init__(self, linear: Linear, constant: Tensor | None = None) -> None:
        self.linear = linear
        self.left_out = linear.weight.new_zeros(len(linear.weight)) if constant is None else constant
        if linear.bias is not None:
            self.left_out = self.left_out + linear.bias
        self.count = 0
        self.scale, self.shift = torch.ones_like(self.left_out), self.left_out
        self.statistics: list[Tensor] = []

    def measure(self, piece: Tensor) -> None:
        """Take in a product (N, n) and subtract the pivot from it."""
        if self.linear.gamma is None:
            return
        if self.count == 0:
            self.pivot = piece.mean(1)
            self.total, self.squares = torch.zeros_like(self.pivot), torch.zeros_like(self.pivot)
        piece.sub_(self.pivot[:, None])
        self.count += piece.shape[1]
        self.total += piece.sum(1)
        self.squares += torch.linalg.vector_norm(piece, dim=1).square_()

    def settle(self) -> None:
        """Compute scale and shift, after the last piece."""
        if self.linear.gamma is None or self.linear.beta is None:
            return
        self.offset = self.total / self.count
        variance = (self.squares / self.count - self.offset.square()).clamp_min_(0)
        self.rstd = (variance + self.linear.eps).rsqrt()
        self.scale = self.linear.gamma * self.rstd
        self.shift = self.linear.beta - self.offset * self.scale
        self.statistics = [self.pivot + self.offset + self.left_out, variance]

    def apply(self, piece: Tensor, out: Tensor | None = None) -> Tensor:
        """The finished values of a measured piece."""
        return torch.mul(piece, self.scale[:, None], out=out).add_(self.shift[:, None])


class NormGradient:
    """The way back through a :class:`Norm`: every piece is collected, then each is turned."""

    def __init__(self, norm: Norm) -> None:
        self.norm = norm
        self.at_shift, self.at_scale = torch.zeros_like(norm.shift), torch.zeros_like(norm.shift)

    def collect(self, gradient: Tensor, piece: Tensor) -> None:
        """Take in the gradient at the finished values of a measured piece."""
        self.at_shift += gradient.sum(1)
        if self.norm.linear.gamma is not None:
            self.at_scale += (gradient * piece).sum(1)

    def settle(self) -> None:
        """Compute what ``turn`` needs, after the last piece."""
        norm = self.norm
        if norm.linear.gamma is None:
            return
        self.at_scale -= norm.offset * self.at_shift
        self.slope = (norm.scale * norm.rstd.square() * self.at_scale / -norm.count)[:, None]
        self.level = (norm.scale * self.at_shift / -norm.count)[:, None] - self.slope * norm.offset[:, None]

    def turn(self, gradient: Tensor, piece: Tensor, out: Tensor | None = None) -> Tensor:
        """The gradient at the product."""
        if self.norm.linear.gamma is None:
            return gradient
        return torch.mul(gradient, self.norm.scale[:, None], out=out).add_(self.level).addcmul_(piece, self.slope)

    @property
    def at_constant(self) -> Tensor:
        """The gradient at a constant added to the product: none before a norm."""
        return torch.zeros_like(self.at_shift) if self.norm.linear.gamma is not None else self.at_shift

    def parameters(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients of bias, gamma and beta."""
        bias = None if self.norm.linear.bias is None else self.at_constant
        if self.norm.linear.gamma is None:
            return bias, None, None
        return bias, self.at_scale * self.norm.rstd, self.at_shift
