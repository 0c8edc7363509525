"""Checkpoints: folders of safetensors and JSON that appear whole, checksummed, and hold nothing pickled.

``step-00000100/`` has ``model``, ``optimizer``, ``ema`` and per process ``random-<rank>`` as safetensors,
``state.json`` (place in the run and in the data), ``settings.json``, and ``checksums.json`` (SHA-256 of the others).
It is written aside, synced, and renamed, so a crash at any moment leaves the earlier ones as they were.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from vlplatform.engine.files import json_bytes, space_needed, sync_folder, write_synced
from vlplatform.errors import UserError

ASIDE = ".tmp-"
CHECKSUMS = "checksums.json"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        tensors: File name without suffix → its tensors.
        state: JSON-ready facts: ``step``, ``regular`` (saved by schedule, not by an interruption), and others.
        settings: The resolved settings of the run.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]
    settings: Mapping[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write ``folder/step-<step>``, replacing one of the same step; returns its path.

    Raises:
        UserError: No space is left; nothing of the new checkpoint remains and the earlier ones are intact.
    """
    path = folder / f"step-{checkpoint.state['step']:08d}"
    aside = folder / f"{ASIDE}{path.name}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with space_needed(folder):
            _remove(aside)
            aside.mkdir()
            sums = {}
            for name, data in _files(checkpoint):
                write_synced(aside / name, data)
                sums[name] = hashlib.sha256(data).hexdigest()
            write_synced(aside / CHECKSUMS, json_bytes(sums))
            sync_folder(aside)
    except BaseException:
        _remove(aside)
        raise
    remove_checkpoint(path)
    os.rename(aside, path)
    sync_folder(folder)
    return path


def _files(checkpoint: Checkpoint) -> Any:
    """Names and contents, made one by one to hold only one in memory."""
    for name, tensors in checkpoint.tensors.items():
        plain = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
        yield f"{name}.safetensors", safetensors.torch.save(plain)
    yield "settings.json", json_bytes(checkpoint.settings)
    yield "state.json", json_bytes(checkpoint.state)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint on the CPU.

    Raises:
        UserError: It is broken (see :func:`fault`).
    """
    if reason := fault(path):
        raise UserError(f"Checkpoint {path} cannot be used, {reason}: choose another one, or resume=auto.")
    tensors = {file.stem: safetensors.torch.load_file(file) for file in path.glob("*.safetensors")}
    state, settings = (json.loads((path / f"{name}.json").read_bytes()) for name in ("state", "settings"))
    return Checkpoint(tensors, state, settings)


def fault(path: Path) -> str | None:
    """Why the checkpoint ``path`` cannot be used (``model.safetensors does not match its checksum``), or None."""
    try:
        sums = json.loads((path / CHECKSUMS).read_bytes())
        for name, expected in sums.items():
            if hashlib.sha256((path / name).read_bytes()).hexdigest() != expected:
                return f"{name} does not match its checksum"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, AttributeError) as error:
        return f"it cannot be read ({type(error).__name__})"
    return None if {"model.safetensors", "state.json", "settings.json"} <= set(sums) else "files are missing"


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints in ``folder``, oldest first, broken ones too."""
    return sorted(folder.glob("step-*"), key=step_of)


def step_of(path: Path) -> int:
    """The number of updates behind a checkpoint, from its name; -1 if it is no checkpoint's."""
    digits = path.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() else -1


def newest_checkpoint(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint; broken newer ones are named through ``warn``. Nothing is changed."""
    for path in reversed(checkpoints(folder)):
        reason = fault(path)
        if reason is None:
            return path
        warn(f"Checkpoint {path} is broken, {reason}: an earlier one is taken.")
    return None


def regular_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints saved by schedule, oldest first."""
    return [path for path in checkpoints(folder) if _is_regular(path)]


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the last ``keep`` regular checkpoints and the newest of all."""
    kept: Sequence[Path] = [*regular_checkpoints(folder)[-keep:], *checkpoints(folder)[-1:]]
    for path in checkpoints(folder):
        if path not in kept:
            remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, if it is there, so that no crash leaves half of it under its name."""
    if path.exists():
        gone = path.with_name(f"{ASIDE}old-{path.name}")
        _remove(gone)
        os.rename(path, gone)
        _remove(gone)


def remove_leftovers(folder: Path) -> None:
    """Remove what a crash in the middle of a save left behind."""
    for path in folder.glob(f"{ASIDE}*"):
        _remove(path)


def _is_regular(path: Path) -> bool:
    try:
        return bool(json.loads((path / "state.json").read_bytes())["regular"])
    except (OSError, ValueError, KeyError):
        return False


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
