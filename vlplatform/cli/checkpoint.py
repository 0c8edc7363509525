"""A saved model together with the settings it was trained under, as ``eval`` and ``predict`` need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from vlplatform import hub
from vlplatform.cli import compose
from vlplatform.errors import UserError

SOURCE_HELP = "a run's folder, a model folder, or a hub id (org/name, org/name@revision)"


def load(source: str, device: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model in evaluation mode on the device, and its config (``task``, ``model``, ``sections``)."""
    model = hub.load(source, device=pick_device(device))
    config: dict[str, Any] = getattr(model, "loaded_config")  # noqa: B009 - set by hub.load on any module
    return model, config


def pick_device(name: str) -> str:
    """``auto`` as the best device there is; another name checked.

    Raises:
        UserError: The device does not exist here.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name} is not available here: choose auto, cpu, or cuda:0 ….") from error
    return name


def sections_with(config: dict[str, Any], overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The saved sections with ``data=…``, ``data.key=…`` and ``task.key=…`` of the command line put in.

    Raises:
        UserError: Any other override: attention, model and training are fixed in a checkpoint.
    """
    for override in overrides:
        group = override.lstrip("+~").partition("=")[0].partition(".")[0]
        if group not in ("data", "task") or override.startswith("task="):
            raise UserError(f"'{override}' cannot change a checkpoint: only data=…, data.KEY=… and task.KEY=… can.")
    saved: dict[str, dict[str, Any]] = {k: dict(v) for k, v in config["sections"].items() if k in compose.GROUPS}
    composed = compose.compose(overrides)
    chosen = any(override.startswith("data=") for override in overrides)
    for group in ("data", "task"):
        if group == "data" and chosen:
            saved["data"] = composed["data"]
            continue
        for override in overrides:
            path = override.lstrip("+~").partition("=")[0].split(".")
            if path[0] == group and len(path) > 1:
                _copy(composed[group], saved.setdefault(group, {}), path[1:])
    return saved


def _copy(source: dict[str, Any], target: dict[str, Any], path: Sequence[str]) -> None:
    """Copy the value at a dotted path."""
    for key in path[:-1]:
        source = source[key]
        target[key] = dict(target.get(key) or {})
        target = target[key]
    target[path[-1]] = source[path[-1]]
