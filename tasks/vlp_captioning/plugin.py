"""The plugin behind the entry point ``captioning``: from settings to the task, from saved settings to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vlp_captioning.models import MODELS, Captioner, Shape
from vlp_captioning.models.ensemble import EnsembleCaptioner
from vlp_captioning.models.vision import DEFAULT, VisionSettings
from vlp_captioning.readers import DATA_SETS, READERS, CaptionData, open_data
from vlp_captioning.task import OWN_METRICS, CaptioningSettings, CaptioningTask
from vlplatform import attention
from vlplatform import settings as typed
from vlplatform.errors import UserError, nearest
from vlplatform.hub.importer import Importer
from vlplatform.metrics.captions import METRICS
from vlplatform.task import Task
from vlplatform.text import Vocabulary
from vlplatform.wrapped import bare


class CaptioningPlugin:
    """Image captioning: a sentence for a picture."""

    name = "captioning"
    summary = "a sentence for a picture or a video: regions, grids, your own"
    auto_attns = ("sa", "mdsa", "ngsa", "acf2d", "eta")
    predict_settings = ("decode",)

    def models(self) -> dict[str, str]:
        """Model name → one-line summary."""
        return {name: model.summary for name, model in MODELS.items()}

    def data_sets(self) -> dict[str, str]:
        """Reader name → one-line summary."""
        return dict(DATA_SETS)

    def metrics(self) -> dict[str, str]:
        """Score name → one-line summary."""
        return {**METRICS, **OWN_METRICS}

    def importers(self) -> tuple[Importer, ...]:
        """Whose checkpoints ``vlp convert`` can turn into captioners."""
        from vlp_captioning.convert import importers

        return importers()

    def build(self, sections: Mapping[str, Mapping[str, Any]]) -> Task:
        """The task for the sections ``task``, ``attn``, ``model`` and ``data``; ``task.sections`` has them resolved.

        Raises:
            UserError: An unknown name or setting, a mechanism that does not fit the model, or faulty data.
        """
        task_settings = typed.parse(CaptioningSettings, sections["task"], "task")
        attn = dict(sections["attn"])
        model_class = _choose(sections["model"].get("name", "auto"), attn)
        values = {key: value for key, value in sections["model"].items() if key != "name"}
        model_settings = typed.parse(model_class.Settings, values, "model")
        attn["name"] = check_attn(model_class, attn)
        data_values = {key: value for key, value in sections["data"].items() if key != "name"}
        data = open_data(sections["data"]["name"], data_values)
        model_settings = replace(model_settings, vision=check_vision(model_settings.vision, data))
        _check_lengths(task_settings, model_settings.max_length)
        if task_settings.best.removeprefix("-").startswith("spatial") and not hasattr(data.visuals, "facts"):
            raise UserError(f"task.best={task_settings.best} is told on Scenes alone: choose another score.")
        resolved = {
            "task": typed.as_dict(task_settings),
            "attn": attn,
            "model": {"name": model_class.name, **typed.as_dict(model_settings)},
            "data": dict(sections["data"]),
        }
        return CaptioningTask(resolved, task_settings, data, model_class, model_settings)

    def settings_class(self, group: str, name: str) -> type[Any] | None:
        """The settings dataclass behind a choice of ``task``, ``model`` or ``data``; None where there is none."""
        if group == "task":
            return CaptioningSettings
        if group == "model":
            return MODELS[name].Settings if name in MODELS else None
        return READERS[name].Settings if name in READERS else None

    def rebuild(self, model_settings: Mapping[str, Any]) -> Captioner:
        """The model from what its ``settings()`` returned.

        Raises:
            UserError: Settings of another kind or version.
        """
        try:
            values = dict(model_settings["model"])
            model_class = MODELS[values.pop("name")]
            vocabulary = Vocabulary.from_dict(model_settings["vocabulary"])
            shape = typed.parse(Shape, model_settings["shape"], "shape")
            attn = dict(model_settings["attn"])
            precision = getattr(torch, model_settings["dtype"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"the saved settings are no captioner's ({error!r}): check config.json.") from error
        model = model_class(vocabulary, shape, attn, typed.parse(model_class.Settings, values, "model"))
        return model.to(precision)

    def ensemble(self, models: Sequence[nn.Module]) -> Captioner:
        """Several captioners as one, by the mean of their probabilities.

        Raises:
            UserError: Other words or other features than the first has.
        """
        return EnsembleCaptioner([bare(model, Captioner) for model in models])

    def predict_files(self, model: nn.Module, inputs: Sequence[Path], out: Path, device: torch.device) -> list[Path]:
        """Captions of pictures or feature files, printed, and written as ``captions.json``."""
        from vlp_captioning.predict import predict_files

        return predict_files(bare(model, Captioner), inputs, out, device)


def check_attn(model_class: type[Captioner], attn: Mapping[str, Any]) -> str:
    """The name of the mechanism, checked with its settings against a model's socket before anything is built.

    Raises:
        UserError: It does not fit, or a setting is unknown or of the wrong type.
    """
    name = attn["name"] if attn["name"] != "auto" else model_class.default_attn
    if model_class.fixed_attn:
        if name != model_class.default_attn or len(attn) > 1:
            raise UserError(
                f"model={model_class.name} is made of {model_class.default_attn} attention: leave attn away, or use "
                "model=transformer for another mechanism."
            )
        return name
    values = {key: value for key, value in attn.items() if key != "name"}
    try:
        heads = values.get("heads", 8)
        dim = 8 * heads if isinstance(heads, int) and heads > 0 else 64  # any that fits; what does not is told
        attention.build(name, dim=dim, socket=model_class.socket, **values)
    except UserError as error:
        if others := _fitting(name):
            ways = ", ".join(f"model={other}" for other in others)
            raise UserError(f"{str(error).rstrip('.')}; with this mechanism use {ways}, or model=auto.") from error
        raise
    return name


def _check_lengths(settings: CaptioningSettings, longest: int) -> None:
    """See before training that the model can write captions as long as decoding may make them.

    Raises:
        UserError: It cannot.
    """
    asked = {"decode": settings.decode.max_length}
    if "self_critical" in settings.stages:
        asked["self_critical"] = settings.self_critical.max_length
    for part, length in asked.items():
        if length > longest + 1:  # the end symbol is no word
            raise UserError(
                f"task.{part}.max_length={length} is more than model.max_length={longest} words and the end: lower it, "
                "or raise model.max_length."
            )


def check_vision(settings: VisionSettings, data: CaptionData) -> VisionSettings:
    """The settings with a backbone where the data give pixels, and only there.

    Raises:
        UserError: The settings and the data do not go together.
    """
    pixels = getattr(data.visuals, "pixels", False)
    if settings.backbone == "auto":
        return replace(settings, backbone=DEFAULT if pixels else "none")
    if pixels and not settings.sees:
        raise UserError(
            f"data={data.name} gives pixels and model.vision.backbone=none reads features: give data.features=PATH "
            "(Scenes: data.visual=regions), or choose a backbone."
        )
    if settings.sees and not pixels:
        raise UserError(
            f"data={data.name} gives features and model.vision.backbone={settings.backbone} sees pixels: leave out "
            "data.features (Scenes: data.visual=pixels), or take model.vision.backbone=none."
        )
    return settings


def _fitting(attn: str) -> list[str]:
    """The models with a socket that the mechanism fits."""
    found: list[str] = []
    for name, model_class in MODELS.items():
        if model_class.fixed_attn:
            continue
        with suppress(UserError):
            attention.resolve(attn, model_class.socket)
            found.append(name)
    return found


def _choose(name: str, attn: Mapping[str, Any]) -> type[Captioner]:
    """The model called ``name``; ``auto`` is eta for a mechanism over several memories, else the Transformer."""
    if name != "auto":
        if name not in MODELS:
            raise UserError(f"model={name} is not a captioner: {nearest(name, [*MODELS, 'auto'])}.")
        return MODELS[name]
    if "name" not in attn:
        raise UserError("attn.name is missing: choose a mechanism with attn=NAME.")
    return MODELS["eta" if attn["name"] != "auto" and _only_fuses(attn["name"]) else "transformer"]


def _only_fuses(attn: str) -> bool:
    """Whether the mechanism reads several memories and has no place over tokens."""
    with suppress(UserError):
        return "token" not in attention.resolve(attn, "fusion").sockets
    return False


plugin = CaptioningPlugin()
