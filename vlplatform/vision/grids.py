"""Grids of features: a backbone of timm, convolutional or Transformer, cut off at one stride, pooled to a square."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vlplatform.errors import UserError, nearest
from vlplatform.vision.backbone import IMAGENET_MEAN, IMAGENET_STD
from vlplatform.vision.published import published_file


class GridBackbone(nn.Module):
    """Pictures (B, 3, H, W) in 0..1 → grids (B, rows, columns, C) of a backbone that can learn; ``channels`` is C.

    Args:
        name: A model of timm (``timm.list_models()``).
        size: Height and width of the pictures; only networks for pictures of one size need it.
        stride: Input pixels per pixel of the map to take; None: the deepest map. Parts behind it are not built, so that
            they need no weights.
        grid: Rows and columns that the map is pooled to (means over cells of equal size); 0 leaves it as it is.
        pretrained: Weights of timm's hub; else random ones.

    Raises:
        UserError: An unknown name or stride, or no network.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        *,
        size: int | tuple[int, int] = 224,
        stride: int | None = None,
        grid: int = 7,
        pretrained: bool = True,
    ) -> None:
        import timm

        super().__init__()
        if not timm.is_model(name):
            raise UserError(f"backbone={name} is not a model of timm: {_near(name, timm.list_models())}.")
        info: Any = _build(name, size, None, False).feature_info
        strides: list[int] = list(info.reduction())
        if stride is not None and stride not in strides:
            had = ", ".join(map(str, dict.fromkeys(strides)))
            raise UserError(f"stride={stride} is none of the backbone {name}: choose one of {had}.")
        last = len(strides) - 1 if stride is None else max(i for i, s in enumerate(strides) if s == stride)
        self.channels: int = info.channels()[last]
        self.net = _build(name, size, info.out_indices[last], pretrained)
        self.name, self.size, self.stride, self.grid = name, size, stride, grid
        self.ends = [str(each["module"]).replace(".", "_") for each in info.get_dicts()[: last + 1]]
        """The names of the modules with which the network's parts end, one for each stride."""
        self.last_channel = str(getattr(self.net, "output_fmt", "")).upper().endswith("NHWC")
        config = timm.get_pretrained_cfg(name)
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if config is None else (config.mean, config.std)
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def fill(self, weights: Mapping[str, Tensor], *, partial: bool = False) -> list[str]:
        """Take tensors under the names of timm, or of torchvision where those agree (ResNets); what lacked comes back.

        Raises:
            UserError: A tensor of another shape, or, unless ``partial``, one that lacks; with it: all lack.
        """
        return _fill(self.net, weights, self.name, partial)

    def forward(self, images: Tensor) -> Tensor:
        """Grids (B, rows, columns, C) of the pictures (B, 3, H, W) in 0..1."""
        (maps,) = self.net((images - self.mean) / self.std)
        if self.last_channel:
            maps = maps.permute(0, 3, 1, 2)
        if self.grid:
            maps = F.adaptive_avg_pool2d(maps, self.grid)
        return maps.permute(0, 2, 3, 1)


class GridExtractor(nn.Module):
    """Pictures (B, 3, S, S) uint8 → grids (B, rows, columns, C) of a frozen backbone.

    Args:
        name: As for :class:`GridBackbone`, which see for ``stride`` and ``grid``, too.
        size: S, height and width of the pictures.
        stride: Of the map to take.
        grid: Rows and columns.
        pretrained: Weights of timm's hub, unless ``weights`` are given; else random ones.
        weights: Tensors under the names of timm, or of torchvision where those agree (ResNets).

    Raises:
        UserError: An unknown name or stride, weights that lack a tensor or have one of another shape, or no network.
    """

    def __init__(
        self,
        name: str,
        *,
        size: int = 224,
        stride: int | None = None,
        grid: int = 7,
        pretrained: bool = True,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.backbone = GridBackbone(
            name, size=size, stride=stride, grid=grid, pretrained=pretrained and weights is None
        )
        if weights is not None:
            self.backbone.fill(weights)
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Grids (B, rows, columns, C) of the pictures (B, 3, S, S) uint8."""
        return self.backbone(images.to(self.backbone.mean.dtype) / 255)


def published(backbone: GridBackbone) -> dict[str, Tensor]:
    """The tensors that timm's hub has for the network of a backbone.

    Raises:
        UserError: They are neither cached nor to be had.
    """
    same = GridBackbone(backbone.name, size=backbone.size, stride=backbone.stride, grid=backbone.grid, pretrained=True)
    return same.net.state_dict()


def _build(name: str, size: int | tuple[int, int], index: int | None, pretrained: bool) -> nn.Module:
    import timm

    config = timm.get_pretrained_cfg(name)
    # Models for pictures of one size are built for another only if told.
    given: dict[str, Any] = {"img_size": size} if config is not None and config.fixed_input_size else {}
    if index is not None:
        given["out_indices"] = (index,)
    repository = "" if config is None or config.hf_hub_filename else config.hf_hub_id or ""
    if pretrained and repository.startswith("timm/"):
        remedy = "give weights=FILE, or pretrained=false for random ones"
        weights = published_file(repository, f"the weights of {name} ({repository})", remedy)
        given["pretrained_cfg_overlay"] = {"file": str(weights)}
    try:
        return timm.create_model(name, pretrained=pretrained, features_only=True, **given)
    except (RuntimeError, AttributeError, TypeError, AssertionError) as error:
        raise UserError(f"backbone={name} gives no maps of size={size} ({error}): choose another of either.") from error
    except Exception as error:
        if not pretrained:
            raise
        raise UserError(
            f"the weights of {name} are neither cached nor to be had from the hub ({type(error).__name__}): "
            "give weights=FILE, or pretrained=false for random ones."
        ) from error


def _fill(net: nn.Module, weights: Mapping[str, Tensor], name: str, partial: bool) -> list[str]:
    wanted = net.state_dict()
    given = {key: weights[key] for key in wanted if key in weights}
    lacking = [key for key in wanted if key not in given and not key.endswith("num_batches_tracked")]
    if lacking and not (partial and given):
        raise UserError(
            f"the weights lack {len(lacking)} tensors of {name} ({lacking[0]} …): give that network's file, or a "
            "smaller stride=, which leaves out the parts behind it."
        )
    for key, tensor in given.items():
        if tensor.shape != wanted[key].shape:
            shapes = f"{tuple(tensor.shape)} where {name} has {tuple(wanted[key].shape)}"
            raise UserError(f"the weights have {key} of shape {shapes}: give that network's file.")
    net.load_state_dict(given, strict=False)
    return lacking


def _near(name: str, valid: list[str]) -> str:
    """The nearest names alone: timm has more than a thousand."""
    import difflib

    close = difflib.get_close_matches(name, valid, n=3, cutoff=0.4)
    return nearest(name, close) if close else "timm.list_models() has the names"
