"""The folder of a run: begun, continued, or refused; what each file in it is called."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from vlplatform.engine.checkpoint import (
    checkpoints,
    fault,
    load_checkpoint,
    newest_checkpoint,
    remove_checkpoint,
    remove_leftovers,
    step_of,
)
from vlplatform.engine.files import json_bytes, space_needed, write_whole
from vlplatform.errors import UserError
from vlplatform.hub.atomic import written_aside
from vlplatform.hub.export import CONFIG, WEIGHTS, read_config

CHECKPOINTS = "checkpoints"
BEST = "best"
ENTRIES = [
    "metrics.json",
    "checkpoints",
    "best",
    "tensorboard",
    "report.html",
    "timings.jsonl",
    "metrics.jsonl",
    "environment.json",
    "settings.json",
]
"""All that a run writes. ``overwrite`` removes these and nothing else, in this order: killed half-way, what is left is
neither called finished nor continued."""

HARMLESS = {
    "trainer.workers",
    "trainer.log_every",
    "trainer.trackers",
    "trainer.keep",
    "trainer.eval_batch_size",
    # where files lie, not what they hold: a run may be continued after its data have moved, and the weights that it
    # began from are in its checkpoints
    "data.root",
    "data.cache",
    "model.weights",
    "resume",
    "overwrite",
    "name",
    "out",
}
"""Settings that may differ when a run is continued: they change no number of the training."""

ENDLESS = ("constant", "step", "inverse_sqrt")
"""Schedules that do not know how many updates there will be: a run with one may be continued with more."""


@dataclass(frozen=True)
class Opening:
    """How a run begins: from a checkpoint, from nothing, or not at all because it is done.

    Attributes:
        checkpoint: The checkpoint to continue from; None: the folder is emptied of an earlier run.
        step: Updates behind it.
        longer: Whether the run is to have more updates than it was begun for.
        best: Whether the model exported beside the checkpoint is the best one that the checkpoint speaks of.
        finished: The contents of ``metrics.json`` of a finished run.
        notes: Lines for the user.
    """

    checkpoint: Path | None = None
    step: int = 0
    longer: bool = False
    best: bool = True
    finished: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


def plan_run(folder: Path, settings: Mapping[str, Any], *, resume: str | None, overwrite: bool) -> Opening:
    """How a run with these resolved settings is to begin in ``folder``; nothing is changed yet.

    What a start that failed before its first line and checkpoint left behind counts as nothing.

    Raises:
        UserError: The folder holds a run that was not asked for, or entries of a run's names that would be lost;
            the settings differ from those of the run to be continued; its ``settings.json``, ``metrics.json`` or all
            its checkpoints are broken; or the checkpoint named by ``resume`` cannot be used.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose another name=….")
    settings = json.loads(json_bytes(settings))
    if resume is not None and resume != "auto":
        return _from(Path(resume).expanduser(), folder, settings, [], overwrite=overwrite)
    anew = overwrite or _never_ran(folder)
    if resume is None:
        if not anew:
            _refuse(folder)
        return Opening()
    notes: list[str] = []
    newest = newest_checkpoint(folder / CHECKPOINTS, notes.append)
    recorded = folder / "settings.json"
    if not anew or newest is not None:
        if recorded.exists():
            remedy = "remove it to continue from the checkpoints" if newest else "begin anew with overwrite=true"
            longer = _compare(_read(recorded, remedy), settings)
            if (folder / "metrics.json").exists() and not longer:
                done = _read(folder / "metrics.json", "remove it, and resume=auto makes the end of the run again")
                return Opening(finished=done, notes=[f"{folder} is finished."])
        if newest is not None:
            return _from(newest, folder, settings, notes, overwrite=overwrite)
        if checkpoints(folder / CHECKPOINTS):
            raise UserError(
                f"No checkpoint in {folder / CHECKPOINTS} can be used (the newest: "
                f"{fault(checkpoints(folder / CHECKPOINTS)[-1])}): restore one, begin anew with overwrite=true, "
                "or choose another name=…."
            )
        if not recorded.exists():
            _refuse(folder)
    return Opening(notes=[*notes, f"There is no checkpoint to continue from in {folder}: the run begins anew."])


def begin(folder: Path, settings: Mapping[str, Any], opening: Opening) -> None:
    """Make ``folder`` ready as planned: emptied of an earlier run, or taken back to the checkpoint.

    A checkpoint of another run's folder brings its best model along.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if opening.checkpoint is None or not _is_own(opening.checkpoint, folder):
        for name in ENTRIES:
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    remove_leftovers(folder / CHECKPOINTS)
    remove_leftovers(folder)
    if opening.longer or not (folder / "settings.json").exists():
        write_whole(folder / "settings.json", json_bytes(settings))
    if opening.checkpoint is None:
        return
    if _is_own(opening.checkpoint, folder):
        for path in checkpoints(folder / CHECKPOINTS):
            if step_of(path) > opening.step:
                remove_checkpoint(path)
    elif opening.best and (best := _best_beside(opening.checkpoint)).is_dir():
        with space_needed(folder), written_aside(folder / BEST) as aside:
            shutil.copytree(best, aside, dirs_exist_ok=True)
    (folder / "metrics.json").unlink(missing_ok=True)
    for name in ("metrics.jsonl", "timings.jsonl"):
        cut_back(folder / name, opening.step)


def _from(checkpoint: Path, folder: Path, settings: Mapping[str, Any], notes: list[str], *, overwrite: bool) -> Opening:
    """The plan to continue from ``checkpoint``, which may lie in another run's folder."""
    if not checkpoint.is_dir():
        raise UserError(f"resume={checkpoint} is no folder: name one checkpoints/step-…, or say resume=auto.")
    stored = load_checkpoint(checkpoint)
    longer = _compare(stored.settings, settings)
    if longer and stored.state["place"]["stage"]:
        raise UserError(f"{checkpoint} is past its first stage, whose trainer.steps must stay: restore them.")
    if not _is_own(checkpoint, folder):
        if _within(checkpoint, folder):  # emptying the folder would remove it
            raise UserError(f"resume={checkpoint} lies in {folder} but is none of its checkpoints: move it elsewhere.")
        if not overwrite and not _never_ran(folder):
            _refuse(folder)
    place = stored.state["place"]
    best = place["best"] is None or _holds_best(_best_beside(checkpoint), place.get("best_sha256"))
    if not best:
        notes = [*notes, f"The best model of update {place['best_step']} is not there: the best of the rest is kept."]
    return Opening(checkpoint, stored.state["step"], longer, best, notes=[*notes, f"Continuing from {checkpoint}."])


def _never_ran(folder: Path) -> bool:
    """Whether nothing would be lost: no entry is there, or only what a start leaves that failed at once."""
    present = {name for name in ENTRIES if (folder / name).exists()}
    if not present:
        return True
    started = {"settings.json", "environment.json", "metrics.jsonl", "timings.jsonl", "tensorboard", CHECKPOINTS}
    if not {"settings.json"} <= present <= started or checkpoints(folder / CHECKPOINTS):
        return False
    if "metrics.jsonl" in present and (folder / "metrics.jsonl").stat().st_size:
        return False
    try:
        recorded = json.loads((folder / "settings.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(recorded, dict) and "trainer" in recorded  # else it is somebody else's settings.json


def _refuse(folder: Path) -> NoReturn:
    entry = next(name for name in ENTRIES if (folder / name).exists())
    if (folder / "settings.json").exists():
        raise UserError(
            f"{folder} already holds a run: continue it with resume=auto, replace it with overwrite=true, "
            "or choose another name=…."
        )
    raise UserError(
        f"{folder} holds '{entry}' of no run that could be continued: choose another name=…, "
        "or let it be replaced with overwrite=true."
    )


def _is_own(checkpoint: Path, folder: Path) -> bool:
    return checkpoint.resolve().parent == (folder / CHECKPOINTS).resolve()


def _within(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _best_beside(checkpoint: Path) -> Path:
    return checkpoint.resolve().parent.parent / BEST


def _holds_best(best: Path, sha256: str | None) -> bool:
    """Whether ``best`` is the export with these weights (None: an older checkpoint, which does not say which)."""
    try:
        config = read_config(best / CONFIG)
    except (OSError, UserError):
        return False
    return (best / WEIGHTS).is_file() and sha256 in (None, config["sha256"])


def _read(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file of ours; a :class:`UserError` with the ``remedy`` if it holds none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({' '.join(str(error).split())}): {remedy}.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} does not hold a JSON object: {remedy}.")
    return value


def cut_back(path: Path, step: int) -> None:
    """Keep the lines up to update ``step`` of a file of JSON lines.

    A torn last line goes too, and what comes after the last checkpoint: the mean of checkpoints, scores that were late.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            entry = json.loads(line)
            if line.endswith(b"\n") and entry["step"] <= step and not _at_the_end(entry):
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    write_whole(path, b"".join(kept))


def _at_the_end(entry: Mapping[str, Any]) -> bool:
    return entry["kind"] == "average" or entry.get("at_the_end", False)


def _compare(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Raise :class:`UserError` naming the settings in which a continued run differs; whether it only grows longer."""
    old, new = dict(_flat(stored)), dict(_flat(given))
    endless = new.get("trainer.schedule") in ENDLESS
    longer = endless and new.get("trainer.steps", 0) > old.get("trainer.steps", math.inf)
    different = [
        f"{key} was {json.dumps(old.get(key))} and is now {json.dumps(new.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and key not in HARMLESS and not (longer and key == "trainer.steps")
    ]
    if different:
        raise UserError(
            f"The run cannot be continued with other settings ({'; '.join(different)}): "
            "restore them, or begin another run with name=…."
        )
    return longer


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
