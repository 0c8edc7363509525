"""Where the numbers of a run go: JSON lines always, TensorBoard and Weights & Biases if asked for."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from vlplatform.engine.files import space_needed
from vlplatform.errors import UserError


class Tracker(Protocol):
    """One place that numbers go to."""

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Note ``values`` (numbers or text by name) of ``kind`` (``train``, ``val``) after update ``step``."""
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


class JsonLines:
    """A file with one JSON object per line; each line is handed to the system at once. NaN becomes null."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("ab")

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Append one line."""
        line = json.dumps(plain({"kind": kind, "step": step, **values}), ensure_ascii=False, allow_nan=False)
        with space_needed(self.path.parent):
            self.file.write(line.encode() + b"\n")
            self.file.flush()

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class TensorBoard:
    """Event files for TensorBoard; those after ``step`` are taken back when a run continues there."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add one scalar per number."""
        for name, value in values.items():
            if isinstance(value, (int, float)) and not math.isnan(value):
                self.writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Write out what is buffered."""
        self.writer.close()


class WeightsAndBiases:
    """A run at wandb.ai (or offline, as WANDB_MODE says), named after the run's folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self.run: Any = wandb.init(
            project="vlplatform", name=folder.name, id=folder.name, resume="allow", dir=folder, config=dict(settings)
        )
        self.last = 0

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Send the numbers; it takes no step back, so late scores stand where they came."""
        self.last = max(self.last, step)
        self.run.log({f"{kind}/{name}": value for name, value in values.items()}, step=self.last)

    def close(self) -> None:
        """Finish the run there."""
        self.run.finish()


def check_trackers(names: Sequence[str]) -> None:
    """Raise :class:`UserError` if a tracker asked for is not installed; nothing is written."""
    for name in names:
        module = {"tensorboard": "torch.utils.tensorboard.writer"}.get(name, name)
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UserError(f"trainer.trackers names {name}, which is not installed: pip install {name}.") from error


def build_trackers(names: Sequence[str], folder: Path, step: int, settings: Mapping[str, Any]) -> list[Tracker]:
    """The trackers asked for, beginning after update ``step``."""
    made: list[Tracker] = []
    for name in names:
        made.append(
            TensorBoard(folder / "tensorboard", step) if name == "tensorboard" else WeightsAndBiases(folder, settings)
        )
    return made


def plain(value: Any) -> Any:
    """``value`` with null for every NaN and infinity, as JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value
