"""Cross-entropy over labelled pixels: class weights, online hard example mining, an auxiliary head's share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vlplatform.errors import UserError
from vlplatform.task import Loss


@dataclass(frozen=True)
class OhemSettings:
    """Online hard example mining (Shrivastava et al. 2016, as mmsegmentation uses it for pixels).

    A pixel counts if its true class has a probability below ``threshold``, or if it is among the ``min_kept``
    hardest of its image. Where we differ: per image and not per batch, so that the loss does not depend on how
    a batch is split over processes.

    Attributes:
        use: Whether hard pixels alone count.
        threshold: A pixel is hard if its true class has a probability below this.
        min_kept: At least so many of an image's pixels count, the hardest first.
    """

    use: bool = False
    threshold: float = 0.7
    min_kept: int = 10_000

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold} must lie in (0, 1]")
        if self.min_kept < 0:
            raise ValueError(f"min_kept={self.min_kept} must not be negative")


class PixelLoss:
    """Summed cross-entropy of the pixels that count, and the sum of their weights.

    total / count equals ``F.cross_entropy(…, weight, reduction="mean")``, computed in float32 also under autocast.
    """

    def __init__(self, ignore_index: int, ohem: OhemSettings, class_weights: Tensor | None = None) -> None:
        self.ignore_index, self.ohem, self.class_weights = ignore_index, ohem, class_weights

    def __call__(self, logits: Tensor, target: Tensor, aux: Tensor | None = None, aux_weight: float = 0.0) -> Loss:
        """The loss of logits (B, K, H, W) against class ids (B, H, W).

        The auxiliary logits (B, K, H, W) are scored on the same pixels and weights; ``parts`` has both sums.
        """
        main = self._cross_entropy(logits, target)
        weight = self._weights(main.detach(), target)
        total = (main * weight).sum()
        parts: dict[str, Tensor] = {}
        if aux is not None:
            extra = (self._cross_entropy(aux, target) * weight).sum()
            parts = {"main": total.detach(), "aux": extra.detach()}
            total = total + aux_weight * extra
        return Loss(total, weight.sum(), parts)

    def _cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        """Per pixel (B, H, W), 0 where ignored."""
        with torch.autocast(logits.device.type, enabled=False):
            return F.cross_entropy(logits.float(), target, ignore_index=self.ignore_index, reduction="none")

    def _weights(self, losses: Tensor, target: Tensor) -> Tensor:
        """What each pixel counts (B, H, W), float32."""
        valid = target != self.ignore_index
        kept = valid & self._hard(losses, valid) if self.ohem.use else valid
        if self.class_weights is None:
            return kept.float()
        by_class = self.class_weights.to(target.device)
        return by_class[target.where(valid, 0)] * kept

    def _hard(self, losses: Tensor, valid: Tensor) -> Tensor:
        hard = losses > -math.log(self.ohem.threshold)
        if self.ohem.min_kept == 0:
            return hard
        flat = losses.masked_fill(~valid, -1.0).flatten(1)
        least = flat.topk(min(self.ohem.min_kept, flat.shape[1]), dim=1, sorted=True).values[:, -1]
        return hard | (losses >= least[:, None, None])


def median_frequency(masks: Iterable[Tensor], classes: int, ignore_index: int) -> Tensor:
    """Class weights by median frequency balancing (Eigen & Fergus 2015): median of the frequencies / frequency.

    A class's frequency is its share of the labelled pixels of the images that show it. Classes that are never
    seen get weight 1, which nothing will use.

    Args:
        masks: Class ids (H, W), one image at a time.
        classes: How many classes.
        ignore_index: The id of pixels without a label.

    Returns:
        (classes,) float32.

    Raises:
        UserError: No pixel has a label.
    """
    pixels, shown = torch.zeros(classes, dtype=torch.int64), torch.zeros(classes, dtype=torch.int64)
    for mask in masks:
        counts = torch.bincount(mask[mask != ignore_index].flatten(), minlength=classes)
        pixels += counts
        shown += (counts > 0) * counts.sum()
    seen = shown > 0
    if not seen.any():
        raise UserError(
            "task.class_weights=median_frequency: the training masks hold no labelled pixel; check data.root."
        )
    frequency = pixels[seen].double() / shown[seen]
    weights = torch.ones(classes)
    weights[seen] = (frequency.quantile(0.5) / frequency).float()
    return weights
