"""The plugin behind the entry point ``segmentation``: from settings to the task, from saved settings to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vlp_segmentation.models import MODELS, Labels, SegmentationModel
from vlp_segmentation.readers import DATA_SETS, READERS, open_data
from vlp_segmentation.task import SegmentationSettings, SegmentationTask
from vlplatform import attention
from vlplatform import settings as typed
from vlplatform.errors import UserError, nearest
from vlplatform.metrics.segmentation import METRICS
from vlplatform.task import Task
from vlplatform.wrapped import bare


class SegmentationPlugin:
    """Semantic segmentation: a label for every pixel."""

    name = "segmentation"
    predict_settings = ("test",)
    summary = "a class for every pixel: street scenes, rooms, faces, your own"
    auto_attns = ("bilateral",)

    def models(self) -> dict[str, str]:
        """Model name → one-line summary."""
        return {name: model.summary for name, model in MODELS.items()}

    def data_sets(self) -> dict[str, str]:
        """Reader name → one-line summary."""
        return dict(DATA_SETS)

    def metrics(self) -> dict[str, str]:
        """Score name → one-line summary."""
        return dict(METRICS)

    def build(self, sections: Mapping[str, Mapping[str, Any]]) -> Task:
        """The task for the sections ``task``, ``attn``, ``model`` and ``data``; ``task.sections`` has them resolved.

        Raises:
            UserError: An unknown name or setting, a mechanism that does not fit the model, or faulty data.
        """
        task_settings = typed.parse(SegmentationSettings, sections["task"], "task")
        attn = dict(sections["attn"])
        if attn.get("name") == "auto":
            attn["name"] = self.auto_attns[0]
        model_class = _choose(sections["model"].get("name", "auto"), attn)
        values = {key: value for key, value in sections["model"].items() if key != "name"}
        model_settings = typed.parse(model_class.Settings, values, "model")
        check_attn(model_class, attn)
        data_values = {key: value for key, value in sections["data"].items() if key != "name"}
        data = open_data(sections["data"]["name"], data_values)
        attn["name"] = attention.resolve(attn["name"], model_class.socket).name
        resolved = {
            "task": typed.as_dict(task_settings),
            "attn": attn,
            "model": {"name": model_class.name, **typed.as_dict(model_settings)},
            "data": dict(sections["data"]),
        }
        return SegmentationTask(resolved, task_settings, data, model_class, model_settings)

    def settings_class(self, group: str, name: str) -> type[Any] | None:
        """The settings dataclass behind a choice of ``task``, ``model`` or ``data``; None where there is none."""
        if group == "task":
            return SegmentationSettings
        if group == "model":
            return MODELS[name].Settings if name in MODELS else None
        return READERS[name].Settings if name in READERS else None

    def rebuild(self, model_settings: Mapping[str, Any]) -> SegmentationModel:
        """The model from what its ``settings()`` returned.

        Raises:
            UserError: Settings of another kind or version.
        """
        try:
            values = dict(model_settings["model"])
            model_class = MODELS[values.pop("name")]
            names = tuple(map(str, model_settings["classes"]))
            palette = tuple((int(r), int(g), int(b)) for r, g, b in model_settings["palette"])
            attn = dict(model_settings["attn"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"the saved settings are no segmentation model's ({error!r}): check config.json."
            ) from error
        return model_class(Labels(names, palette), attn, typed.parse(model_class.Settings, values, "model"))

    def predict_files(self, model: nn.Module, inputs: Sequence[Path], out: Path, device: torch.device) -> list[Path]:
        """Per input NAME.labels.png (class ids in the classes' colours) and NAME.overlay.png with a legend."""
        from vlp_segmentation.predict import predict_files

        return predict_files(bare(model, SegmentationModel), inputs, out, device)


def check_attn(model_class: type[SegmentationModel], attn: Mapping[str, Any]) -> None:
    """Check a mechanism and its settings against a model's socket before anything is built.

    Raises:
        UserError: It does not fit, or a setting is unknown, of the wrong type, or the model's own business.
    """
    try:
        mechanism = attention.resolve(attn["name"], model_class.socket)
    except UserError as error:
        if others := _fitting(attn["name"]):
            ways = ", ".join(f"model={name}" for name in others)
            raise UserError(f"{str(error).rstrip('.')}; with this mechanism use {ways}, or model=auto.") from error
        raise
    values = {key: value for key, value in attn.items() if key != "name"}
    if "out_dim" in values:
        raise UserError(f"attn.out_dim is set by model={model_class.name}: leave it out.")
    typed.parse(mechanism.settings_class(), values, "attn")


def _fitting(attn: str) -> list[str]:
    """The models with a socket that the mechanism fits."""
    found: list[str] = []
    for name, model_class in MODELS.items():
        with suppress(UserError):
            attention.resolve(attn, model_class.socket)
            found.append(name)
    return found


def _choose(name: str, attn: Mapping[str, Any]) -> type[SegmentationModel]:
    """The model called ``name``; ``auto`` is deeplabv3plus for a local mechanism and context for a context one."""
    if name != "auto":
        if name not in MODELS:
            raise UserError(f"model={name} is not a segmentation model: {nearest(name, [*MODELS, 'auto'])}.")
        return MODELS[name]
    if "name" not in attn:
        raise UserError("attn.name is missing: choose a mechanism with attn=NAME.")
    try:
        attention.resolve(attn["name"], "local")
        return MODELS["deeplabv3plus"]
    except UserError:
        attention.resolve(attn["name"], "context")  # raises for a mechanism that fits neither
        return MODELS["context"]
