"""What a task is to the engine and the command line: the protocol every plugin implements.

The engine knows nothing of any task beyond this page. A plugin is one ``TaskPlugin`` object behind an entry
point of the group ``vlplatform.tasks``; it makes a ``Task`` from composed settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn


@dataclass
class Loss:
    """A summed loss and the number it is to be divided by.

    The engine divides by the count over the whole global batch (all processes, all accumulated parts), so
    that a batch split in any way gives the gradients of the whole one.

    Attributes:
        total: Sum over the batch's units (pixels, words), a scalar with gradient.
        count: Number of units, a scalar without gradient.
        parts: Named sums to log beside the loss, divided by the same count.
    """

    total: Tensor
    count: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """The scores of a split: numbers by name, and tables for people.

    Attributes:
        values: Name → number (``{"miou": 0.81, "pixel_accuracy": 0.95}``), NaN where undefined.
        per_class: Table name → row name → number (``{"iou": {"road": 0.9, …}}``).
        notes: What a reader of the numbers must know: what they depend on, which are not there and why.
        files: Name → JSON-ready value, what ``vlp eval --out`` writes beside its scores as NAME.KIND.json.
        late: Scores that other programs still compute, and ``values`` lacks; None: these are all.
    """

    values: dict[str, float]
    per_class: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: dict[str, Any] = field(default_factory=dict)
    late: Late | None = None


@dataclass(frozen=True)
class Late:
    """Scores that take long and are computed by other programs meanwhile; the task's ``best_metric`` is never one.

    A training goes on with its next updates. A checkpoint keeps the predictions that they belong to, which must be
    JSON-ready therefore, and a continued run gives them to ``score`` again.

    Attributes:
        names: What they are called.
        scores: Waits for them, and gives all scores of the evaluation, these among them.
        stop: Ends the programs without their scores.
    """

    names: tuple[str, ...]
    scores: Callable[[], Score]
    stop: Callable[[], None]


@dataclass(frozen=True)
class Exhibit:
    """One sample prediction for the report.

    Attributes:
        id: The record's id.
        images: Caption → uint8 RGB picture (H, W, 3), shown side by side (input, truth, prediction).
        text: A line below them.
        legend: What the colours in the pictures mean, name → RGB, in the order to be shown.
        note: What pictures of this kind show and do not show; stands once above all attention with the same note, in
            place of what is said of maps over one query pixel.
        heat: The attention is drawn from least to most, and the scale of these colours belongs to it.
    """

    id: str
    images: dict[str, Any]
    text: str = ""
    legend: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    note: str = ""
    heat: bool = True


class Records(Protocol):
    """A split's records: ``len``, and ``[i]`` → a mapping with a text ``id``; items are made on demand.

    A random choice inside ``[i]`` (augmentation) uses torch's global generator alone: the loader seeds it
    from (seed, epoch, i), so a record looks the same whatever process or worker makes it.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Mapping[str, Any]: ...


class Task(Protocol):
    """One configured task: what the engine trains, evaluates, and shows.

    A task that also has ``reached(passes)`` is told before every update how many passes over the training records, of
    all stages and with their fraction, lie behind; a continued run tells the same. One with
    ``before_training(trainer)`` gets the trainer's settings before anything is written: it refuses what cannot be
    trained (:class:`UserError`) and returns sentences that the user must know. One with ``shown``, names of parts of
    its losses, has these beside the loss in the line of progress; ``predict_hint`` is what may stand behind
    ``vlp predict RUN``. One with ``use(model)`` is told before ``vlp eval`` which model it is going to serve: one whose
    records depend on what that model has learnt (its words) then makes them so.
    """

    name: str
    best_metric: str
    """The score that selects the best checkpoint; higher is better unless it starts with ``-``."""
    stages: tuple[str, ...]
    """Names of the training stages in order (captioning: cross-entropy, then self-critical); most have one."""
    sections: dict[str, dict[str, Any]]
    """The sections it was built from (task, attn, model, data), every ``auto`` replaced by what it became."""

    def enter(self, stage: str) -> None:
        """Switch to a stage: ``loss`` means that stage's loss from here on."""
        ...

    def records(self, split: str) -> Records:
        """The records of ``train`` (augmented), ``val`` or ``test``. Raises :class:`UserError` if it has none."""
        ...

    def collate(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A batch: tensors to be moved to the device, and ``ids``, the list of the records' ids."""
        ...

    def build_model(self, *, pretrained: bool = True) -> nn.Module:
        """A fresh model; with ``pretrained=False`` no weight file is looked for (a checkpoint will fill it).

        The model carries ``settings()``, a JSON-ready dict from which the plugin's ``rebuild`` makes it again.
        """
        ...

    def parameter_groups(self, model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
        """The optimiser's groups: each with ``params``, ``lr`` and ``weight_decay``, and a text ``name``."""
        ...

    def loss(self, model: nn.Module, batch: Mapping[str, Any]) -> Loss:
        """The training loss of a batch."""
        ...

    def predict(self, model: nn.Module, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Per record of an evaluation batch: ``id`` and whatever ``score`` needs, as small CPU tensors or JSON."""
        ...

    def score(self, predictions: Sequence[Mapping[str, Any]]) -> Score:
        """The scores from the predictions of all records of a split (each id once, any order)."""
        ...

    def show(self, model: nn.Module, split: str, count: int) -> list[Exhibit]:
        """``count`` sample predictions of a split, chosen without chance, for the report."""
        ...

    def attention_exhibits(self, model: nn.Module, split: str) -> list[Exhibit]:
        """Pictures of the model's attention on a record or two; empty where the model has none."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts for model cards: ``data`` (mapping with ``name``), ``licence``, ``citation`` (list of texts), more.

        ``initial_weights`` says in a sentence where weights came from that were not trained here, and their licence; it
        follows from the settings alone, so that a resumed run says the same.
        """
        ...


class TaskPlugin(Protocol):
    """What the entry point names: makes tasks from settings, models from saved settings, predictions from files.

    A plugin that also has ``settings_class(group, name)``, the dataclass behind a choice of task, model or data
    (or None), lets ``vlp list`` show those settings; one with ``auto_attns``, the mechanisms that ``attn=auto`` may
    become, lets their settings be found by their bare names; one with ``importers()`` takes part in ``vlp convert``;
    one with ``ensemble(models)``, a model that answers as the mean of several, lets ``--with`` add checkpoints in
    ``vlp eval`` and ``vlp predict``; ``predict_settings`` names the settings of the section ``task`` that
    ``predict_files`` finds in ``model.loaded_config["sections"]``, so that ``vlp predict`` takes task.KEY=VALUE; one
    with ``reads_text = True`` has ``predict_texts(model, inputs, out, device)`` in place of ``predict_files``, whose
    inputs are texts, paths of files, and ``-`` for standard input; none is the same as ``-``.
    """

    name: str
    summary: str

    def models(self) -> dict[str, str]:
        """Model name → one-line summary."""
        ...

    def data_sets(self) -> dict[str, str]:
        """Reader name → one-line summary."""
        ...

    def metrics(self) -> dict[str, str]:
        """Score name → one-line summary."""
        ...

    def build(self, sections: Mapping[str, Mapping[str, Any]]) -> Task:
        """The task for the composed sections ``task``, ``attn``, ``model`` and ``data`` (plain mappings).

        Every section is checked here, before any work. Raises :class:`UserError` naming key and remedy.
        """
        ...

    def rebuild(self, model_settings: Mapping[str, Any]) -> nn.Module:
        """A model from its saved settings, weights unset; nothing is downloaded."""
        ...

    def predict_files(self, model: nn.Module, inputs: Sequence[Path], out: Path, device: torch.device) -> list[Path]:
        """Predict each input file, write the results into ``out``, and return what was written."""
        ...
