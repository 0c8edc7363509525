"""The engine: trains and evaluates any task on Accelerate, exactly resumable. Loads its parts when asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlplatform.engine.evaluation import evaluate as evaluate
    from vlplatform.engine.interrupt import Interrupted as Interrupted
    from vlplatform.engine.loop import Diverged as Diverged
    from vlplatform.engine.loop import train as train
    from vlplatform.engine.settings import TrainerSettings as TrainerSettings

__all__ = ["Diverged", "Interrupted", "TrainerSettings", "evaluate", "train"]

_HOMES = {
    "Diverged": "loop",
    "Interrupted": "interrupt",
    "TrainerSettings": "settings",
    "evaluate": "evaluation",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vlplatform.engine' has no attribute {name!r}")
    return getattr(importlib.import_module(f"vlplatform.engine.{_HOMES[name]}"), name)
