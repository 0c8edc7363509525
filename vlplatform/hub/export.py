"""An exported model on disk: the three files of its folder, and whether they are what they say."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import nn

from vlplatform import __version__
from vlplatform.errors import UserError

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FILES = (CONFIG, WEIGHTS, CARD)
FORMAT, FORMAT_VERSION = "vlplatform", 1

_TYPES: dict[str, type] = {"task": str, "model": dict, "sections": dict, "sha256": str}


def find(folder: Path) -> Path:
    """The export at ``folder``: the folder itself, or the ``best/`` of a run's folder.

    Raises:
        UserError: There is no export, or half of one.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the one that holds {CONFIG} and {WEIGHTS}.")
    if (folder / "checksums.json").is_file():
        raise UserError(
            f"{folder} is a checkpoint of a training run, to resume from: give the run's folder, whose best/ is meant."
        )
    for candidate in (folder, folder / "best"):
        absent = [name for name in (CONFIG, WEIGHTS) if not (candidate / name).is_file()]
        if not absent:
            return candidate
        if len(absent) == 1:
            raise UserError(f"{candidate} has no {absent[0]}: copy or pull the model again, all files together.")
    raise UserError(f"{folder} holds no exported model: neither it nor a best/ in it has {CONFIG} and {WEIGHTS}.")


def read_config(path: Path) -> dict[str, Any]:
    """The checked contents of a ``config.json``: ``task``, ``model``, ``sections``, ``sha256`` and versions.

    Raises:
        UserError: Not JSON, not ours, of a newer format, or lacking a key.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}): copy or pull the model again.") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise UserError(f'{path} does not describe a {FORMAT} model (no "format": "{FORMAT}"): give one that does.')
    version = config.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise UserError(f"{path}: format_version is {version!r}, not a number from 1: pull the model again.")
    if version > FORMAT_VERSION:
        raise UserError(
            f"{path} has format_version {version}, newer than the {FORMAT_VERSION} that vlplatform {__version__} "
            "reads: update vlplatform (pip install -U vlplatform)."
        )
    for key, kind in _TYPES.items():
        if not isinstance(config.get(key), kind):
            raise UserError(f"{path}: the key {key} is missing or no {kind.__name__}: pull or save the model again.")
    return config


def check_weights(folder: Path, config: dict[str, Any]) -> None:
    """Compare the weights with the SHA-256 in the config.

    Raises:
        UserError: They differ: the file is damaged, truncated, or of another model.
    """
    if sha256_of(folder / WEIGHTS) != config["sha256"]:
        raise UserError(
            f"{folder / WEIGHTS} is damaged or was exchanged: its sha256 is not the one in {CONFIG}; "
            "copy or pull the model again."
        )


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def first_names(model: nn.Module) -> dict[str, str]:
    """Each tensor of the model's state → the first name of the same memory, so that tied weights are stored once."""
    seen: dict[tuple[object, ...], str] = {}
    firsts: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        firsts[name] = seen.setdefault(memory, name) if tensor.numel() else name
    return firsts
