"""Region features: what a detector saw in its surest boxes, chosen as in bottom-up attention.

Anderson et al., Bottom-Up and Top-Down Attention, CVPR 2018: per class, non-maximum suppression; a box is as sure as
the surest class for which it survived; kept are all boxes above a threshold, but no fewer and no more than given
numbers. Only pictures of one size share a batch: padding would change what a detector sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlplatform.errors import UserError, nearest

TORCHVISION: tuple[str, ...] = (
    "fasterrcnn_resnet50_fpn",
    "fasterrcnn_resnet50_fpn_v2",
    "fasterrcnn_mobilenet_v3_large_fpn",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
)
"""The detectors of torchvision that can be used."""


@dataclass(frozen=True)
class Choice:
    """How many boxes are kept.

    Attributes:
        most: No more than so many.
        least: No fewer than so many, however unsure (as far as there are any).
        score: Above this all are kept, 0 … 1.
        nms: Of two boxes of a class that overlap more (intersection over union), the surer one stays.
    """

    most: int = 36
    least: int = 10
    score: float = 0.2
    nms: float = 0.3


@dataclass(frozen=True)
class Regions:
    """What was found in a picture, the surest first: features (N, F), boxes (N, 4) in its pixels, scores (N,)."""

    features: Tensor
    boxes: Tensor
    scores: Tensor


def choose(boxes: Tensor, scores: Tensor, choice: Choice) -> tuple[Tensor, Tensor]:
    """The kept boxes' numbers (N,) and scores (N,), the surest first.

    Args:
        boxes: (R, 4).
        scores: (R, C) for C classes, background left out.
        choice: How many.
    """
    from torchvision.ops import batched_nms

    count, classes = scores.shape
    sure = scores.new_zeros(count)
    if count:
        labels = torch.arange(classes, device=boxes.device).repeat(count)
        kept = batched_nms(boxes.repeat_interleave(classes, 0), scores.flatten(), labels, choice.nms)
        sure = sure.scatter_reduce(0, kept // classes, scores.flatten()[kept], "amax")
    order = sure.argsort(descending=True, stable=True)
    number = int(((sure >= choice.score).sum()).clamp(min(choice.least, choice.most), choice.most))
    return order[:number], sure[order[:number]]


class TorchvisionDetector(nn.Module):
    """Faster R-CNN of torchvision: pictures (3, H, W) uint8 of any sizes → their regions.

    A region's feature is the output of the box head for its proposal.

    Args:
        name: One of :data:`TORCHVISION`.
        choice: How many boxes are kept.
        pretrained: COCO weights of torchvision, unless ``weights`` are given; else random ones.
        weights: Tensors under torchvision's names.

    Raises:
        UserError: An unknown name, weights that do not fit, or no network.
    """

    def __init__(
        self, name: str, choice: Choice, *, pretrained: bool = True, weights: dict[str, Tensor] | None = None
    ) -> None:
        from torchvision.models import detection, get_model

        super().__init__()
        if name not in TORCHVISION:
            raise UserError(
                f"detector={name} is unknown: {nearest(name, TORCHVISION)}, or a DETR as ORG/NAME or folder."
            )
        try:
            load = "DEFAULT" if pretrained and weights is None else None
            net: Any = get_model(name, weights=load, weights_backbone=None)
        except OSError as error:
            raise UserError(
                f"the weights of {name} are neither cached nor to be had ({error}): give weights=FILE, or "
                "pretrained=false for random ones."
            ) from error
        assert isinstance(net, detection.FasterRCNN)
        if weights is not None:
            try:
                net.load_state_dict(weights)
            except RuntimeError as error:
                raise UserError(
                    f"the weights do not fit {name} ({str(error)[:200]}): give that network's file."
                ) from error
        self.net, self.choice = net.requires_grad_(False).eval(), choice

    def forward(self, images: Sequence[Tensor]) -> list[Regions]:
        """The regions of each picture."""
        return _by_size(self._of_one_size, images)

    @torch.no_grad()
    def _of_one_size(self, images: list[Tensor]) -> list[Regions]:
        from torchvision.ops import clip_boxes_to_image

        net: Any = self.net
        device = next(self.net.parameters()).device
        given, _ = net.transform([image.to(device).float() / 255 for image in images], None)
        maps = net.backbone(given.tensors)
        proposals, _ = net.rpn(given, maps, None)
        pooled = net.roi_heads.box_head(net.roi_heads.box_roi_pool(maps, proposals, given.image_sizes))
        scores = net.roi_heads.box_predictor(pooled)[0].softmax(-1)[:, 1:]  # class 0 is the background
        found, start = [], 0
        for image, boxes, (rows, columns) in zip(images, proposals, given.image_sizes):
            part = slice(start, start := start + len(boxes))
            kept, sure = choose(boxes, scores[part], self.choice)
            height, width = image.shape[-2:]
            there = boxes[kept] * boxes.new_tensor([width / columns, height / rows] * 2)
            found.append(Regions(pooled[part][kept], clip_boxes_to_image(there, (height, width)), sure))
        return found


class DetrDetector(nn.Module):
    """DETR of transformers: pictures (3, H, W) uint8 of any sizes → their regions.

    A region's feature is the last decoder state of its query.

    Args:
        name: A hub id (``facebook/detr-resnet-50``) or a folder.
        choice: How many boxes are kept.
        pretrained: Its weights (safetensors); else its architecture with random ones.

    Raises:
        UserError: transformers is not installed, the model is not to be had, or is no DETR.
    """

    def __init__(self, name: str, choice: Choice, *, pretrained: bool = True) -> None:
        super().__init__()
        try:
            from transformers import AutoConfig, AutoImageProcessor, AutoModelForObjectDetection
        except ImportError as error:
            raise UserError(f"detector={name} needs transformers: pip install transformers.") from error
        from vlplatform.hub.reach import beyond_reach

        if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
            raise UserError(
                f"detector={name} is no folder: give a hub id (facebook/detr-resnet-50) or a model's folder."
            )
        try:
            held: dict[str, Any] = {"local_files_only": beyond_reach(name)}
            config: Any = AutoConfig.from_pretrained(name, **held)
            if config.model_type != "detr":
                raise UserError(
                    f"detector={name} is a {config.model_type}, not a DETR: choose facebook/detr-resnet-50."
                )
            self.processor: Any = AutoImageProcessor.from_pretrained(name, **held)
            make = AutoModelForObjectDetection
            net: Any = (
                make.from_pretrained(name, use_safetensors=True, **held) if pretrained else make.from_config(config)
            )
        except (OSError, ValueError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"detector={name} is not to be had ({first[:200]}): check network and name, or give a folder."
            ) from error
        self.net, self.choice = net.requires_grad_(False).eval(), choice

    def forward(self, images: Sequence[Tensor]) -> list[Regions]:
        """The regions of each picture."""
        return _by_size(self._of_one_size, images)

    @torch.no_grad()
    def _of_one_size(self, images: list[Tensor]) -> list[Regions]:
        device = next(self.net.parameters()).device
        out: Any = self.net(**self.processor(images, return_tensors="pt").to(device))
        found = []
        for image, states, logits, places in zip(images, out.last_hidden_state, out.logits, out.pred_boxes):
            height, width = image.shape[-2:]
            centre, half = places[:, :2], places[:, 2:] / 2
            boxes = torch.cat([centre - half, centre + half], -1).clamp(0, 1) * places.new_tensor([width, height] * 2)
            kept, sure = choose(boxes, logits.softmax(-1)[:, :-1], self.choice)  # the last class is "nothing"
            found.append(Regions(states[kept], boxes[kept], sure))
        return found


def _by_size(detect: Callable[[list[Tensor]], list[Regions]], images: Sequence[Tensor]) -> list[Regions]:
    """The regions of each picture, found together with those of the same size."""
    groups: dict[torch.Size, list[int]] = {}
    for number, image in enumerate(images):
        groups.setdefault(image.shape, []).append(number)
    found: dict[int, Regions] = {}
    for numbers in groups.values():
        found.update(zip(numbers, detect([images[number] for number in numbers])))
    return [found[number] for number in range(len(images))]
