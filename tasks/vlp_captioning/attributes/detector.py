"""The attribute detector as a model: a backbone or prepared features below the noisy-OR head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vlp_captioning.attributes.noisy_or import Absence, NoisyOr
from vlp_captioning.attributes.words import detected
from vlp_captioning.models.vision import Vision, VisionSettings
from vlp_captioning.readers import Visual
from vlp_captioning.readers.features.shards import visual_of
from vlp_captioning.records import collate
from vlplatform import settings as typed
from vlplatform.errors import UserError
from vlplatform.hub import SaveMixin
from vlplatform.vision import extract


@dataclass(frozen=True)
class DetectorSettings:
    """Settings of the attribute detector.

    Attributes:
        vision: How pixels become maps, for detectors that see pixels (Fang et al. and the thesis: VGG-16, fine-tuned).
    """

    vision: VisionSettings = field(default_factory=VisionSettings)


class AttributeDetector(SaveMixin, nn.Module):
    """Pictures, or the N vectors of grid cells or regions → how surely each of K words is in them (noisy-OR).

    Thesis §2.5.2; Fang et al. 2015, §3. ``model.detect_words(pictures)`` is all that a user needs.

    Args:
        words: The K words.
        feature_dim: Width F of the features, or of the backbone's maps.
        model: Settings.
        extractor: What the features were made with where ``vlp prepare`` made them, so that it can make more of them.
    """

    task = "attributes"
    name = "noisy_or"
    summary = "words of a picture's captions, learnt without boxes: noisy-OR over the cells of a map"

    def __init__(
        self,
        words: Sequence[str],
        feature_dim: int,
        model: DetectorSettings,
        extractor: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.words, self.feature_dim, self.model_settings = tuple(words), feature_dim, model
        self.extractor = None if extractor is None else dict(extractor)
        self.vision = Vision(model.vision) if model.vision.sees else None
        self.head = NoisyOr(feature_dim, len(self.words))
        self._extract: extract.Extract | None = None

    def settings(self) -> dict[str, Any]:
        """All that the plugin's ``rebuild`` needs, JSON-ready."""
        return {
            "model": {"name": self.name, **typed.as_dict(self.model_settings)},
            "words": list(self.words),
            "feature_dim": self.feature_dim,
            "extractor": self.extractor,
        }

    def forward(
        self, pixels: Tensor | None = None, features: Tensor | None = None, mask: Tensor | None = None
    ) -> Absence:
        """How surely each word is nowhere, (B, K), in logarithms; a picture without any vector has the bias alone.

        Args:
            pixels: RGB pictures in 0..1, (B, 3, H, W), for a detector with a backbone.
            features: (B, N, F), zeros where there is padding, for one without.
            mask: (B, N) booleans, true for real vectors; none: all are.

        Raises:
            UserError: The other of the two, or features of another width.
        """
        if self.vision is not None:
            if pixels is None:
                raise UserError("this detector sees pixels and not features: give pictures.")
            return self.head.absence(self.vision(pixels).permute(0, 3, 1, 2))
        if features is None:
            raise UserError("this detector reads features and not pixels: give features.")
        if features.shape[-1] != self.feature_dim:
            raise UserError(
                f"features are {features.shape[-1]} wide; this detector was made for {self.feature_dim}: give features "
                "made like those that it was trained on."
            )
        if mask is not None:
            first = torch.arange(mask.shape[1], device=mask.device) == 0
            mask = mask | (first & ~mask.any(1, keepdim=True))
        return self.head.absence(features.transpose(1, 2)[:, :, None], mask)

    @torch.no_grad()
    def presence(self, visuals: Sequence[Visual]) -> Tensor:
        """Probabilities (B, K) that each word is in each of B items, on the CPU.

        Raises:
            UserError: They are not what the detector was trained on.
        """
        place = next(self.parameters())
        batch = collate([{"id": str(i), "index": i, "visual": visual} for i, visual in enumerate(visuals)])
        return self(**{key: value.to(place.device) for key, value in seen(batch).items()}).presence().cpu()

    def detect_words(self, pictures: Sequence[Tensor], *, most: int = 10, above: float = 0.0) -> list[tuple[str, ...]]:
        """The words found in each picture, the surest first; ``vlp prepare features`` calls this.

        Args:
            pictures: (3, H, W) uint8 each, of any sizes.
            most: At most so many for each picture.
            above: Only words that are surer than this, 0 … 1.

        Raises:
            UserError: The detector reads features that cannot be made of pictures.
        """
        return detected(self.presence(self.look(pictures)), self.words, most=most, above=above)

    def look(self, pictures: Sequence[Tensor]) -> list[Visual]:
        """What the detector sees of pictures: pixels in the size, or features made like those, that it learnt from.

        Raises:
            UserError: Features that ``vlp prepare`` did not make.
        """
        from torchvision.transforms.v2 import functional

        if self.vision is not None:
            size = self.model_settings.vision.size
            return [
                Visual(pixels=image if size is None else functional.resize(image, list(size), antialias=True))
                for image in pictures
            ]
        if self.extractor is None:
            raise UserError(
                "this attribute detector reads features that vlp prepare did not make, so pictures cannot be turned "
                "into them: train one on pictures, or on features of vlp prepare."
            )
        given = extract.settings_of(self.extractor, words=False)
        if self._extract is None:
            self._extract = extract.extractor(given, next(self.parameters()).device)
        records = self._extract([extract.fitted(image, given) for image in pictures])
        return [visual_of(record, f"picture {number}") for number, record in enumerate(records, 1)]


def seen(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """What of a batch :meth:`AttributeDetector.forward` takes."""
    return {key: batch[key] for key in ("pixels", "features", "mask") if key in batch}
