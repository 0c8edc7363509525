"""The eyes of captioners that see pixels: a backbone of timm, frozen, partly frozen, or trained with the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform.errors import UserError
from vlplatform.vision.grids import GridBackbone, published

DEFAULT = "resnet18"
"""The backbone that ``auto`` means where the data give pixels."""


@dataclass(frozen=True)
class VisionSettings:
    """How pixels become features.

    Attributes:
        backbone: A model of timm; none: the model reads features; auto: resnet18 where the data give pixels, else none.
        pretrained: Begin with published weights (timm's, from the hub, unless there is a file); false: random ones.
        weights: File of weights (safetensors, or PyTorch's format with tensors alone) in place of the published ones.
        partial_weights: Allow the file to lack tensors; what it lacks starts at random.
        stride: Pixels per cell of the map to take; null takes the deepest.
        grid: Rows and columns that the map is pooled to; 0 leaves it as it is.
        freeze: The first so many parts of the backbone do not learn (of a ResNet: stem, layer1, …); all: nothing does.
        size: Height and width to which pictures are resized; null takes those of the first training picture.
    """

    backbone: str = "auto"
    pretrained: bool = True
    weights: str | None = None
    partial_weights: bool = False
    stride: int | None = None
    grid: int = 7
    freeze: Literal["all"] | int = 0
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and not self.pretrained:
            raise ValueError(
                f"vision.weights={self.weights} contradicts vision.pretrained=false: leave one of them out"
            )
        if self.partial_weights and self.weights is None:
            raise ValueError("vision.partial_weights=true is about a file: give vision.weights=FILE as well")
        if self.grid < 0 or (self.freeze != "all" and self.freeze < 0):
            raise ValueError(f"vision.grid={self.grid} and vision.freeze={self.freeze} must not be negative")
        if self.size is not None and not all(8 <= side <= 4096 for side in self.size):
            raise ValueError(f"vision.size={list(self.size)} must lie in 8 to 4096")

    @property
    def sees(self) -> bool:
        """Whether there is a backbone."""
        return self.backbone not in ("auto", "none")


class Vision(nn.Module):
    """Pictures (B, 3, H, W) in 0..1, resized, → maps (B, rows, columns, F), with gradients for what is not frozen.

    Nothing is downloaded here: see :meth:`load_weights`.

    Raises:
        UserError: An unknown backbone or stride, or more parts to freeze than there are.
    """

    def __init__(self, settings: VisionSettings) -> None:
        super().__init__()
        self.settings = settings
        size = settings.size or (224, 224)
        with _named():
            self.backbone = GridBackbone(
                settings.backbone, size=size, stride=settings.stride, grid=settings.grid, pretrained=False
            )
        self.channels = self.backbone.channels
        self.still = _first_parts(self.backbone, settings)
        for module in self.still:
            module.requires_grad_(False)

    def load_weights(self) -> None:
        """Fill the backbone as the settings say: from the hub, from a file, or not at all.

        Raises:
            UserError: Weights that are not to be had, cannot be read, or do not fit.
        """
        from vlplatform.hub.importer import read_weights

        settings = self.settings
        if settings.weights is not None:
            remedy = ""
            try:
                weights = read_weights(Path(settings.weights).expanduser())
                remedy = "; model.vision.partial_weights=true lets them lack some" * (not settings.partial_weights)
                with _named():
                    self.backbone.fill(weights, partial=settings.partial_weights)
            except UserError as error:
                raise UserError(
                    f"model.vision.weights={settings.weights}: {str(error).rstrip('.')}{remedy}."
                ) from error
        elif settings.pretrained:
            with _named():
                self.backbone.net.load_state_dict(published(self.backbone))

    def train(self, mode: bool = True) -> Vision:
        """Training mode, in which the frozen parts stay in evaluation mode."""
        super().train(mode)
        for module in self.still:
            module.eval()
        return self

    def forward(self, pixels: Tensor) -> Tensor:
        """The maps (B, rows, columns, F) of the pictures."""
        if self.settings.size is not None and tuple(pixels.shape[2:]) != self.settings.size:
            pixels = F.interpolate(pixels, self.settings.size, mode="bilinear", antialias=True)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.settings.freeze != "all"):
            return self.backbone(pixels)


@contextmanager
def _named() -> Iterator[None]:
    """Gives the settings that a refused backbone speaks of the names that they have here."""
    try:
        yield
    except UserError as error:
        names = "|".join(field.name for field in fields(VisionSettings))
        raise UserError(re.sub(rf"(?<![\w.])({names})=", r"model.vision.\1=", str(error))) from error


def origin(settings: VisionSettings) -> str | None:
    """Where a backbone's first weights came from and what is known of their licence; None without a backbone."""
    if not settings.sees:
        return None
    if not settings.pretrained:
        return f"{settings.backbone} from random weights"
    if settings.weights is None:
        return f"{settings.backbone} from timm on the hub; its licence is not recorded here, see its page there"
    part = ", which may lack a part" if settings.partial_weights else ""
    return f"{settings.backbone} from a local file, {Path(settings.weights).name}{part}; its licence is unknown"


def _first_parts(backbone: GridBackbone, settings: VisionSettings) -> list[nn.Module]:
    """The modules that do not learn."""
    if settings.freeze == "all":
        return [backbone]
    if settings.freeze == 0:
        return []
    modules = dict(backbone.net.named_children())
    if not set(backbone.ends) <= set(modules):
        raise UserError(
            f"model.vision.freeze={settings.freeze}: the backbone {settings.backbone} cannot be frozen in part; "
            "choose all, or 0."
        )
    if settings.freeze > len(backbone.ends):
        raise UserError(
            f"model.vision.freeze={settings.freeze} is more than the {len(backbone.ends)} parts of "
            f"{settings.backbone}: choose all, or a smaller number."
        )
    names = list(modules)
    return [modules[name] for name in names[: names.index(backbone.ends[settings.freeze - 1]) + 1]]
