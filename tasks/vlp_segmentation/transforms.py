"""Joint random transforms of picture and mask for training: scale and crop, flip, colour.

Every draw comes from torch's global generator, so a record is the same in whatever process makes it. Pictures are
resampled as uint8 and coloured as float32, whichever torchvision does faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from vlp_segmentation.augmentation import IGNORE, Augmentation

_ATTEMPTS = 10
_SAMPLES = 64  # rows and columns (at least) on which a crop's class shares are counted


def training_transform(augment: Augmentation, flip_pairs: Sequence[tuple[int, int]] = ()) -> v2.Transform:
    """The transforms of ``augment`` in order, for a pair of ``tv_tensors`` Image and Mask, both uint8.

    The result is an Image (3, h, w) float32 in 0 … 1 and a Mask (h, w) uint8 of the crop's size.

    Args:
        augment: The settings.
        flip_pairs: Class ids that swap in a mirror image (left eye, right eye).
    """
    to_float = v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)
    steps: list[v2.Transform] = [ScaledCrop(augment), MirrorImage(augment.flip, flip_pairs), to_float]
    strengths = (augment.brightness, augment.contrast, augment.saturation, augment.hue)
    if any(strengths):
        steps.append(v2.ColorJitter(*strengths))
    return v2.Compose(steps)


class ScaledCrop(v2.Transform):
    """Scale by a random factor, pad where the result is smaller than the crop, and cut a random crop.

    The crop's window is drawn in the unscaled picture and only the window is scaled: the same up to the rounding of the
    window's sides to whole pixels and to the filter's reach at its border, and independent of the picture's size
    in cost. A window larger than the picture holds it at a random place.
    """

    def __init__(self, augment: Augmentation) -> None:
        super().__init__()
        self.size = augment.crop
        self.scale_range = augment.scale_range
        self.max_class_share = augment.max_class_share
        self.fill = [float(value) for value in augment.fill]

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The crop's size, and its window (top, left, height, width); top and left may be negative."""
        mask = next(item for item in flat_inputs if isinstance(item, tv_tensors.Mask)).as_subclass(Tensor)
        size = list(self.size or mask.shape)
        scale = float(torch.empty(()).uniform_(*self.scale_range))
        height, width = (max(1, round(side / scale)) for side in size)
        window = (0, 0, height, width)
        for _ in range(_ATTEMPTS):
            window = (_place(mask.shape[0], height), _place(mask.shape[1], width), height, width)
            if self.max_class_share == 1 or self._is_mixed(mask, window):
                break
        return {"size": size, "window": window}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """The window of a picture or a mask, at the size of the crop."""
        size = params["size"]
        top, left, height, width = params["window"]
        rows, columns = inpt.shape[-2:]
        inside = inpt.as_subclass(Tensor)[..., max(top, 0) : top + height, max(left, 0) : left + width]
        margins = [max(side, 0) for side in (-left, -top, left + width - columns, top + height - rows)]
        if isinstance(inpt, tv_tensors.Mask):
            padded = functional.pad(inside[None], margins, fill=IGNORE)[0] if any(margins) else inside
            return tv_tensors.Mask(resize_mask(padded, size))
        padded = functional.pad(inside, margins, fill=self.fill) if any(margins) else inside
        return tv_tensors.Image(functional.resize(padded, size, antialias=True).contiguous())

    def _is_mixed(self, mask: Tensor, window: tuple[int, int, int, int]) -> bool:
        top, left, height, width = window
        inside = mask[max(top, 0) : top + height, max(left, 0) : left + width]
        step = max(1, min(inside.shape) // _SAMPLES)
        counts = torch.bincount(inside[::step, ::step].flatten(), minlength=IGNORE + 1)[:IGNORE]
        return bool(counts.max() <= self.max_class_share * counts.sum()) and bool(counts.sum() > 0)


class MirrorImage(v2.Transform):
    """The horizontal mirror image with probability ``p``; in it, the ids of each pair swap."""

    def __init__(self, p: float, pairs: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__()
        self.p = p
        self.pairs = tuple(pairs)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Whether to mirror."""
        return {"mirror": bool(torch.rand(()) < self.p)}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """The mirror image, or the input untouched."""
        if not params["mirror"]:
            return inpt
        mirrored = functional.horizontal_flip(inpt)
        if isinstance(inpt, tv_tensors.Mask):
            for left, right in self.pairs:
                was_left, was_right = mirrored == left, mirrored == right
                mirrored[was_left], mirrored[was_right] = right, left
        return mirrored


def resize_mask(mask: Tensor, size: Sequence[int]) -> Tensor:
    """A mask (H, W) at another size: each pixel takes the label under its centre.

    torchvision's own kernel for masks takes the label under the pixel's corner, which shifts the mask against
    the picture by up to half a pixel of the larger of the two.
    """
    plain = mask.as_subclass(Tensor)
    return interpolate(plain[None, None], tuple(size), mode="nearest-exact")[0, 0]


def _place(length: int, window: int) -> int:
    """A random start of a window along a side, so that it lies in the picture, or the picture in it."""
    slack = length - window
    return int(torch.randint(min(slack, 0), max(slack, 0) + 1, ()))
