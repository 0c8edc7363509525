"""The plugin behind the entry point ``translation``: from settings to the task, from saved settings to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vlp_translation.ensemble import TranslatorEnsemble, members_of
from vlp_translation.models import MODELS, TransformerSettings, Translator, attentions
from vlp_translation.readers import DATA_SETS, READERS, open_data
from vlp_translation.task import OWN_METRICS, TranslationSettings, TranslationTask
from vlp_translation.texts import Texts
from vlplatform import settings as typed
from vlplatform.errors import UserError, nearest
from vlplatform.hub.importer import Importer
from vlplatform.metrics.translation import METRICS
from vlplatform.task import Task


class TranslationPlugin:
    """Machine translation: a sentence of one language in another."""

    name = "translation"
    summary = "a sentence of one language in another: text files, JSON lines, Multi30k, IWSLT14, WMT14"
    auto_attns = ("sa",)
    predict_settings = ("decode",)
    reads_text = True
    """``vlp predict`` takes sentences, files of them, and standard input."""

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
        """Whose checkpoints ``vlp convert`` can turn into translators."""
        from vlp_translation.convert import importers

        return importers()

    def build(self, sections: Mapping[str, Mapping[str, Any]]) -> Task:
        """The task for the sections ``task``, ``attn``, ``model`` and ``data``; ``task.sections`` has them resolved.

        Raises:
            UserError: An unknown name or setting, a mechanism that does not fit its side, or faulty data.
        """
        task_settings = typed.parse(TranslationSettings, sections["task"], "task")
        name = sections["model"].get("name", "auto")
        if name not in (*MODELS, "auto"):
            raise UserError(f"model={name} is no model of translation: {nearest(name, [*MODELS, 'auto'])}.")
        model_values = {key: value for key, value in sections["model"].items() if key != "name"}
        model_settings = typed.parse(TransformerSettings, model_values, "model")
        attn = dict(sections["attn"])
        if "name" not in attn:
            raise UserError("attn.name is missing: choose a mechanism with attn=NAME.")
        attn["name"] = "sa" if attn["name"] == "auto" else attn["name"]
        attentions.try_out(attn, model_settings)
        data_values = {key: value for key, value in sections["data"].items() if key != "name"}
        data = open_data(sections["data"]["name"], data_values)
        data.check([split for split in ("train", "val") if split in data.splits])
        resolved = {
            "task": typed.as_dict(task_settings),
            "attn": attn,
            "model": {"name": Translator.name, **typed.as_dict(model_settings)},
            "data": dict(sections["data"]),
        }
        return TranslationTask(resolved, task_settings, data, model_settings)

    def settings_class(self, group: str, name: str) -> type[Any] | None:
        """The settings dataclass behind a choice of ``task``, ``model`` or ``data``; None where there is none."""
        if group == "task":
            return TranslationSettings
        if group == "model":
            return TransformerSettings if name in MODELS else None
        return READERS[name].Settings if name in READERS else None

    def rebuild(self, model_settings: Mapping[str, Any]) -> Translator:
        """The model from what its ``settings()`` returned.

        Raises:
            UserError: Settings of another kind or version.
        """
        try:
            values = dict(model_settings["model"])
            MODELS[values.pop("name")]
            attn = dict(model_settings["attn"])
            texts = Texts.from_dict(model_settings["texts"])
            precision = getattr(torch, model_settings["dtype"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"the saved settings are no translator's ({error!r}): check config.json.") from error
        return Translator(texts, attn, typed.parse(TransformerSettings, values, "model")).to(precision)

    def ensemble(self, models: Sequence[nn.Module]) -> TranslatorEnsemble:
        """Several translators as one, by the mean of their probabilities.

        Raises:
            UserError: Other words than the first has.
        """
        return TranslatorEnsemble([members_of(model)[0] for model in models])

    def predict_texts(
        self, model: nn.Module, inputs: Sequence[str | Path], out: Path | None, device: torch.device
    ) -> list[Path]:
        """Translations of sentences, printed, and of files of sentences, as ``OUT/NAME.LANGUAGE``."""
        from vlp_translation.predict import predict_texts

        return predict_texts(model, inputs, out, device)


plugin = TranslationPlugin()
