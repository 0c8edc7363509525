"""Segmentation scores from one confusion matrix, summed over a data set.

Counts first, ratios once: intersections and unions are added up over all pixels of all pictures, so the scores
do not depend on batches or processes. Checked against mmsegmentation's IoU metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vlplatform.task import Score

METRICS = {
    "miou": "mean intersection over union of the classes present in truth or prediction",
    "pixel_accuracy": "share of labelled pixels that are right",
    "mean_accuracy": "mean recall of the classes present in the truth",
    "mean_f1": "mean F1 of the classes present in truth or prediction",
    "overall_f1": "face parsing: F1 of the pooled counts of the merged inner parts",
    "overall_binary_f1": "face parsing: F1 of all inner parts as one class",
}


def confusion(prediction: Tensor, target: Tensor, num_classes: int, ignore_index: int = 255) -> Tensor:
    """How often each true class was given each label: (C, C) int64 [target, prediction].

    Args:
        prediction: Class ids of any shape, all in 0 … C − 1 where the target counts.
        target: Class ids of the same shape; pixels equal to ``ignore_index`` do not count.
        num_classes: C.
        ignore_index: The id of unlabelled pixels.

    Raises:
        ValueError: Different shapes, or an id outside 0 … C − 1.
    """
    if prediction.shape != target.shape:
        raise ValueError(f"prediction {tuple(prediction.shape)} and target {tuple(target.shape)} differ in shape")
    counted = target != ignore_index
    target, prediction = target[counted].long(), prediction[counted].long()
    for name, ids in (("prediction", prediction), ("target", target)):
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < num_classes:
            raise ValueError(f"{name} has ids {int(ids.min())} … {int(ids.max())} outside 0 … {num_classes - 1}")
    pairs = torch.bincount(target * num_classes + prediction, minlength=num_classes**2)
    return pairs.reshape(num_classes, num_classes)


def scores(confusion: Tensor, class_names: Sequence[str]) -> Score:
    """mIoU, accuracies and F1 from a confusion matrix (C, C) [target, prediction].

    A class absent from truth and prediction has no IoU and no F1 (NaN) and is left out of their means; one
    absent from the truth has no accuracy.
    """
    counts = confusion.double().cpu()
    hit, true, given = counts.diagonal(), counts.sum(1), counts.sum(0)
    iou, accuracy, f1 = hit / (true + given - hit), hit / true, 2 * hit / (true + given)
    return Score(
        values={
            "miou": iou.nanmean().item(),
            "pixel_accuracy": (hit.sum() / counts.sum()).item(),
            "mean_accuracy": accuracy.nanmean().item(),
            "mean_f1": f1.nanmean().item(),
        },
        per_class={
            name: dict(zip(class_names, values.tolist(), strict=True))
            for name, values in (("iou", iou), ("accuracy", accuracy), ("f1", f1))
        },
    )


def face_scores(confusion: Tensor, class_names: Sequence[str], parts: Mapping[str, Sequence[str]]) -> Score:
    """F1 of merged face parts and of the inner face, thesis table 4.3.

    "Overall" there leaves open how the inner components are united, so both readings are given: ``overall_f1``
    pools the counts of the merged parts (a nose pixel called mouth is an error, as in the literature it is
    compared with); ``overall_binary_f1`` takes all of them as one class (it is not).

    Args:
        confusion: (C, C) [target, prediction].
        class_names: The C names.
        parts: Inner part → the classes merged into it (``{"mouth": ["u_lip", "mouth", "l_lip"]}``). Classes in
            no part (skin, hair, background) stay outside "overall"; their F1 is in :func:`scores`.

    Raises:
        ValueError: A part names a class that does not exist, or two parts share one.
    """
    ids = {name: i for i, name in enumerate(class_names)}
    members = [name for part in parts.values() for name in part]
    if unknown := set(members) - set(ids):
        raise ValueError(f"face parts name unknown classes: {', '.join(sorted(unknown))}")
    if len(members) != len(set(members)):
        raise ValueError("a class belongs to two face parts")
    counts = confusion.cpu()
    merged = {part: _counts(counts, [ids[name] for name in group]) for part, group in parts.items()}
    pooled = [sum(column) for column in zip(*merged.values())] or [0, 0]
    return Score(
        values={
            "overall_f1": _f1(*pooled),
            "overall_binary_f1": _f1(*_counts(counts, [ids[name] for name in members])),
        },
        per_class={"part_f1": {part: _f1(*pair) for part, pair in merged.items()}},
    )


def _counts(confusion: Tensor, group: list[int]) -> tuple[int, int]:
    """Hits of a group of classes taken as one, and the pixels true plus the pixels given."""
    hits = confusion[group][:, group].sum()
    return int(hits), int(confusion[group].sum() + confusion[:, group].sum())


def _f1(hits: int, true_and_given: int) -> float:
    return 2 * hits / true_and_given if true_and_given else math.nan
