"""The task of the attribute detector as the engine sees it: pictures, their words, loss, scores."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import nn

from vlp_captioning.attributes.detector import AttributeDetector, DetectorSettings, seen
from vlp_captioning.attributes.noisy_or import noisy_or_loss
from vlp_captioning.attributes.scores import average_precision, found_of_surest
from vlp_captioning.attributes.words import detected, frequent_words, labels
from vlp_captioning.groups import parameter_groups
from vlp_captioning.models.vision import Vision, origin
from vlp_captioning.readers import CaptionData, Item
from vlp_captioning.records import CaptionRecords, collate
from vlp_captioning.texts import Texts, TextSettings
from vlplatform.errors import UserError
from vlplatform.task import Exhibit, Loss, Records, Score

METRICS = {
    "map": "mean over the words of the average precision with which pictures are ranked by a word's probability",
    "precision_at_k": "share of right ones among a picture's k surest words (k: task.most)",
    "recall_at_k": "share of a picture's words that are among its k surest ones (k: task.most)",
}
"""Score → what it is."""


@dataclass(frozen=True)
class AttributesSettings:
    """Settings of the section ``task``.

    Attributes:
        name: ``attributes``.
        words: So many words are learnt, the most frequent of the training captions (Fang et al. and the thesis: 1000).
        common: Of these, words that more than this share of the training pictures have are left out: they tell no
            picture from another (a, of, the). 1 leaves out none, as published.
        tokens: ``own``: the data set's own tokenisation where it has one (Karpathy's), else PTB; ``ptb``: PTB for all.
        most: Words told of a picture, at most; the k of the scores.
        above: Only words that are surer than this are told.
        best: The score that chooses the best checkpoint.
        backbone_lr: Learning rate of the backbone relative to the rest; null is 0.1 with pretrained weights, else 1.
    """

    name: str = "attributes"
    words: int = 1000
    common: float = 1.0
    tokens: Literal["own", "ptb"] = "own"
    most: int = 10
    above: float = 0.0
    best: Literal["map", "precision_at_k", "recall_at_k"] = "map"
    backbone_lr: float | None = None

    def __post_init__(self) -> None:
        if self.words < 1 or self.most < 1:
            raise ValueError(f"words={self.words} and most={self.most} must be at least 1")
        if not 0 < self.common <= 1:
            raise ValueError(f"common={self.common} must lie above 0 and up to 1")
        if not 0 <= self.above < 1:
            raise ValueError(f"above={self.above} must be at least 0 and below 1")
        if self.backbone_lr is not None and self.backbone_lr < 0:
            raise ValueError(f"backbone_lr={self.backbone_lr} must not be negative")


@dataclass(frozen=True)
class Training:
    """What the training captions say.

    Attributes:
        items: The pictures that have words.
        words: The K words to learn.
        shares: (K,): the share of the pictures that has each.
    """

    items: list[Item]
    words: tuple[str, ...]
    shares: torch.Tensor


class AttributesTask:
    """One configured detector of attribute words; made by the plugin, which has checked its parts."""

    name = "attributes"
    stages: tuple[str, ...] = ("train",)

    def __init__(
        self,
        sections: Mapping[str, Mapping[str, Any]],
        settings: AttributesSettings,
        data: CaptionData,
        model_settings: DetectorSettings,
    ) -> None:
        self.sections = {group: dict(section) for group, section in sections.items()}
        self.settings, self.data, self.model_settings = settings, data, model_settings
        self.best_metric: str = settings.best
        self._said: dict[str, list[list[str]]] = {}

    def enter(self, stage: str) -> None:
        """One stage: nothing to switch."""

    @functools.cached_property
    def training(self) -> Training:
        """The training pictures that have words, and the words to learn."""
        items = self._tokenised("train")
        items = [item for item in items if any(self._said[item.id])]
        chosen = frequent_words((c for item in items for c in self._said[item.id]), self.settings.words)
        shares = labels((self._said[item.id] for item in items), chosen).sum(0) / len(items)
        kept = [k for k, share in enumerate(shares.tolist()) if share <= self.settings.common]
        if not kept:
            raise UserError(
                f"task.common={self.settings.common} leaves none of the {len(chosen)} words to learn: raise it."
            )
        return Training(items, tuple(chosen[k] for k in kept), shares[kept])

    def _tokenised(self, split: str) -> Sequence[Item]:
        """The items of a split, whose captions are words in ``_said`` from here on."""
        items = self.data.items(split)
        if items and items[0].id not in self._said:
            texts = Texts.of(items, TextSettings(tokens=self.settings.tokens))
            self._said.update(zip((item.id for item in items), texts.words))
        return items

    def records(self, split: str) -> Records:
        """Pictures: for ``train`` those that have words, for other splits all."""
        items = self.training.items if split == "train" else self._tokenised(split)
        return CaptionRecords(self.data, items)

    def collate(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Padded tensors, see :func:`vlp_captioning.records.collate`; what is said of each picture as ``said``."""
        batch = collate(records)
        return {**batch, "said": [self._said[id] for id in batch["ids"]]}

    def build_model(self, *, pretrained: bool = True) -> AttributeDetector:
        """A fresh detector, which thinks each word as probable as it is frequent in the training pictures."""
        learnt = self.training
        visual, vision = self.data.visual(learnt.items[0]), self.model_settings.vision
        if visual.pixels is not None:
            size = vision.size or (visual.pixels.shape[1], visual.pixels.shape[2])
            settings = replace(self.model_settings, vision=replace(vision, size=size))
            model = AttributeDetector(learnt.words, Vision(settings.vision).channels, settings)
            cells = vision.grid**2 or 49
        else:
            assert visual.features is not None
            made = getattr(self.data.visuals, "extractor", None)
            model = AttributeDetector(learnt.words, visual.features.shape[-1], self.model_settings, made)
            cells = max(1, len(visual.features))
        least = 0.5 / len(learnt.items)
        model.head.begin(learnt.shares.clamp(least, 1 - least), cells)
        if pretrained and model.vision is not None:
            model.vision.load_weights()
        return model

    def parameter_groups(self, model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
        """Matrices with weight decay, vectors without; those of a backbone apart, at a learning rate of their own."""
        eyes = cast(AttributeDetector, model).vision
        return parameter_groups(model, eyes, learning_rate, weight_decay, self.settings.backbone_lr)

    def loss(self, model: nn.Module, batch: Mapping[str, Any]) -> Loss:
        """Cross-entropy of the words' presence, summed over words; the count is that of the pictures."""
        absence = model(**seen(batch))
        present = labels(batch["said"], cast(AttributeDetector, model).words)
        return noisy_or_loss(absence, present.to(absence.log.device))

    def predict(self, model: nn.Module, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Per record the ``probabilities`` (K,) of the model's words, which are ``present`` (K,), the ``detected``."""
        detector = cast(AttributeDetector, model)
        probabilities = model(**seen(batch)).presence().float().cpu()
        present = labels(batch["said"], detector.words)
        found = detected(probabilities, detector.words, most=self.settings.most, above=self.settings.above)
        return [
            {"id": id, "probabilities": p, "present": y, "detected": words}
            for id, p, y, words in zip(batch["ids"], probabilities, present, found, strict=True)
        ]

    def score(self, predictions: Sequence[Mapping[str, Any]]) -> Score:
        """Mean average precision, precision, recall; the detected words are a file that ``data.attributes`` reads."""
        probabilities = torch.stack([prediction["probabilities"] for prediction in predictions])
        present = torch.stack([prediction["present"] for prediction in predictions])
        files = {"attributes": {p["id"]: list(p["detected"]) for p in predictions}}
        if not present.any():
            raise UserError(
                f"data={self.data.name} has no captions with the detector's words for these pictures to score against: "
                "evaluate a split that has (to have words written for pictures: vlp predict)."
            )
        had = present.any(0)
        precision, recall = found_of_surest(probabilities, present, self.settings.most)
        values = {
            "map": float(average_precision(probabilities[:, had], present[:, had]).mean()),
            "precision_at_k": precision,
            "recall_at_k": recall,
        }
        share = float(present[:, had].double().mean())
        note = (
            f"map is over the {int(had.sum())} of {len(had)} words that these {len(present)} pictures have (chance "
            f"{share:.3f}); k is {self.settings.most}"
        )
        return Score(values, notes=(note,), files=files)

    @torch.no_grad()
    def show(self, model: nn.Module, split: str, count: int) -> list[Exhibit]:
        """Pictures with the words found, spread evenly over the split; those that nobody said are in brackets."""
        detector, items = cast(AttributeDetector, model), self._tokenised(split)
        count = min(len(items), count)
        made: list[Exhibit] = []
        for item in (items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)):
            (p,) = detector.presence([self.data.visual(item)])
            (found,) = detected(p[None], detector.words, most=self.settings.most, above=self.settings.above)
            said = {word for caption in self._said[item.id] for word in caption}
            sure = dict(zip(detector.words, p.tolist()))
            told = " · ".join(f"{word if word in said else f'({word})'} {sure[word]:.2f}" for word in found) or "none"
            picture = self.data.picture(item)
            text = f"{told} — in brackets: in no caption"
            made.append(Exhibit(item.id, {} if picture is None else {"image": picture}, text))
        return made

    def attention_exhibits(self, model: nn.Module, split: str) -> list[Exhibit]:
        """Nothing: the detector has no attention."""
        return []

    def describe(self) -> dict[str, Any]:
        """Data set, licence, citation, model and where a backbone's weights came from."""
        return {
            "data": {"name": self.data.name, "notes": list(self.data.notes)},
            "licence": self.data.licence,
            "citation": [self.data.citation] if self.data.citation else [],
            "model": AttributeDetector.name,
            "initial_weights": origin(self.model_settings.vision),
        }
