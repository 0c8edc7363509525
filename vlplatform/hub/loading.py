"""Models out of folders and hubs: ``vlplatform.load``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from vlplatform import registry
from vlplatform.errors import UserError
from vlplatform.hub.address import is_hub_id
from vlplatform.hub.export import CONFIG, WEIGHTS, check_weights, find, first_names, read_config
from vlplatform.hub.remote import pull


def load(
    source: str | Path,
    *,
    revision: str | None = None,
    device: str | torch.device = "cpu",
    offline: bool | None = None,
) -> nn.Module:
    """A saved or published model, rebuilt from its settings, in evaluation mode.

    Args:
        source: A folder (a saved model, or a run, of which ``best/`` is meant), or a hub id
            ``org/name`` or ``org/name@revision``. A folder that exists goes before a hub id of the same name.
        revision: Branch, tag or commit on the hub.
        device: Where the model goes.
        offline: Of a hub's models use those in the cache alone; by default so if HF_HUB_OFFLINE is set.

    Returns:
        The model, with its config (``task``, ``model``, ``sections``, …) as ``model.loaded_config``.

    Raises:
        UserError: Nothing there, damaged, of a newer format, of a task not installed, or weights that do not fit.
    """
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device={device!r} is not a device: write cpu, cuda or cuda:0.") from error
    folder = locate(source, revision, offline)
    config = read_config(folder / CONFIG)
    check_weights(folder, config)
    try:
        model = registry.task(config["task"]).rebuild(config["model"])
    except (UserError, TypeError, ValueError, KeyError) as error:
        raise UserError(f"{folder / CONFIG}: no model can be rebuilt from it: {str(error).rstrip('.')}.") from error
    _fill(model, folder / WEIGHTS)
    cast(Any, model).loaded_config = config
    try:
        return model.to(place).eval()
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={device!r} is not available here: choose cpu, or another device.") from error


def locate(source: str | Path, revision: str | None = None, offline: bool | None = None) -> Path:
    """The folder with the three files of a saved model, or of a published one, which is pulled; see :func:`load`.

    Raises:
        UserError: There is none.
    """
    path = Path(source).expanduser()
    if path.exists():
        if revision is not None:
            raise UserError(f"{source} is a folder here and has no revision: leave revision={revision!r} away.")
        return find(path)
    if _means_a_folder(source):  # a misspelt path must not become a download
        there = f" ({path.parent} is there, but no {path.name} in it)" if path.parent.is_dir() else ""
        raise UserError(
            f"no such folder: {source}{there}; check the path of the run or model (for the hub: vlp pull org/name)."
        )
    if isinstance(source, Path) or not is_hub_id(source):
        raise UserError(f"{source} is neither a folder here nor a hub id (org/name, org/name@revision): check it.")
    return pull(source, revision=revision, offline=offline)


def _means_a_folder(source: str | Path) -> bool:
    """Whether what does not exist was meant as a path: its form says so, or it begins with a folder that exists."""
    text = str(source).partition("@")[0]
    first, slash, rest = text.partition("/")
    return (
        isinstance(source, Path)
        or text.startswith(("/", "~", "./", "../", "runs/"))
        or "/" in rest
        or (bool(slash) and Path(first).is_dir())
    )


def _fill(model: nn.Module, weights: Path) -> None:
    """Load the weights strictly.

    Raises:
        UserError: Not a safetensors file, or keys or shapes that differ from the model's.
    """
    state, first = model.state_dict(), first_names(model)
    own = {name: list(state[name].shape) for name in first.values()}
    try:
        stored = load_file(weights)
    except SafetensorError as error:
        raise UserError(
            f"{weights} is not a whole safetensors file ({error}): copy or pull the model again."
        ) from error
    faults = {
        "missing": [n for n in own if n not in stored],
        "unexpected": [n for n in stored if n not in own],
        "of another shape": [
            f"{n} {list(stored[n].shape)}, not {own[n]}" for n in own if n in stored and list(stored[n].shape) != own[n]
        ],
    }
    if any(faults.values()):
        named = "; ".join(f"{kind}: {_some(sorted(names))}" for kind, names in faults.items() if names)
        raise UserError(f"{weights} does not fit the model of its {CONFIG} ({named}): save or pull it again.")
    model.load_state_dict({name: stored[first[name]] for name in state})


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
