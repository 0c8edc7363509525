"""Tiny tasks for the engine's tests: linear regression, with a batch norm, or with dropout, on made-up records."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlplatform.engine import Interrupted, TrainerSettings, train
from vlplatform.errors import UserError
from vlplatform.settings import as_dict
from vlplatform.task import Exhibit, Late, Loss, Score

FEATURES = 6


class Net(nn.Module):
    """(B, 6) → (B,); ``kind`` picks what lies between the layers; ``ballast`` makes checkpoints slow to write."""

    def __init__(self, kind: str = "plain", ballast: int = 0) -> None:
        super().__init__()
        self.kind = kind
        middle = {"plain": nn.Tanh(), "norm": nn.BatchNorm1d(8), "dropout": nn.Dropout(0.5)}[kind]
        self.layers = nn.Sequential(nn.Linear(FEATURES, 8), middle, nn.Linear(8, 1))
        self.register_buffer("ballast", torch.zeros(ballast))

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(-1)


class ToyRecords:
    """``size`` records; those for training carry noise drawn from the global generator, as an augmentation would."""

    def __init__(self, size: int, *, noisy: bool, bad: int | None = None) -> None:
        self.size, self.noisy, self.bad = size, noisy, bad

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        if index == self.bad:
            raise UserError(f"Record r{index} is truncated: replace it.")
        x = torch.sin(torch.arange(1, FEATURES + 1) * (index + 1.0))
        y = x.sum() + 0.5 * x[0] * x[1]
        if self.noisy:
            x = x + 0.1 * torch.randn(FEATURES)
        return {"id": f"r{index}", "x": x, "y": y, "weight": float(index % 3 != 0) + 1.0}


class ToyTask:
    name = "toy"
    best_metric = "-error"

    def __init__(
        self,
        kind: str = "plain",
        *,
        size: int = 21,
        ballast: int = 0,
        stages: tuple[str, ...] = ("main",),
        poison: str | None = None,
        bad: int | None = None,
        scores: Sequence[float] | None = None,
        pause: float = 0.0,
        val: int | None = 7,
        late: bool = False,
    ) -> None:
        self.kind, self.size, self.ballast, self.stages = kind, size, ballast, stages
        self.sections: dict[str, dict[str, Any]] = {}
        self.poison, self.bad, self.scores, self.pause = poison, bad, list(scores or ()), pause
        self.val, self.late, self.waited, self.stopped = val, late, 0, 0
        self.stage, self.seen, self.on_loss = stages[0], [], lambda: None

    def enter(self, stage: str) -> None:
        self.stage = stage

    def records(self, split: str) -> ToyRecords:
        if split != "train" and self.val is None:
            raise UserError("There is no val.txt: add it.")
        return ToyRecords(self.size if split == "train" else self.val or 0, noisy=split == "train", bad=self.bad)

    def collate(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        tensors = {key: torch.stack([torch.as_tensor(r[key]) for r in records]) for key in ("x", "y", "weight")}
        return {"ids": [r["id"] for r in records], **tensors}

    def build_model(self, *, pretrained: bool = True) -> Net:
        return Net(self.kind, self.ballast)

    def parameter_groups(self, model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
        return [{"params": list(model.parameters()), "lr": learning_rate, "weight_decay": weight_decay, "name": "all"}]

    def loss(self, model: nn.Module, batch: Mapping[str, Any]) -> Loss:
        self.seen.append(batch["ids"])
        self.on_loss()
        time.sleep(self.pause)
        squared = (model(batch["x"]) - batch["y"]) ** 2
        if self.poison in batch["ids"]:
            squared = squared * float("nan")
        if self.stage == "absolute":
            squared = squared.sqrt()
        total = (squared * batch["weight"]).sum()
        return Loss(total, batch["weight"].sum(), {"half": total.detach() / 2})

    def predict(self, model: nn.Module, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        errors = (model(batch["x"]) - batch["y"]).float().abs()
        return [{"id": name, "error": error.item()} for name, error in zip(batch["ids"], errors)]

    def score(self, predictions: Sequence[Mapping[str, Any]]) -> Score:
        errors = [p["error"] for p in predictions]
        error = self.scores.pop(0) if self.scores else sum(errors) / len(errors)
        score = Score({"error": error, "count": len(errors)}, {"error": {"all": error}})
        if not self.late:
            return score

        def wait() -> Score:
            self.waited += 1
            return replace(score, values={**score.values, "slow": max(errors)}, notes=("it was slow",))

        def stop() -> None:
            self.stopped += 1

        return replace(score, late=Late(("slow",), wait, stop))

    def show(self, model: nn.Module, split: str, count: int) -> list[Exhibit]:
        return []

    def attention_exhibits(self, model: nn.Module, split: str) -> list[Exhibit]:
        return []

    def describe(self) -> dict[str, Any]:
        return {}


def settings(**changes: Any) -> TrainerSettings:
    """Twelve updates over 21 records in batches of 4: epochs end inside batches; no tracker."""
    values: dict[str, Any] = {
        "steps": 12,
        "batch_size": 4,
        "learning_rate": 0.02,
        "eval_every": 5,
        "save_every": 3,
        "log_every": 1,
        "trackers": [],
        **changes,
    }
    return TrainerSettings(**values)


def fit(task: ToyTask, folder: Path, trainer: TrainerSettings, **how: Any) -> dict[str, Any]:
    resolved = {"task": {"name": "toy", "kind": task.kind}, "trainer": as_dict(trainer), "seed": 3}
    return train(task, trainer, folder, **{"resolved": resolved, "seed": 3, "resume": None, **how})


def same_run(a: Path, b: Path) -> None:
    """Assert that two runs wrote the same numbers and the same final state, bit for bit."""
    for name in ("metrics.jsonl", "metrics.json", "best/model.safetensors"):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    last = sorted((a / "checkpoints").iterdir())[-1].name
    files = sorted(path.name for path in (a / "checkpoints" / last).iterdir())
    for name in files:
        assert (a / "checkpoints" / last / name).read_bytes() == (b / "checkpoints" / last / name).read_bytes(), name


def run_alone(folder: str, changes: dict[str, Any], kind: str = "plain", ballast: int = 0, pause: float = 0.0) -> None:
    """A whole process's work: one run, continued if there is something to continue; its words go to ``said.txt``."""
    torch.set_num_threads(1)
    Path(folder).mkdir(exist_ok=True)
    with Path(folder, f"said-{os.environ.get('RANK', '0')}.txt").open("a") as said, redirect_stdout(said):
        try:
            fit(ToyTask(kind, ballast=ballast, pause=pause), Path(folder), settings(**changes), resume="auto")
        except Interrupted as stop:
            print(stop)
            raise SystemExit(stop.exit_code) from None


def run_as_rank(rank: int, world: dict[str, str], arguments: dict[str, Any]) -> None:
    """The same as one of several processes."""
    os.environ.update(world, RANK=str(rank), LOCAL_RANK=str(rank), ACCELERATE_USE_CPU="true")
    run_alone(**arguments)


def children() -> Any:
    """A multiprocessing context whose processes begin with everything imported, and nothing run."""
    context = multiprocessing.get_context("forkserver")
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    context.set_forkserver_preload(["toy_task", "vlplatform.engine.loop", "vlplatform.engine.report"])
    return context


if __name__ == "__main__":
    run_alone(**json.loads(sys.argv[1]))
