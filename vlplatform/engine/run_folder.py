"""The folder of a run: begun, continued, or refused; what each file in it is called."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlplatform.engine.checkpoint import (
    checkpoints,
    load_checkpoint,
    newest_checkpoint,
    remove_checkpoint,
    remove_leftovers,
    step_of,
)
from vlplatform.engine.files import json_bytes, write_whole
from vlplatform.errors import UserError

CHECKPOINTS = "checkpoints"
BEST = "best"
ENTRIES = [
    "settings.json",
    "environment.json",
    "metrics.jsonl",
    "timings.jsonl",
    "metrics.json",
    "report.html",
    "tensorboard",
    "best",
    "checkpoints",
]
"""All that a run writes; ``overwrite`` removes these and nothing else."""

HARMLESS = {
    "trainer.workers",
    "trainer.log_every",
    "trainer.trackers",
    "trainer.keep",
    "trainer.eval_batch_size",
    "resume",
    "overwrite",
    "name",
    "out",
}
"""Settings that may differ when a run is continued: they change no number of the training."""


@dataclass(frozen=True)
class Opening:
    """How a run begins: from a checkpoint, from nothing, or not at all because it is done.

    Attributes:
        checkpoint: The checkpoint to continue from.
        finished: The contents of ``metrics.json`` of a finished run.
        notes: Lines for the user.
    """

    checkpoint: Path | None = None
    finished: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


def open_run(folder: Path, settings: Mapping[str, Any], *, resume: str | None, overwrite: bool) -> Opening:
    """Make ``folder`` ready for a run with these resolved settings.

    Raises:
        UserError: The folder holds a run that was not asked for, the settings differ from those of the run to be
            continued, or the checkpoint named by ``resume`` cannot be used.
    """
    settings = json.loads(json_bytes(settings))
    present = (folder / "settings.json").exists()
    if resume is None and present and not overwrite:
        raise UserError(
            f"{folder} already holds a run: continue it with resume=auto, replace it with overwrite=true, "
            "or choose another name=…."
        )
    if resume is None:
        return _begin(folder, settings)
    if resume != "auto":
        return _continue(folder, settings, Path(resume), [])
    if not present:
        opening = _begin(folder, settings)
        opening.notes.append(f"There is nothing to resume in {folder}: a new run begins.")
        return opening
    _compare(json.loads((folder / "settings.json").read_bytes()), settings)
    if (folder / "metrics.json").exists():
        return Opening(finished=json.loads((folder / "metrics.json").read_bytes()), notes=[f"{folder} is finished."])
    notes: list[str] = []
    newest = newest_checkpoint(folder / CHECKPOINTS, notes.append)
    if newest is None:
        opening = _begin(folder, settings)
        opening.notes.extend([*notes, f"There is no whole checkpoint in {folder}: the run begins anew."])
        return opening
    return _continue(folder, settings, newest, notes)


def _begin(folder: Path, settings: Mapping[str, Any]) -> Opening:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ENTRIES:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    write_whole(folder / "settings.json", json_bytes(settings))
    return Opening()


def _continue(folder: Path, settings: Mapping[str, Any], checkpoint: Path, notes: list[str]) -> Opening:
    """Take the folder back to the moment of ``checkpoint`` (which may lie in another run's folder)."""
    if not checkpoint.is_dir():
        raise UserError(f"resume={checkpoint} is no folder: name one checkpoints/step-…, or say resume=auto.")
    stored = load_checkpoint(checkpoint)
    _compare(stored.settings, settings)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "settings.json").exists():
        write_whole(folder / "settings.json", json_bytes(settings))
    remove_leftovers(folder / CHECKPOINTS)
    remove_leftovers(folder)
    if checkpoint.resolve().parent == (folder / CHECKPOINTS).resolve():
        for path in checkpoints(folder / CHECKPOINTS):
            if step_of(path) > step_of(checkpoint):
                remove_checkpoint(path)
    (folder / "metrics.json").unlink(missing_ok=True)
    for name in ("metrics.jsonl", "timings.jsonl"):
        cut_back(folder / name, stored.state["step"])
    return Opening(checkpoint, notes=[*notes, f"Continuing from {checkpoint}."])


def cut_back(path: Path, step: int) -> None:
    """Keep the lines up to update ``step`` of a file of JSON lines.

    A torn last line goes too, and the mean of checkpoints, which comes after the last checkpoint.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            entry = json.loads(line)
            if line.endswith(b"\n") and entry["step"] <= step and entry["kind"] != "average":
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    write_whole(path, b"".join(kept))


def _compare(stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise :class:`UserError` naming the settings in which a continued run differs from what it was."""
    old, new = dict(_flat(stored)), dict(_flat(given))
    different = [
        f"{key} was {json.dumps(old.get(key))} and is now {json.dumps(new.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and key not in HARMLESS
    ]
    if different:
        raise UserError(
            f"The run cannot be continued with other settings ({'; '.join(different)}): "
            "restore them, or begin another run with name=…."
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
