"""Test-time procedures: whole image or sliding window, several scales, mirrored as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vlp_segmentation.models.layers import resize

Network = Callable[[Tensor], Tensor]
"""Images (B, 3, H, W) → logits (B, K, H, W)."""


@dataclass(frozen=True)
class InferenceSettings:
    """How an image is tested; the defaults are one pass over the whole image.

    Attributes:
        mode: ``whole`` image at once, or ``slide`` a window over it.
        crop: The window's height and width, needed for ``slide``.
        stride: Its steps; null takes two thirds of the window.
        scales: Sizes relative to the image's own, whose probabilities are averaged.
        flip: Test the mirrored image as well.
    """

    mode: Literal["whole", "slide"] = "whole"
    crop: tuple[int, int] | None = None
    stride: tuple[int, int] | None = None
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0:
            raise ValueError(f"scales={list(self.scales)} must be positive numbers, one at least")
        if self.mode == "whole" and (self.crop or self.stride):
            raise ValueError("crop and stride are about a sliding window: set mode=slide")
        if self.mode == "slide" and self.crop is None:
            raise ValueError("mode=slide needs crop=[height,width]")
        if min(*(self.crop or (1, 1)), *(self.stride or (1, 1))) < 1:
            raise ValueError("crop and stride must be positive")
        if self.stride and self.crop and (self.stride[0] > self.crop[0] or self.stride[1] > self.crop[1]):
            raise ValueError(f"stride={list(self.stride)} is wider than crop={list(self.crop)} and would skip pixels")


def swapped(classes: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """The order of the class channels of a mirrored image: left and right classes change places."""
    order = list(range(classes))
    for left, right in pairs:
        order[left], order[right] = right, left
    return order


def probabilities(
    network: Network, image: Tensor, settings: InferenceSettings, pairs: Sequence[tuple[int, int]] = ()
) -> Tensor:
    """Class probabilities (B, K, H, W) of images (B, 3, H, W): the mean over scales and mirror images.

    ``pairs`` are the classes that change places in a mirror (left and right eye). Softmax comes after the logits
    are back at the image's size, as in mmsegmentation.
    """
    height, width = image.shape[-2:]
    total: Tensor | None = None
    for scale in settings.scales:
        scaled = resize(image, (max(1, round(height * scale)), max(1, round(width * scale))))
        for mirrored in (False, True) if settings.flip else (False,):
            logits = _logits(network, scaled.flip(-1) if mirrored else scaled, settings)
            if mirrored:
                logits = logits.flip(-1)[:, swapped(logits.shape[1], pairs)]
            part = resize(logits.float(), (height, width)).softmax(1)
            total = part if total is None else total + part
    assert total is not None
    return total / (len(settings.scales) * (2 if settings.flip else 1))


def _logits(network: Network, image: Tensor, settings: InferenceSettings) -> Tensor:
    """Logits of one size: at once, or the mean over the windows that cover each pixel."""
    if settings.crop is None:
        return network(image)
    size = image.shape[-2:]
    steps = settings.stride or tuple(max(1, c * 2 // 3) for c in settings.crop)
    spans = [list(_windows(length, crop, step)) for length, crop, step in zip(size, settings.crop, steps)]
    total, count = torch.zeros(()), image.new_zeros(1, 1, *size)
    for top, bottom in spans[0]:
        for left, right in spans[1]:
            logits = network(image[..., top:bottom, left:right])
            if total.ndim == 0:
                total = logits.new_zeros(*logits.shape[:2], *size)
            total[..., top:bottom, left:right] += logits
            count[..., top:bottom, left:right] += 1
    return total / count


def _windows(length: int, crop: int, step: int) -> Iterator[tuple[int, int]]:
    """Starts and ends of windows that cover ``length``; the last is moved back inside."""
    for i in range(-(-max(length - crop, 0) // step) + 1):
        end = min(i * step + crop, length)
        yield max(end - crop, 0), end
