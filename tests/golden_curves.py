"""The first losses of a task on Scenes: what the stored curve of each task is compared with."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from vlplatform import registry
from vlplatform.cli import compose
from vlplatform.engine import TrainerSettings, train
from vlplatform.settings import parse


def losses(task: str, overrides: Sequence[str], folder: Path, steps: int) -> list[float]:
    """The losses of a fresh run of ``steps`` updates; of self-critical ones the rewards."""
    resolved = compose.compose([*overrides, f"trainer.steps={steps}"])
    built = registry.task(task).build({group: resolved[group] for group in compose.GROUPS})
    train(built, parse(TrainerSettings, resolved["trainer"], "trainer"), folder, resolved=resolved, seed=0)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line.get("reward", line["loss"]) for line in lines if line["kind"] == "train"]


def stored(path: Path, curve: Sequence[float]) -> list[float]:
    """The stored curve; ``VLP_RENEW_GOLDEN=1`` stores this one first."""
    if os.environ.get("VLP_RENEW_GOLDEN") == "1":
        path.write_text(json.dumps([round(loss, 6) for loss in curve]) + "\n")
    return json.loads(path.read_text())
