"""What an evaluation leaves beside its scores: captions for people, and a result file for the COCO server."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vlp_captioning.readers import Item
from vlplatform.errors import UserError
from vlplatform.metrics.captions import CaptionScores
from vlplatform.metrics.submission import write_submission


def target(prefix: str, split: str) -> Path:
    """``results/mine`` → results/captions_SPLIT_mine_results.json, the names that the server wants."""
    path = Path(os.path.expanduser(prefix))
    return path.with_name(f"captions_{split}_{path.name}_results.json")


def check(prefix: str, split: str, items: Iterable[Item]) -> None:
    """See before an evaluation that its captions can be submitted.

    Raises:
        UserError: No such folder, or ids that are not COCO's.
    """
    folder = target(prefix, split).parent
    if not folder.is_dir():
        raise UserError(f"task.submission={prefix}: there is no folder {folder}; make it, or name another.")
    odd = next((item.id for item in items if not (item.id.isascii() and item.id.isdigit())), None)
    if odd is not None:
        raise UserError(
            f"task.submission={prefix}: the image id {odd!r} is no number, and the COCO server takes COCO's image ids "
            "only; leave task.submission away for this data set."
        )


def submit(prefix: str, split: str, captions: Mapping[str, str]) -> str:
    """Write the result file; a note about where it is, or why there is none: the scores must not be lost with it."""
    try:
        numbered: dict[int | str, str] = {id: caption for id, caption in captions.items()}
        return f"submission: {write_submission(target(prefix, split), numbered)}"
    except UserError as error:
        return f"no submission: {error}"


def listed(
    predictions: Sequence[Mapping[str, Any]], references: Mapping[str, Sequence[str]], found: CaptionScores | None
) -> list[dict[str, Any]]:
    """Per image its id, caption, log-probability, references and own scores, JSON-ready."""
    each = found.per_image if found is not None else {}
    rows = []
    for prediction in predictions:
        row = {key: prediction[key] for key in ("id", "caption", "log_prob")}
        row["references"] = list(references.get(row["id"], ()))
        row["scores"] = {name: float(values[row["id"]]) for name, values in each.items() if row["id"] in values}
        if prediction.get("alignment") is not None:
            row["scores"]["alignment"] = float(prediction["alignment"])
        rows.append(row)
    return rows


def notes(found: CaptionScores) -> list[str]:
    """What the scores depend on, and why any are not there."""
    signed = " | ".join(f"{name.replace('_', ' ')}: {value}" for name, value in found.signature.items())
    return [f"signature: {signed}", *(f"{name}: {reason}" for name, reason in found.missing.items())]
