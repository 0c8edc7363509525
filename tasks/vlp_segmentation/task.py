"""The segmentation task as the engine sees it: records, batches, model, loss, scores and pictures."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vlp_segmentation.loss import OhemSettings, PixelLoss, median_frequency
from vlp_segmentation.models import Labels, Outputs, SegmentationModel
from vlp_segmentation.readers.records import SegmentationData
from vlp_segmentation.testing import InferenceSettings, probabilities
from vlplatform.errors import UserError
from vlplatform.metrics import segmentation as metrics
from vlplatform.task import Exhibit, Loss, Records, Score
from vlplatform.vision.backbone import BackboneSettings, load_weights, origin
from vlplatform.wrapped import bare

QUERIES = ((0.5, 0.5), (0.3, 0.25), (0.75, 0.7))
"""Query points of the attention pictures, (row, column) as fractions of the image."""


@dataclass(frozen=True)
class SegmentationSettings:
    """Settings of the section ``task``.

    Attributes:
        name: ``segmentation``.
        class_weights: Per class in the loss: ``none``, ``balanced`` (median frequency over the training split),
            ``published`` (where the data set has them), or a list.
        class_weights_power: Their exponent: 0.5 halves the distance between the weights of rare and common classes
            on a logarithmic scale, 0 is none.
        ohem: Online hard example mining.
        backbone_lr: Learning rate of the backbone relative to the rest; null is 0.1 with pretrained weights, else 1.
        decay_norms: Weight decay on biases, gains and other vectors as well.
        test: Test-time procedure.
    """

    name: str = "segmentation"
    class_weights: Literal["none", "balanced", "published"] | list[float] = "none"
    class_weights_power: float = 1.0
    ohem: OhemSettings = field(default_factory=OhemSettings)
    backbone_lr: float | None = None
    decay_norms: bool = False
    test: InferenceSettings = field(default_factory=InferenceSettings)

    def __post_init__(self) -> None:
        if self.backbone_lr is not None and self.backbone_lr < 0:
            raise ValueError(f"backbone_lr={self.backbone_lr} must not be negative")
        if not 0 <= self.class_weights_power <= 2:
            raise ValueError(f"class_weights_power={self.class_weights_power} must lie in 0 … 2")


class SegmentationTask:
    """One configured segmentation task; made by the plugin, which has checked its parts.

    Raises:
        UserError: Class weights that do not suit the data set.
    """

    name = "segmentation"
    stages: tuple[str, ...] = ("train",)

    def __init__(
        self,
        sections: Mapping[str, Mapping[str, Any]],
        settings: SegmentationSettings,
        data: SegmentationData,
        model_class: type[SegmentationModel],
        model_settings: BackboneSettings,
    ) -> None:
        self.sections = {group: dict(section) for group, section in sections.items()}
        self.settings, self.data = settings, data
        self.model_class, self.model_settings = model_class, model_settings
        self.best_metric = "mean_f1" if data.parts else "miou"
        self.weights_from = "checkpoint"
        weights = settings.class_weights
        if isinstance(weights, list) and (len(weights) != len(data.classes) or min(weights) < 0):
            raise UserError(
                f"task.class_weights must have one number ≥ 0 for each of the {len(data.classes)} classes of "
                f"data={data.name}, not {weights}."
            )
        if weights == "published" and data.class_weights is None:
            raise UserError(
                f"data={data.name} has no published class weights: use task.class_weights=balanced or a list."
            )

    def enter(self, stage: str) -> None:
        """One stage: nothing to switch."""

    def records(self, split: str) -> Records:
        """Augmented records for ``train``, whole ones for the others."""
        return self.data.records(split, train=split == "train")

    def collate(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """``image`` (B, 3, H, W), ``mask`` (B, H, W) and ``ids``; lists of (3, H, W) and (H, W) if sizes differ."""
        batch: dict[str, Any] = {"ids": [record["id"] for record in records]}
        alike = len({record["mask"].shape for record in records}) == 1
        for key in ("image", "mask"):
            items = [record[key] for record in records]
            batch[key] = torch.stack(items) if alike else items
        return batch

    def build_model(self, *, pretrained: bool = True) -> SegmentationModel:
        """A fresh model, its backbone filled as the settings say unless ``pretrained`` is false."""
        labels = Labels(self.data.classes, self.data.palette)
        model = self.model_class(labels, self.sections["attn"], self.model_settings)
        if pretrained:
            self.weights_from = load_weights(model.backbone, self.model_settings)
        return model

    def parameter_groups(self, model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
        """Backbone and head, each with and without weight decay; parameters that do not learn are left out."""
        bare = cast(SegmentationModel, model)
        ratio = self.settings.backbone_lr
        if ratio is None:
            ratio = 0.1 if self.model_settings.pretrained else 1.0
        in_backbone = {id(p) for p in bare.backbone.parameters()}
        groups: dict[str, dict[str, Any]] = {}
        for parameter in bare.parameters():
            if not parameter.requires_grad:
                continue
            part = "backbone" if id(parameter) in in_backbone else "head"
            decays = parameter.ndim > 1 or self.settings.decay_norms
            name = part if decays else f"{part} (no decay)"
            group = groups.setdefault(
                name,
                {
                    "name": name,
                    "params": [],
                    "lr": learning_rate * (ratio if part == "backbone" else 1.0),
                    "weight_decay": weight_decay if decays else 0.0,
                },
            )
            group["params"].append(parameter)
        return list(groups.values())

    @functools.cached_property
    def pixel_loss(self) -> PixelLoss:
        """The loss; ``balanced`` weights read all training masks once."""
        weights = self.settings.class_weights
        if weights == "published":
            weights = list(self.data.class_weights or ())
        if weights == "balanced":
            records = self.data.records("train", train=False)
            masks = (records[i]["mask"] for i in range(len(records)))
            by_class = median_frequency(masks, len(self.data.classes), self.data.ignore_index)
        else:
            by_class = None if weights == "none" else torch.tensor(weights)
        by_class = None if by_class is None else by_class**self.settings.class_weights_power
        return PixelLoss(self.data.ignore_index, self.settings.ohem, by_class)

    def loss(self, model: nn.Module, batch: Mapping[str, Any]) -> Loss:
        """Summed cross-entropy of the pixels that count, the auxiliary head's share included."""
        if not isinstance(batch["image"], Tensor):
            raise UserError(
                "the training pictures of one batch differ in size: set data.augment.crop=[height,width], or "
                "trainer.batch_size=1."
            )
        outputs: Outputs = model(batch["image"])
        return self.pixel_loss(outputs.logits, batch["mask"], outputs.aux, bare(model, SegmentationModel).aux_weight)

    def predict(self, model: nn.Module, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Per record its confusion matrix [target, prediction], as the ``cells`` (n, 2) that are not empty.

        A row of ``cells`` is the flat index into the matrix and the number of pixels, int64.

        Raises:
            UserError: The model was made for other classes than the data set has.
        """
        names = bare(model, SegmentationModel).labels.names
        if names != self.data.classes:
            raise UserError(
                f"the model tells {len(names)} classes apart ({_few(names)}) but data={self.data.name} has "
                f"{len(self.data.classes)} ({_few(self.data.classes)}): use data with the model's classes."
            )
        found: list[dict[str, Any]] = []
        for id, mask, labels in zip(batch["ids"], batch["mask"], self._labels(model, batch["image"])):
            counts = metrics.confusion(labels, mask.to(labels.device), len(names), self.data.ignore_index)
            counts = counts.flatten().cpu()
            cells = counts.nonzero().flatten()
            found.append({"id": id, "cells": torch.stack([cells, counts[cells]], dim=1)})
        return found

    def _labels(self, model: nn.Module, images: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """Predicted class ids (H, W) of each image; those of one size go through the model together."""
        device = next(model.parameters()).device
        by_size: dict[torch.Size, list[int]] = {}
        for place, image in enumerate(images):
            by_size.setdefault(image.shape, []).append(place)
        labels: dict[int, Tensor] = {}
        for places in by_size.values():
            stacked = torch.stack([images[place] for place in places]).to(device)
            found = probabilities(model, stacked, self.settings.test, self.data.flip_pairs).argmax(1)
            labels.update(zip(places, found))
        return [labels[place] for place in range(len(images))]

    def score(self, predictions: Sequence[Mapping[str, Any]]) -> Score:
        """mIoU, accuracies, F1 and, for faces, F1 of the merged parts."""
        classes = len(self.data.classes)
        total = torch.zeros(classes * classes, dtype=torch.int64)
        for prediction in predictions:
            cells = prediction["cells"]
            total.index_add_(0, cells[:, 0], cells[:, 1])
        total = total.view(classes, classes)
        score = metrics.scores(total, self.data.classes)
        if not self.data.parts:
            return score
        faces = metrics.face_scores(total, self.data.classes, self.data.parts)
        return Score({**score.values, **faces.values}, {**score.per_class, **faces.per_class})

    @torch.no_grad()
    def show(self, model: nn.Module, split: str, count: int) -> list[Exhibit]:
        """Input, truth and prediction of records spread evenly over the split."""
        from vlplatform.interpret import draw  # loads Pillow, which training does without

        records, exhibits = self.records(split), []
        ignored, palette = self.data.ignore_index, self.data.palette
        for index in _spread(len(records), count):
            record = records[index]
            ids, truth = self._labels(model, [record["image"]])[0].cpu(), record["mask"]
            counted = truth != ignored
            right = (ids == truth)[counted].float().mean().item()
            images = {
                "input": _picture(record["image"]),
                "truth": draw.colour_labels(truth, palette, ignored),
                "prediction": draw.colour_labels(ids, palette, ignored),
            }
            present = torch.cat([ids.flatten(), truth[counted]]).unique().tolist()
            legend = {self.data.classes[c]: palette[c] for c in present}
            exhibits.append(Exhibit(record["id"], images, f"{right:.1%} of the pixels right", legend))
        return exhibits

    @torch.no_grad()
    def attention_exhibits(self, model: nn.Module, split: str) -> list[Exhibit]:
        """Content, position and bilateral attention of three query points (thesis, fig. 3.4) in the first record."""
        from vlplatform.interpret import attention_rows

        records = self.records(split)
        record = records[0]
        return attention_rows(model, record["image"], QUERIES, id=record["id"])

    def describe(self) -> dict[str, Any]:
        """Data set, licence, citation, classes, and where the backbone's weights came from."""
        return {
            "data": {"name": self.data.name, "classes": list(self.data.classes), "notes": list(self.data.notes)},
            "licence": self.data.licence,
            "citation": [self.data.citation] if self.data.citation else [],
            "model": self.model_class.name,
            "attention": self.sections["attn"]["name"],
            "backbone": self.model_settings.backbone,
            "backbone weights": self.weights_from,
            "initial_weights": origin(self.model_settings),
        }


def _picture(image: Tensor) -> NDArray[np.uint8]:
    """An image (3, H, W) in 0..1 as a uint8 picture (H, W, 3)."""
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()


def _spread(size: int, count: int) -> list[int]:
    """``count`` places spread evenly over ``size``."""
    count = min(size, count)
    return [(2 * i + 1) * size // (2 * count) for i in range(count)]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
