"""A whole task plugin: count the dots in a small picture, with any mechanism of the context socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vlplatform import attention, settings
from vlplatform.errors import UserError
from vlplatform.hub import SaveMixin
from vlplatform.task import Exhibit, Loss, Score


@dataclass
class DotsSettings:
    """Settings of the data: how many pictures a split has."""

    count: int = 256


class Dots:
    """Picture i: i mod 4 dots at places drawn from a generator seeded with i."""

    def __init__(self, start: int, count: int) -> None:
        self.start, self.count = start, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        number = self.start + index
        generator = torch.Generator().manual_seed(number)
        image = torch.zeros(1, 16, 16)
        cells = torch.randperm(64, generator=generator)[: number % 4]
        image[0, cells // 8 * 2, cells % 8 * 2] = 1.0
        return {"id": f"dots-{number}", "image": image, "count": number % 4}


class Counter(SaveMixin, nn.Module):
    """Stem, attention over the map, mean, four classes. (B, 1, 16, 16) → (B, 4)."""

    task = "counting"

    def __init__(self, attn: Mapping[str, Any], channels: int = 16) -> None:
        super().__init__()
        self.saved: dict[str, Any] = {"attn": dict(attn), "channels": channels}
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.attention = attention.build(**{"dim": channels, "socket": "context", **attn})
        self.head = nn.Linear(channels, 4)

    def settings(self) -> dict[str, Any]:
        """What ``rebuild`` needs."""
        return self.saved

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, 4) of the count."""
        return self.head(self.attention(self.stem(images).relu()).sum((2, 3)) / 16)


class Counting:
    """The task: data, model, loss and score, as ``vlplatform.task.Task`` asks."""

    name = "counting"
    best_metric = "accuracy"
    stages = ("train",)

    def __init__(self, sections: Mapping[str, Mapping[str, Any]]) -> None:
        self.sections = {key: dict(value) for key, value in sections.items() if key != "trainer"}
        self.sections["model"] = {"name": "counter"}
        self.sections["data"] = {"name": "dots", "count": sections["data"].get("count", 256)}
        self.dots = settings.parse(DotsSettings, {"count": self.sections["data"]["count"]}, "data")
        attention.resolve(sections["attn"]["name"], "context")

    def enter(self, stage: str) -> None:
        """One stage: nothing to switch."""

    def records(self, split: str) -> Dots:
        """Training pictures, or later ones for validation."""
        starts = {"train": 0, "val": 10_000}
        if split not in starts:
            raise UserError(f"the split {split} does not exist: choose train or val.")
        return Dots(starts[split], self.dots.count)

    def collate(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Stacked pictures and counts."""
        return {
            "ids": [record["id"] for record in records],
            "image": torch.stack([record["image"] for record in records]),
            "count": torch.tensor([record["count"] for record in records]),
        }

    def build_model(self, *, pretrained: bool = True) -> nn.Module:
        """A fresh model."""
        return Counter(self.sections["attn"])

    def parameter_groups(self, model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
        """One group."""
        return [{"name": "all", "params": list(model.parameters()), "lr": learning_rate, "weight_decay": weight_decay}]

    def loss(self, model: nn.Module, batch: Mapping[str, Any]) -> Loss:
        """Summed cross-entropy, and the number of pictures."""
        total = F.cross_entropy(model(batch["image"]), batch["count"], reduction="sum")
        return Loss(total, torch.tensor(float(len(batch["count"]))))

    def predict(self, model: nn.Module, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Per picture: is the count right?"""
        right = model(batch["image"]).argmax(1) == batch["count"]
        return [{"id": id, "right": bool(r)} for id, r in zip(batch["ids"], right.tolist())]

    def score(self, predictions: Sequence[Mapping[str, Any]]) -> Score:
        """Accuracy."""
        return Score({"accuracy": sum(p["right"] for p in predictions) / len(predictions)})

    def show(self, model: nn.Module, split: str, count: int) -> list[Exhibit]:
        """No pictures in this small example."""
        return []

    def attention_exhibits(self, model: nn.Module, split: str) -> list[Exhibit]:
        """No pictures in this small example."""
        return []

    def describe(self) -> dict[str, Any]:
        """Facts for the report."""
        return {"data": {"name": "dots"}, "licence": "made by the example"}


class Plugin:
    """What the entry point names."""

    name = "counting"
    summary = "count dots (the example of docs/plugins.md)"

    def models(self) -> dict[str, str]:
        """One model."""
        return {"counter": "stem, context attention, mean, linear"}

    def data_sets(self) -> dict[str, str]:
        """One data set."""
        return {"dots": "0 to 3 dots on a 16 x 16 picture"}

    def metrics(self) -> dict[str, str]:
        """One score."""
        return {"accuracy": "share of pictures counted right"}

    def build(self, sections: Mapping[str, Mapping[str, Any]]) -> Counting:
        """The task from its sections."""
        return Counting(sections)

    def rebuild(self, model_settings: Mapping[str, Any]) -> nn.Module:
        """The model from what ``Counter.settings`` returned."""
        return Counter(**model_settings)

    def predict_files(self, model: nn.Module, inputs: Sequence[Path], out: Path, device: torch.device) -> list[Path]:
        """This example predicts no files."""
        raise UserError("the task counting predicts no files: use vlp eval.")


plugin = Plugin()
