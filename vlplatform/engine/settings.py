"""Settings of the trainer: section ``trainer`` of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vlplatform.errors import UserError, nearest
from vlplatform.settings import parse

Precision = Literal["fp32", "bf16", "fp16"]

OF_THE_WHOLE_RUN = (
    "precision",
    "ema",
    "average",
    "compile",
    "channels_last",
    "sync_batchnorm",
    "find_unused_parameters",
    "deterministic",
    "keep",
    "trackers",
    "stages",
)
"""Settings that a stage cannot override."""


@dataclass(frozen=True)
class TrainerSettings:
    """How a task is trained. An *update* is one step of the optimiser; all lengths are counted in updates.

    Attributes:
        steps: Updates of the training (of each stage, unless ``stages`` says otherwise).
        batch_size: Samples of one part of an update over **all** processes together; an update sees
            ``batch_size × accumulate`` samples whatever the number of processes.
        accumulate: Parts whose gradients are summed before the optimiser steps.
        precision: Arithmetic of the forward pass: ``fp32``, or autocast to ``bf16`` or (GPU only) ``fp16``.
        workers: Loader processes per training process; 0 loads in the training process. Changes speed alone.
        optimizer: ``sgd`` (with ``momentum``), ``adam`` (L2 decay) or ``adamw`` (decoupled decay).
        learning_rate: Base rate at factor 1; a task may give some parameters a multiple of it.
        momentum: Of ``sgd``.
        betas: Of ``adam`` and ``adamw``.
        eps: Of ``adam`` and ``adamw``.
        weight_decay: Decay of the weights; a task exempts norms and biases.
        schedule: Course of the rate after the warm-up.
        power: Exponent of ``poly``.
        poly_reaches_min: Whether the last update uses ``min_lr`` exactly (mmengine), or the one after it would
            (the textbook's formula).
        min_lr: Rate below which no schedule goes; absolute.
        milestones: Updates at which ``step`` multiplies the rate by ``gamma``.
        gamma: See ``milestones``.
        warmup: Updates of the linear warm-up; the schedule runs over those that remain.
        warmup_start: Factor of the rate at the first update of the warm-up.
        clip_norm: Gradients are scaled down to this norm when theirs is greater; null: never.
        ema: Decay of the moving average of the weights, which is then what is evaluated and exported;
            after n updates the decay is at most (1 + n) / (10 + n). Null: none.
        average: Number of last regular checkpoints whose mean is evaluated at the end, and exported if best; 0: none.
        eval_every: Updates between evaluations on ``val``; 0: none, and the last weights are exported.
        eval_batch_size: Samples per process in evaluation; null: ``batch_size``.
        early_stop: Evaluations in a row without a better score after which a stage ends; null: never.
        save_every: Updates between checkpoints; the last update of a stage is always saved.
        keep: Number of last regular checkpoints kept.
        log_every: Updates between lines of ``metrics.jsonl``.
        trackers: Where scores go besides ``metrics.jsonl``.
        compile: Whether the model runs through ``torch.compile``.
        channels_last: Whether 4-D weights and batches are laid out channels last.
        sync_batchnorm: Whether batch norms use the statistics of all processes (GPUs; on CPU they cannot).
        find_unused_parameters: For several processes and a loss that leaves some parameters out.
        deterministic: Whether only deterministic algorithms are allowed (slower on GPUs).
        stages: Stage name → settings that differ in it (``stages.self_critical.learning_rate``).

    Raises:
        ValueError: A number is out of its range; one sentence without a full stop.
    """

    steps: int = 1000
    batch_size: int = 8
    accumulate: int = 1
    precision: Precision = "fp32"
    workers: int = 0

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-4

    schedule: Literal["poly", "cosine", "step", "inverse_sqrt", "constant"] = "poly"
    power: float = 0.9
    poly_reaches_min: bool = False
    min_lr: float = 0.0
    milestones: list[int] = field(default_factory=list)
    gamma: float = 0.1
    warmup: int = 0
    warmup_start: float = 0.0

    clip_norm: float | None = None
    ema: float | None = None
    average: int = 0

    eval_every: int = 100
    eval_batch_size: int | None = None
    early_stop: int | None = None
    save_every: int = 100
    keep: int = 2

    log_every: int = 10
    trackers: list[Literal["tensorboard", "wandb"]] = field(default_factory=lambda: ["tensorboard"])

    compile: bool = False
    channels_last: bool = False
    sync_batchnorm: bool = True
    find_unused_parameters: bool = False
    deterministic: bool = False

    stages: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate", "save_every", "keep", "log_every"):
            _demand(getattr(self, name) >= 1, f"{name}={getattr(self, name)} must be at least 1")
        for name in ("workers", "warmup", "average", "eval_every", "weight_decay", "min_lr", "power"):
            _demand(getattr(self, name) >= 0, f"{name}={getattr(self, name)} must not be negative")
        for name in ("eval_batch_size", "early_stop"):
            value = getattr(self, name)
            _demand(value is None or value >= 1, f"{name}={value} must be at least 1, or null")
        for name in ("learning_rate", "gamma", "eps"):
            _demand(getattr(self, name) > 0, f"{name}={getattr(self, name)} must be greater than 0")
        for name, value in (("momentum", self.momentum), *(("betas", beta) for beta in self.betas)):
            _demand(0 <= value < 1, f"{name}={value} must be at least 0 and less than 1")
        _demand(self.clip_norm is None or self.clip_norm > 0, f"clip_norm={self.clip_norm} must be greater than 0")
        _demand(self.ema is None or 0 < self.ema < 1, f"ema={self.ema} must lie between 0 and 1, or be null")
        _demand(0 <= self.warmup_start <= 1, f"warmup_start={self.warmup_start} must lie between 0 and 1")
        _demand(self.min_lr <= self.learning_rate, f"min_lr={self.min_lr} is above learning_rate={self.learning_rate}")
        _demand(self.warmup < self.steps, f"warmup={self.warmup} leaves nothing of steps={self.steps}: lower it")
        rising = all(a < b for a, b in zip([0, *self.milestones], self.milestones))
        _demand(rising, f"milestones={self.milestones} must be rising and greater than 0")
        _demand(self.average <= self.keep, f"average={self.average} needs keep={self.average} or more, not {self.keep}")
        _demand(not (self.ema and self.average), "ema and average both average weights: switch one off")
        stops = self.early_stop is None or self.eval_every > 0
        _demand(stops, f"early_stop={self.early_stop} needs evaluations: set eval_every above 0")

    def for_stage(self, stage: str) -> TrainerSettings:
        """The settings of one stage: these, with ``stages[stage]`` over them.

        Raises:
            UserError: The stage overrides a setting of the whole run, an unknown one, or with a bad value.
        """
        changes = self.stages.get(stage, {})
        for name in changes:
            if name in OF_THE_WHOLE_RUN:
                raise UserError(f"trainer.stages.{stage}.{name} holds for the whole run: set trainer.{name} instead.")
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "stages"}
        return parse(TrainerSettings, {**values, **changes}, f"trainer.stages.{stage}" if changes else "trainer")

    def check_stages(self, stages: Sequence[str]) -> None:
        """Check every override against the task's ``stages``, before any work; raises :class:`UserError`."""
        for name in self.stages:
            if name not in stages:
                raise UserError(f"trainer.stages.{name} is not a stage of this task: {nearest(name, stages)}.")
        for name in stages:
            self.for_stage(name)


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
