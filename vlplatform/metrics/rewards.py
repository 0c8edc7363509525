"""Rewards of self-critical training by name: how good a caption is against its image's references.

Captions come as integers, several per image. `cider_d` is the usual reward (X-LAN, MD-SAN); others and weighted sums of
several are a matter of names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vlplatform.errors import UserError, nearest
from vlplatform.metrics.bleu import Bleu
from vlplatform.metrics.cider import CiderD, Source
from vlplatform.metrics.rouge import RougeL

REWARDS = {
    "cider_d": "CIDEr-D, in 0 … 10",
    "bleu4": "BLEU-4 of the caption alone, in 0 … 1",
    "rouge_l": "ROUGE-L, in 0 … 1",
}


class Reward(Protocol):
    """Scores captions of images it knows."""

    def __call__(self, images: Sequence[int], captions: Sequence[Sequence[int]]) -> Tensor:
        """The reward of each caption, (len(captions),) float64 on the CPU, without gradient.

        Args:
            images: For each caption the place of its image among the references; images may repeat.
            captions: Tokens; what follows the end symbol does not count.

        Raises:
            ValueError: Not one image per caption, or an image that does not exist.
        """
        ...


def make(
    name: str | Mapping[str, float],
    references: Sequence[Sequence[Sequence[int]]],
    *,
    end: int | None = None,
    count_end: bool = False,
    df: Source = "image",
) -> Reward:
    """A reward for the images of a training set.

    Args:
        name: One of :data:`REWARDS`, or several with their weights (``{"cider_d": 1.0, "bleu4": 0.5}``).
        references: Per training image its reference captions as tokens, one at least.
        end: The end symbol, at which captions and references are cut; None: they are taken as they come.
        count_end: For CIDEr-D: the end symbol is a token like others (X-LAN).
        df: For CIDEr-D: what a document is, ``"image"`` or ``"caption"`` (MD-SAN), or frequencies from elsewhere.

    Raises:
        UserError: Unknown name, no name, a weight that is no finite number, or an image without references.
    """
    weights = {name: 1.0} if isinstance(name, str) else dict(name)
    if unknown := [each for each in weights if each not in REWARDS]:
        raise UserError(f"there is no reward '{unknown[0]}': {nearest(unknown[0], REWARDS)}.")
    if not weights:
        raise UserError(f"no reward is given: {nearest('', REWARDS)}.")
    for each, weight in weights.items():
        if not isinstance(weight, int | float) or not math.isfinite(weight):
            raise UserError(f"the weight of the reward '{each}' must be a number, not {weight!r}.")
    if empty := [i for i, captions in enumerate(references) if not len(captions)]:
        raise UserError(f"training image {empty[0]} has no reference caption: leave it out of self-critical training.")
    cut = references if end is None else [[_cut(caption, end) for caption in captions] for captions in references]
    parts: list[tuple[float, Reward]] = []
    for each, weight in weights.items():
        if each == "cider_d":
            parts.append((weight, _CiderD(CiderD(references, df=df, end=end, count_end=count_end))))
        elif each == "bleu4":
            parts.append((weight, _Bleu4(Bleu(cut), end)))
        else:
            parts.append((weight, _RougeL(RougeL(cut), end)))
    return parts[0][1] if len(parts) == 1 and parts[0][0] == 1 else _Sum(parts)


class _CiderD:
    def __init__(self, metric: CiderD) -> None:
        self._metric = metric

    def __call__(self, images: Sequence[int], captions: Sequence[Sequence[int]]) -> Tensor:
        return torch.from_numpy(self._metric.scores(images, captions))


class _Bleu4:
    def __init__(self, metric: Bleu, end: int | None) -> None:
        self._metric, self._end = metric, end

    def __call__(self, images: Sequence[int], captions: Sequence[Sequence[int]]) -> Tensor:
        each = self._metric.scores(images, [_cut(caption, self._end) for caption in captions])[1]
        return torch.from_numpy(np.ascontiguousarray(each[:, 3]))


class _RougeL:
    def __init__(self, metric: RougeL, end: int | None) -> None:
        self._metric, self._end = metric, end

    def __call__(self, images: Sequence[int], captions: Sequence[Sequence[int]]) -> Tensor:
        return torch.from_numpy(self._metric.scores(images, [_cut(caption, self._end) for caption in captions]))


class _Sum:
    def __init__(self, parts: Sequence[tuple[float, Reward]]) -> None:
        self._parts = parts

    def __call__(self, images: Sequence[int], captions: Sequence[Sequence[int]]) -> Tensor:
        return torch.stack([weight * reward(images, captions) for weight, reward in self._parts]).sum(0)


def _cut(caption: Sequence[int], end: int | None) -> Sequence[int]:
    """Up to the end symbol, without it."""
    return caption if end is None or end not in caption else caption[: list(caption).index(end)]
