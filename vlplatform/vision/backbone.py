"""Residual networks as feature pyramids (timm), their ImageNet weights from the hub or a local file.

Paper: Deep Residual Learning for Image Recognition (He et al. 2016); dilation in place of the last strides as in
DeepLab (Chen et al. 2018). Weights are safetensors only: nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vlplatform.errors import UserError
from vlplatform.vision.published import published_file

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class BackboneSettings:
    """Settings of a backbone; those of its weights are read by :func:`load_weights` alone.

    Attributes:
        backbone: Which network.
        output_stride: Input pixels per pixel of the last map; strides beyond it become dilations.
        stages: Use residual stages up to this one; 3 leaves out layer4 (and its weights).
        freeze: The first so many parts (stem, layer1, … layer4) do not learn.
        freeze_norms: The batch norms of the first so many parts keep their statistics (gain and bias still learn).
        pretrained: Start from ImageNet weights.
        weights: A safetensors file with timm's or torchvision's names, in place of the hub.
        partial_weights: Allow the file to lack tensors; what it lacks starts at random.
    """

    backbone: Literal["resnet18", "resnet50", "resnet101"] = "resnet50"
    output_stride: Literal[8, 16, 32] = 8
    stages: Literal[3, 4] = 4
    freeze: int = 0
    freeze_norms: int = 0
    pretrained: bool = True
    weights: str | None = None
    partial_weights: bool = False

    def __post_init__(self) -> None:
        parts = self.stages + 1
        for name in ("freeze", "freeze_norms"):
            if not 0 <= getattr(self, name) <= parts:
                raise ValueError(
                    f"{name}={getattr(self, name)} must lie in 0 … {parts} (the stem and {self.stages} stages)"
                )
        if self.weights is not None and not self.pretrained:
            raise ValueError(f"weights={self.weights} contradicts pretrained=false: leave one of them out")
        if self.partial_weights and self.weights is None:
            raise ValueError("partial_weights=true is about a file: give weights=FILE as well")


class Backbone(nn.Module):
    """RGB images (B, 3, H, W) in 0..1 → maps of the stem and of each stage, finest first.

    ``channels`` and ``strides`` describe the maps. The ImageNet normalisation happens inside. Any size; a map has
    ⌈H / stride⌉ rows. Nothing is downloaded here: see :func:`load_weights`.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, settings: BackboneSettings) -> None:
        import timm  # a second of imports that listing the models should not cost

        super().__init__()
        self.net = cast(
            nn.Module,
            timm.create_model(
                settings.backbone,
                pretrained=False,
                features_only=True,
                output_stride=settings.output_stride,
                out_indices=tuple(range(settings.stages + 1)),
            ),
        )
        info = cast("timm.models.FeatureInfo", self.net.feature_info)
        self.channels = tuple(cast("list[int]", info.channels()))
        self.strides = tuple(cast("list[int]", info.reduction()))
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD).view(1, 3, 1, 1), persistent=False)
        parts = [("conv1", "bn1"), *((f"layer{i + 1}",) for i in range(settings.stages))]
        for part in parts[: settings.freeze]:
            for name in part:
                self.net.get_submodule(name).requires_grad_(False)
        self._still = [name for part in parts[: max(settings.freeze, settings.freeze_norms)] for name in part]

    def train(self, mode: bool = True) -> Backbone:
        """Training mode, in which the frozen batch norms stay in evaluation mode."""
        super().train(mode)
        for name in self._still:
            for module in self.net.get_submodule(name).modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def forward(self, image: Tensor) -> list[Tensor]:
        """The maps of the stem (stride 2), layer1 (4), layer2, … of the images (B, 3, H, W)."""
        return self.net((image - self.mean) / self.std)


def load_weights(backbone: Backbone, settings: BackboneSettings) -> str:
    """Fill the backbone as the settings say; the answer tells where the weights came from, for the run's record.

    Raises:
        UserError: No network and nothing cached; an unreadable file; tensors of other shapes; tensors missing
            without ``partial_weights``.
    """
    if settings.weights is None and not settings.pretrained:
        return "random"
    path = Path(settings.weights).expanduser() if settings.weights else _download(settings.backbone)
    tensors = _read(path)
    wanted = backbone.net.state_dict()
    given = {name: tensors[name] for name in wanted if name in tensors}
    for name, tensor in given.items():
        if tensor.shape != wanted[name].shape:
            raise UserError(
                f"model.weights={path} has {name} of shape {tuple(tensor.shape)} where {settings.backbone} has "
                f"{tuple(wanted[name].shape)}: give that network's file, or set model.backbone."
            )
    missing = [n for n in wanted if n not in given and not n.endswith("num_batches_tracked")]
    if missing and not (settings.partial_weights and given):
        remedy = (
            "add model.partial_weights=true to train those from scratch" if given else "it needs torchvision's names"
        )
        if missing and all(name.startswith("layer4.") for name in missing):
            remedy += ", or model.stages=3 to leave layer4 out"
        raise UserError(f"model.weights={path} lacks {_listed(missing)} of {settings.backbone}: {remedy}.")
    backbone.net.load_state_dict(given, strict=False)
    origin = settings.weights or f"{_repository(settings.backbone)} (ImageNet)"
    return f"{origin}, without {_listed(missing)}" if missing else origin


def origin(settings: BackboneSettings) -> str:
    """Where the weights that the settings name come from, and what is known of their licence, for cards and reports.

    Of a local file the name alone is told, and not its folder.
    """
    if settings.weights is None:
        if not settings.pretrained:
            return f"{settings.backbone} from random weights"
        licence = "its licence is not recorded here, see its page there"
        return f"{settings.backbone} from {_repository(settings.backbone)} on the hub (ImageNet); {licence}"
    part = ", which lacked a part" if settings.partial_weights else ""
    return f"{settings.backbone} from a local file, {Path(settings.weights).name}{part}; its licence is unknown"


def _repository(name: str) -> str:
    """The hub repository of torchvision's own ImageNet weights, which the papers started from."""
    return f"timm/{name}.tv_in1k"


def _download(name: str) -> Path:
    """The cached or freshly fetched weights of torchvision, in timm's repository on the hub."""
    what = f"the ImageNet weights {_repository(name)}"
    remedy = "set model.weights=FILE (safetensors), or model.pretrained=false to do without"
    return published_file(_repository(name), what, remedy)


def _read(path: Path) -> Mapping[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.suffix != ".safetensors":
        raise UserError(
            f"model.weights={path} is not a .safetensors file: convert it, pickled weights are never opened."
        )
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise UserError(f"model.weights={path} does not exist: give a safetensors file.") from error
    except (OSError, SafetensorError) as error:
        raise UserError(f"model.weights={path} cannot be read ({error}): give a sound safetensors file.") from error


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return f"{len(names)} tensors ({shown}{', …' if len(names) > 4 else ''})"
