"""Models into folders: ``model.save(folder)`` and the function behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vlplatform import __version__
from vlplatform.errors import UserError
from vlplatform.hub.atomic import written_aside
from vlplatform.hub.card import model_card
from vlplatform.hub.export import CARD, CONFIG, FILES, FORMAT, FORMAT_VERSION, WEIGHTS, first_names, sha256_of


class Rebuildable(Protocol):
    """A model that knows from which settings its task can make it again."""

    def settings(self) -> dict[str, Any]:
        """JSON-ready settings, enough for the task plugin's ``rebuild``."""
        ...


class SaveMixin:
    """Gives an ``nn.Module`` that has ``task`` and ``settings()`` the method ``save``."""

    task: str

    def save(self, folder: str | Path, card: Mapping[str, Any] | None = None) -> Path:
        """Save as :func:`save_model` does, and return the folder; load again with ``vlplatform.load(folder)``."""
        return save_model(cast(nn.Module, self), Path(folder), task=self.task, card=card or {})


def save_model(
    model: nn.Module,
    folder: Path,
    *,
    task: str,
    sections: Mapping[str, Any] = {},
    card: Mapping[str, Any] = {},
) -> Path:
    """Save a model as ``config.json``, ``model.safetensors`` and ``README.md`` in ``folder``, and return the folder.

    The files are written aside, synced and renamed: at any moment ``folder`` holds the old model, the new one, or
    nothing. Tensors that share memory (tied weights) are stored once.

    Args:
        model: A module with ``settings()``.
        folder: Made where it is missing; an earlier export in it is replaced.
        task: Name of the task plugin that can rebuild the model.
        sections: The composed sections (task, attn, model, data …) it was trained under, JSON-ready.
        card: For the model card: ``scores`` (name → number, or table → row → number), ``data`` (mapping),
            ``licence``, ``citation`` (list of texts), ``settings`` (mapping), ``budget`` (text or mapping),
            ``initial_weights`` (text: where weights came from that were not trained here, and their licence).

    Raises:
        UserError: ``folder`` is a file, or holds files that are not an export's (they would be lost).
        TypeError, ValueError: Settings or sections that JSON cannot hold.
    """
    folder = folder.expanduser().resolve()
    _refuse_to_overwrite(folder)
    settings = cast(Rebuildable, model).settings()
    config: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        FORMAT: __version__,
        "task": task,
        "model": settings,
        "sections": dict(sections),
    }
    json.dumps(config, allow_nan=False)  # what JSON cannot hold stops here, before anything is written
    text = model_card(task=task, card={"settings": settings, **card})
    with written_aside(folder) as aside:
        save_file(_tensors(model), aside / WEIGHTS, metadata={"format": "pt"})
        config["sha256"] = sha256_of(aside / WEIGHTS)
        (aside / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        (aside / CARD).write_text(text, encoding="utf-8")
    return folder


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state by name, each tensor contiguous, on the CPU and in memory of its own; tied ones once."""
    state, first = model.state_dict(), first_names(model)
    return {n: t.cpu().clone(memory_format=torch.contiguous_format) for n, t in state.items() if first[n] == n}


def _refuse_to_overwrite(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder to save the model in.")
    others = sorted(p.name for p in folder.iterdir() if p.name not in FILES) if folder.exists() else []
    if others:
        raise UserError(f"{folder} holds '{others[0]}', no part of a model, which saving would delete: name another.")
