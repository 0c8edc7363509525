"""The plugin behind the entry point ``attributes``: the attribute detector of captioners that read words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vlp_captioning.attributes.detector import AttributeDetector, DetectorSettings
from vlp_captioning.attributes.task import METRICS, AttributesSettings, AttributesTask
from vlp_captioning.plugin import check_vision
from vlp_captioning.readers import DATA_SETS, READERS, open_data
from vlplatform import settings as typed
from vlplatform.errors import UserError, nearest
from vlplatform.task import Task

ATTENTION = "none"
"""What the section ``attn`` of a detector is called."""


class AttributesPlugin:
    """Words for a picture, for captioners that read them."""

    name = "attributes"
    summary = "words for a picture, learnt from captions: for captioners that read attribute words (eta)"

    def models(self) -> dict[str, str]:
        """Model name → one-line summary."""
        return {AttributeDetector.name: AttributeDetector.summary}

    def data_sets(self) -> dict[str, str]:
        """Reader name → one-line summary."""
        return dict(DATA_SETS)

    def metrics(self) -> dict[str, str]:
        """Score name → one-line summary."""
        return dict(METRICS)

    def settings_class(self, group: str, name: str) -> type[Any] | None:
        """The settings dataclass behind a choice of ``task``, ``model`` or ``data``; None where there is none."""
        if group == "task":
            return AttributesSettings
        if group == "model":
            return DetectorSettings if name == AttributeDetector.name else None
        return READERS[name].Settings if name in READERS else None

    def build(self, sections: Mapping[str, Mapping[str, Any]]) -> Task:
        """The task for the sections ``task``, ``attn``, ``model`` and ``data``; ``task.sections`` has them resolved.

        Raises:
            UserError: An unknown name or setting, an attention mechanism, or faulty data.
        """
        task_settings = typed.parse(AttributesSettings, sections["task"], "task")
        attn = dict(sections["attn"])
        if attn not in ({"name": "auto"}, {"name": ATTENTION}):
            raise UserError(
                f"task=attributes has no attention, and attn.name={attn['name']} was asked for: leave it out."
            )
        name = sections["model"].get("name", "auto")
        if name not in ("auto", AttributeDetector.name):
            raise UserError(
                f"model={name} is no attribute detector: {nearest(name, ['auto', AttributeDetector.name])}."
            )
        values = {key: value for key, value in sections["model"].items() if key != "name"}
        model_settings = typed.parse(DetectorSettings, values, "model")
        data_values = {key: value for key, value in sections["data"].items() if key != "name"}
        data = open_data(sections["data"]["name"], data_values)
        model_settings = replace(model_settings, vision=check_vision(model_settings.vision, data))
        resolved = {
            "task": typed.as_dict(task_settings),
            "attn": {"name": ATTENTION},
            "model": {"name": AttributeDetector.name, **typed.as_dict(model_settings)},
            "data": dict(sections["data"]),
        }
        return AttributesTask(resolved, task_settings, data, model_settings)

    def rebuild(self, model_settings: Mapping[str, Any]) -> AttributeDetector:
        """The detector from what its ``settings()`` returned.

        Raises:
            UserError: Settings of another kind or version.
        """
        try:
            values = {key: value for key, value in model_settings["model"].items() if key != "name"}
            words, width, extractor = (model_settings[key] for key in ("words", "feature_dim", "extractor"))
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"the saved settings are no attribute detector's ({error!r}): check config.json."
            ) from error
        return AttributeDetector(words, width, typed.parse(DetectorSettings, values, "model"), extractor)

    def predict_files(self, model: nn.Module, inputs: Sequence[Path], out: Path, device: torch.device) -> list[Path]:
        """Words of pictures or feature files, printed, and written as ``attributes.json`` for ``data.attributes``."""
        from vlp_captioning.attributes.predict import predict_files

        assert isinstance(model, AttributeDetector)
        return predict_files(model, inputs, out, device)


plugin = AttributesPlugin()
