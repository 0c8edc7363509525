"""Models in and out of folders and hubs, as three files: config.json, model.safetensors and README.md."""

from __future__ import annotations

from vlplatform.hub.loading import load
from vlplatform.hub.remote import pull, push
from vlplatform.hub.saving import SaveMixin, save_model

__all__ = ["SaveMixin", "load", "pull", "push", "save_model"]
