"""A saved model together with the settings it was trained under, as ``eval`` and ``predict`` need them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from vlplatform import hub, registry, settings
from vlplatform.cli import compose
from vlplatform.errors import UserError

SOURCE_HELP = "a run's folder, a model folder, or a hub id (org/name, org/name@revision)"
WITH_HELP = "further checkpoints of the same task: all answer together, by the mean of their probabilities"


def load(source: str, device: str, others: Sequence[str] = ()) -> tuple[nn.Module, dict[str, Any]]:
    """The model in evaluation mode on the device, and its config (``task``, ``model``, ``sections``).

    With ``others`` an ensemble of all, with the config of the first.

    Raises:
        UserError: A checkpoint that cannot be loaded, or several that cannot answer together.
    """
    place = pick_device(device)
    model = hub.load(source, device=place)
    config: dict[str, Any] = getattr(model, "loaded_config")  # noqa: B009 - set by hub.load on any module
    if not others:
        return model, config
    plugin = registry.task(config["task"])
    together: Callable[[Sequence[nn.Module]], nn.Module] | None = getattr(plugin, "ensemble", None)
    if together is None:
        raise UserError(f"task={config['task']} knows no ensembles: leave out --with, one checkpoint at a time.")
    models = [model]
    for other in others:
        models.append(hub.load(other, device=place))
        if (task := getattr(models[-1], "loaded_config")["task"]) != config["task"]:  # noqa: B009
            raise UserError(f"--with {other} is a model for {task}, {source} one for {config['task']}: take one task.")
    ensemble = together(models).eval()
    cast(Any, ensemble).loaded_config = config
    return ensemble, config


def sorted_out(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that are none, and those that are settings (KEY=VALUE)."""
    told = [bool(re.match(r"[+~]?[A-Za-z_][\w.]*=", word)) and not os.path.exists(word) for word in words]
    return [w for w, is_it in zip(words, told) if not is_it], [w for w, is_it in zip(words, told) if is_it]


def set_for_prediction(config: dict[str, Any], overrides: Sequence[str]) -> None:
    """Put ``task.key=…`` of the command line into the config of a model that is to predict files.

    Raises:
        UserError: A setting that has no part in predicting, an unknown one, or a wrong value.
    """
    if not overrides:
        return
    plugin = registry.task(config["task"])
    parts: Sequence[str] = getattr(plugin, "predict_settings", ())
    for override in overrides:
        if not any(override.startswith(f"task.{part}.") for part in parts):
            known = " and ".join(f"task.{part}.KEY=VALUE" for part in parts) or "none at all"
            raise UserError(f"'{override}' has no part in predicting: of {config['task']} {known} can be set.")
    given = config["sections"].get("task") or {"name": config["task"]}
    composed = compose.compose(overrides, recipe=False, given={"task": given})["task"]
    find: Callable[[str, str], type[Any] | None] = getattr(plugin, "settings_class", lambda *_: None)
    if described := find("task", config["task"]):
        settings.parse(described, composed, "task")
    config["sections"] = {**config["sections"], "task": composed}


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

    No recipe has a part in it: recipes are for training. A ``data=`` that chooses the reader of the checkpoint changes
    nothing but what is said beside it; another one begins with its own defaults. Sections that are not in the
    checkpoint (``model.save`` knows none) are the model's own, else the composed ones.

    Raises:
        UserError: Any other override (attention, model and training are fixed in a checkpoint), or no data set at all.
    """
    for override in overrides:
        group = override.lstrip("+~").partition("=")[0].partition(".")[0]
        if group not in ("data", "task") or override.startswith("task="):
            raise UserError(f"'{override}' cannot change a checkpoint: only data=…, data.KEY=… and task.KEY=… can.")
    saved: dict[str, dict[str, Any]] = {k: dict(v) for k, v in config["sections"].items() if k in compose.GROUPS}
    choices = [value for key, _, value in (o.lstrip("+").partition("=") for o in overrides) if key == "data"]
    if not choices and "data" not in saved:
        raise UserError("the checkpoint does not say what data it is for: add data=NAME (and data.root=FOLDER).")
    own = {"task": {"name": config["task"]}}
    given = {"task": saved.get("task") or own["task"]}
    if not choices:
        given["data"] = saved["data"]
    elif "data" in saved:
        chosen = compose.compose([f"data={choices[-1]}"], recipe=False, given=own)["data"]
        if chosen["name"] == saved["data"].get("name"):
            # A file that is not named like its reader (celebamask) describes one data set: its classes are meant.
            told = {} if choices[-1] == chosen["name"] else {k: v for k, v in chosen.items() if v is not None}
            given["data"] = {**saved["data"], **{k: v for k, v in told.items() if k != "augment"}}
    composed = compose.compose(overrides, recipe=False, given=given)
    for group in ("attn", "model"):
        inside = config["model"].get(group)
        saved.setdefault(group, dict(inside) if isinstance(inside, Mapping) else composed[group])
    return {**saved, "data": composed["data"], "task": composed["task"]}
