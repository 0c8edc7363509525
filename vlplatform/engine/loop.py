"""Training: the stages of a task, update by update, from nothing or from a checkpoint, to scores and a report."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.optim import Optimizer

from vlplatform import hub
from vlplatform.data.loader import train_batches
from vlplatform.data.sampler import StreamSampler, mix
from vlplatform.engine import schedule
from vlplatform.engine.checkpoint import (
    Checkpoint,
    checkpoints,
    load_checkpoint,
    prune_checkpoints,
    regular_checkpoints,
    save_checkpoint,
)
from vlplatform.engine.devices import accelerator_for, placed
from vlplatform.engine.ema import MovingAverage, mean_of_states
from vlplatform.engine.environment import environment
from vlplatform.engine.evaluation import evaluate
from vlplatform.engine.files import json_bytes, space_needed, write_whole
from vlplatform.engine.interrupt import Interrupted, SignalWatch
from vlplatform.engine.journal import Journal
from vlplatform.engine.late import LateScores
from vlplatform.engine.launch import start_missing_processes
from vlplatform.engine.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors
from vlplatform.engine.place import Place
from vlplatform.engine.processes import all_or_none, gather, on_main, share_buffers
from vlplatform.engine.progress import Display
from vlplatform.engine.randomness import (
    deterministic_algorithms,
    random_states,
    restore_random_states,
    seed_all,
)
from vlplatform.engine.run_folder import BEST, CHECKPOINTS, Opening, begin, plan_run
from vlplatform.engine.settings import TrainerSettings
from vlplatform.engine.trackers import check_trackers, plain
from vlplatform.engine.update import Gradients, Objective, Updater
from vlplatform.errors import UserError
from vlplatform.hub.export import CONFIG, WEIGHTS, read_config
from vlplatform.task import Score, Task

EXHIBITS = 6
"""Sample predictions in a report."""


class Diverged(UserError):
    """The loss or its gradient is not finite; nothing was spoilt, as the optimiser did not step."""


def train(
    task: Task,
    trainer: TrainerSettings,
    folder: Path,
    *,
    resolved: Mapping[str, Any],
    seed: int,
    resume: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train ``task`` into ``folder`` and return what its ``metrics.json`` holds.

    The folder gets ``settings.json``, ``environment.json``, ``metrics.jsonl`` (losses and scores: the same bytes for
    every repetition, interrupted or not), ``timings.jsonl``, ``checkpoints/``, ``best/`` (the exported model),
    ``metrics.json`` and ``report.html``. All processes of ``accelerate launch`` call this alike.

    Args:
        task: What to train.
        trainer: How.
        folder: The run's folder; made if missing.
        resolved: All settings of the run, JSON-ready, for the record and for comparing on resumption.
        seed: Seed of the weights, the order of the data, augmentation and dropout.
        resume: ``auto`` (newest whole checkpoint, else from the beginning), a checkpoint's path, or None.
        overwrite: Whether an earlier run in ``folder`` may be replaced.

    Raises:
        UserError: Settings, data or folder do not allow it, or the disk is full.
        Diverged: A loss or a gradient is not finite.
        Interrupted: SIGINT or SIGTERM came; the state is saved.
    """
    trainer.check_stages(task.stages)
    start_missing_processes()
    accelerator = accelerator_for(trainer)
    with (
        deterministic_algorithms(trainer.deterministic),
        SignalWatch() as signals,
        Display(shown=accelerator.is_main_process) as display,
    ):
        opening = on_main(lambda: plan_run(folder, resolved, resume=resume, overwrite=overwrite))
        for note in opening.notes:
            display.say(note)
        if opening.finished is not None:
            return opening.finished
        journal = Journal(display, accelerator.device, shown=getattr(task, "shown", ()))
        late = LateScores()
        try:
            return _Training(task, trainer, folder, resolved, seed, opening, accelerator, signals, journal, late).run()
        finally:
            late.stop()
            journal.close()


class _Training:
    """One call of :func:`train`: the model, its companions, and the place in the run."""

    def __init__(
        self,
        task: Task,
        settings: TrainerSettings,
        folder: Path,
        resolved: Mapping[str, Any],
        seed: int,
        opening: Opening,
        accelerator: Accelerator,
        signals: SignalWatch,
        journal: Journal,
        late: LateScores,
    ) -> None:
        self.task, self.settings, self.folder, self.resolved, self.seed = task, settings, folder, resolved, seed
        self.accelerator, self.signals, self.journal, self.say = accelerator, signals, journal, journal.display.say
        self.late = late
        all_or_none(self._check)
        stored = all_or_none(lambda: load_checkpoint(opening.checkpoint) if opening.checkpoint else None)
        self.stored = stored
        self.place = Place(**stored.state["place"]) if stored else Place()
        self.saved_step = self.place.step if stored else -1
        if not opening.best:
            self.place.forget_best()

        seed_all(seed)
        model = all_or_none(lambda: task.build_model(pretrained=stored is None))
        self.model = placed(model, settings, accelerator, self.say)
        if stored:
            self.model.load_state_dict(stored.tensors["model"])
        self.average = MovingAverage(self.model, settings.ema) if settings.ema else None
        if self.average and stored:
            self.average.model.load_state_dict(stored.tensors["ema"])
        if settings.compile:
            self.model.compile()
        self.objective = accelerator.prepare_model(Objective(task, self.model))

        on_main(lambda: self._begin(opening))  # only now: what was there is not given up for a start that fails

    def _check(self) -> None:
        """Try all that is needed later, before a file is touched; raises :class:`UserError`."""
        self._require("train", "training")
        if self.judged:
            self._require("val", "trainer.eval_every and trainer.average (0 switches each off)")
        check_trackers(self.settings.trackers)
        prepare: Callable[[TrainerSettings], Sequence[str]] = getattr(self.task, "before_training", lambda _: ())
        self.notices = prepare(self.settings)

    def _require(self, split: str, use: str) -> None:
        try:
            count = len(self.task.records(split))
        except UserError as error:
            if split in getattr(getattr(self.task, "data", None), "splits", ()):
                raise  # the split is there: what is wrong in it is to be mended, whatever it is used for
            raise UserError(f"The split {split} is needed for {use}: {error}") from error
        if not count:
            where = f"The split {split} of {self.task.name}, needed for {use},"
            raise UserError(f"{where} holds no records: check the data set's folder.")

    def _begin(self, opening: Opening) -> None:
        """Make the folder ready and open what is written all along."""
        begin(self.folder, self.resolved, opening)
        facts = environment(self.accelerator.device, self.accelerator.num_processes)
        write_whole(self.folder / "environment.json", json_bytes(facts))
        self.journal.open(self.folder, self.settings, self.resolved, self.place.step)

    @property
    def judged(self) -> bool:
        """Whether models are scored on ``val``, in any stage or at the end."""
        staged = any(self.settings.for_stage(stage).eval_every for stage in self.task.stages)
        return staged or self.settings.average > 0

    # ------------------------------------------------------------------------------------------------ the course

    def run(self) -> dict[str, Any]:
        """All stages that are left, then the end."""
        stages = self.task.stages
        total = sum(self.settings.for_stage(stage).steps for stage in stages)
        self._introduce(total)
        self.journal.display.start(total, self.place.step)
        while True:
            self._run_stage(stages[self.place.stage])
            if self.place.stage + 1 == len(stages):
                return self._finish()
            self.place.next_stage()

    def _run_stage(self, stage: str) -> None:
        """The updates of one stage that are left, with an optimiser and a schedule of its own."""
        s, place = self.settings.for_stage(stage), self.place
        self.task.enter(stage)
        optimizer = build_optimizer(self.task.parameter_groups(self.model, s.learning_rate, s.weight_decay), s)
        bases = [group["lr"] for group in optimizer.param_groups]
        updater = Updater(
            self.accelerator,
            self.objective,
            optimizer,
            clip_norm=s.clip_norm,
            channels_last=s.channels_last,
        )
        batches, size = self._stream(s)
        batches = self._measured(batches)
        self._restore(optimizer)
        self.model.train()
        named = stage if len(self.task.stages) > 1 else ""
        reached: Callable[[float], None] | None = getattr(self.task, "reached", None)
        while place.stage_step < s.steps and not (s.early_stop and place.waits >= s.early_stop):
            factor = schedule.factor(s, place.stage_step)
            for group, base in zip(optimizer.param_groups, bases):
                group["lr"] = base * factor
            rate = s.learning_rate * factor
            if reached is not None:
                reached(place.epoch + place.position / size)
            found = updater.gradients(batches, s.accumulate, self.signals)
            if updater.diverged(found):
                raise self._divergence(found, rate)
            updater.step(found)
            place.update_done(s.batch_size * s.accumulate, size)
            if self.average:
                self.average.update(self.model, place.step)

            last = place.stage_step == s.steps
            self.journal.update(place.step, found, rate, s.batch_size * s.accumulate, stage=named)
            if last or place.stage_step % s.log_every == 0:
                self.journal.numbers(place.step, self._numbers(found, size, rate))
            if s.eval_every and (last or place.stage_step % s.eval_every == 0):
                self._evaluate(s)
            if last or found.stop or place.stage_step % s.save_every == 0:
                regular = last or place.stage_step % s.save_every == 0
                self._save(optimizer, regular=regular)
            if found.stop:
                name, code = {2: ("Ctrl-C", 130)}.get(found.stop, ("SIGTERM", 143))
                raise Interrupted(
                    f"Stopped by {name} after update {place.step} and saved in {self.folder / CHECKPOINTS}: "
                    "continue with the same command and resume=auto.",
                    code,
                )
        if self.saved_step != place.step:  # after an early stop
            self._save(optimizer, regular=True)

    def _finish(self) -> dict[str, Any]:
        """Average if asked for, write the report, and last ``metrics.json``, which says that the run is finished."""
        place = self.place
        if self.settings.average:
            self._evaluate_mean_of_checkpoints()
        self._collect(at_the_end=True)
        if place.best is None:
            self._export(self._evaluated(), {})
        metrics = {
            "status": "finished",
            "task": self.task.name,
            "split": "val",
            "best_metric": self.task.best_metric,
            "best_step": place.best_step,
            **(place.scores or {"values": {}, "per_class": {}, "notes": []}),
            "step": place.step,
            "budget": place.budget(),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "seed": self.seed,
        }
        if initial := self.task.describe().get("initial_weights"):
            metrics["initial_weights"] = initial
        metrics = plain(metrics)
        self.journal.close()
        on_main(lambda: self._write_end(metrics))
        return metrics

    def _write_end(self, metrics: Mapping[str, Any]) -> None:
        from vlplatform.engine.report import write_report

        with space_needed(self.folder):
            model = self._evaluated()
            load_model(model, self.folder / BEST / WEIGHTS)
            model.eval()
            if self.place.late:
                self._save_best(model, self.place.scores["values"], self.place.scores["budget"])
            split = "val" if self.judged else "train"
            exhibits = self.task.show(model, split, EXHIBITS)
            write_report(self.folder, exhibits, self.task.attention_exhibits(model, split), metrics)
            write_whole(self.folder / "metrics.json", json_bytes(metrics))

    # ------------------------------------------------------------------------------------------------- the parts

    def _stream(self, s: TrainerSettings) -> tuple[Iterator[dict[str, Any]], int]:
        """The endless training batches from the current place on, and the number of records."""
        world = self.accelerator.num_processes
        records = self.task.records("train")
        if s.batch_size < world:
            raise UserError(f"trainer.batch_size={s.batch_size} cannot be shared by {world} processes: raise it.")
        if self.place.position >= len(records):
            raise UserError(
                f"The training split has {len(records)} records now, fewer than when this run was saved: "
                "restore the data, or begin another run with name=…."
            )
        sampler = StreamSampler(
            len(records),
            s.batch_size,
            seed=self.seed,
            epoch=self.place.epoch,
            position=self.place.position,
            rank=self.accelerator.process_index,
            world=world,
        )
        pinned = self.accelerator.device.type == "cuda"
        return train_batches(records, self.task.collate, sampler, workers=s.workers, pin_memory=pinned), len(records)

    def _measured(self, batches: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The batches of a stage; speed and time left are taken from the first on, as what prepares it comes once."""
        first = next(batches)
        self.journal.meter.pause()
        self.journal.display.measure(self.place.step)
        yield first
        yield from batches

    def _restore(self, optimizer: Optimizer) -> None:
        """Put back what the checkpoint has beyond the weights; else give each process random numbers of its own."""
        stored, self.stored = self.stored, None
        rank = self.accelerator.process_index
        if stored is None:
            if self.place.step == 0:
                seed_all(mix("training", self.seed, rank))
            return
        if pending := stored.state.get("late"):
            on_main(lambda: self.late.again(self.task, pending))
        load_optimizer_tensors(optimizer, self.model, stored.tensors.get("optimizer", {}))
        if self.accelerator.scaler is not None and stored.state["scaler"]:
            self.accelerator.scaler.load_state_dict(stored.state["scaler"])
        if f"random-{rank}" in stored.tensors:
            restore_random_states(stored.tensors[f"random-{rank}"])
        else:
            seed_all(mix("training", self.seed, rank, self.place.step))
        if stored.state["processes"] != self.accelerator.num_processes:
            self.say(
                f"The run had {stored.state['processes']} processes and has {self.accelerator.num_processes} now: "
                "the order of the data is kept, dropout and the like draw other numbers."
            )

    def _evaluated(self) -> nn.Module:
        """The model that is evaluated and exported: the moving average where there is one."""
        return self.average.model if self.average else self.model

    def _evaluate(self, s: TrainerSettings) -> None:
        """Score the model on ``val``, log it, and export it if it is the best so far."""
        model = self._evaluated()
        share_buffers(model)
        self._judge("eval", self._score("eval", model, s), model)

    def _evaluate_mean_of_checkpoints(self) -> None:
        """Score the mean of the last regular checkpoints, and export it if it is the best."""
        paths = on_main(lambda: regular_checkpoints(self.folder / CHECKPOINTS)[-self.settings.average :])
        mean = mean_of_states(load_checkpoint(path).tensors["model"] for path in paths)
        self.model.load_state_dict(mean)
        self._judge("average", self._score("average", self.model, self.settings), self.model)

    def _score(self, kind: str, model: nn.Module, s: TrainerSettings) -> Score:
        self._collect(at_the_end=kind == "average")
        return evaluate(
            self.task,
            model,
            "val",
            batch_size=s.eval_batch_size or s.batch_size,
            workers=s.workers,
            precision=s.precision,
            beside=(self.late, kind, self.place.step),
        )

    def _collect(self, *, at_the_end: bool) -> None:
        """Note the late scores of the evaluation before, if there are any."""
        found = on_main(self.late.collect)
        if found is None:
            return
        place = self.place
        if (found.kind, found.step) == (place.scores.get("model"), place.best_step):
            place.scores |= plain({"values": found.score.values, "notes": list(found.score.notes)})
            place.late = True
        self.journal.late(found, place.step, at_the_end=at_the_end)

    def _judge(self, kind: str, score: Score, model: nn.Module) -> None:
        """Note a score, and keep the model if no earlier one was better."""
        name = self.task.best_metric.removeprefix("-")
        if name not in score.values:
            raise KeyError(f"task {self.task.name} gives no score {name!r}, its best_metric")
        better = self.place.scored(score.values[name] * (-1 if self.task.best_metric.startswith("-") else 1))
        if better:
            found = {"values": score.values, "per_class": score.per_class, "notes": list(score.notes)}
            self.place.scores = plain({**found, "model": kind, "budget": self.place.budget()})
            self._export(model, score.values)
        self.journal.scores(kind, self.place.step, score.values, best=better, awaited=self.late.names)

    def _export(self, model: nn.Module, scores: Mapping[str, float]) -> None:
        """Write ``best/``, from which the model can be loaded anywhere."""
        self.place.best_sha256 = on_main(lambda: self._save_best(model, scores, self.place.budget()))

    def _save_best(self, model: nn.Module, scores: Mapping[str, float], budget: Mapping[str, int]) -> str:
        """The same by the main process; the SHA-256 of the weights."""
        described = self.task.describe()
        sections = {name: values for name, values in self.resolved.items() if isinstance(values, Mapping)}
        card = {
            "scores": dict(scores),
            "data": described.get("data", {}),
            "licence": described.get("licence"),
            "citation": described.get("citation", []),
            "initial_weights": described.get("initial_weights"),
            "budget": dict(budget),
        }
        with space_needed(self.folder):
            hub.save_model(model, self.folder / BEST, task=self.task.name, sections=sections, card=card)
        return read_config(self.folder / BEST / CONFIG)["sha256"]

    def _save(self, optimizer: Optimizer, *, regular: bool) -> None:
        """Write a checkpoint; the main process writes for all."""
        scaler = self.accelerator.scaler
        tensors: dict[str, Mapping[str, Tensor]] = {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(optimizer, self.model),
        }
        if self.average:
            tensors["ema"] = self.average.model.state_dict()
        tensors.update({f"random-{rank}": states for rank, states in enumerate(gather(random_states()))})
        state = {
            "step": self.place.step,
            "regular": regular,
            "place": asdict(self.place),
            "processes": self.accelerator.num_processes,
            "scaler": scaler.state_dict() if scaler is not None else None,
            "seed": self.seed,
        }

        def write() -> None:
            self.journal.sync()
            late = {"late": self.late.pending()}
            save_checkpoint(self.folder / CHECKPOINTS, Checkpoint(tensors, {**state, **late}, self.resolved))
            prune_checkpoints(self.folder / CHECKPOINTS, self.settings.keep)

        on_main(write)
        self.saved_step = self.place.step

    def _numbers(self, found: Gradients, size: int, rate: float) -> dict[str, Any]:
        """What ``metrics.jsonl`` says of an update."""
        place, stages = self.place, self.task.stages
        values: dict[str, Any] = {"stage": stages[place.stage]} if len(stages) > 1 else {}
        values |= {"epoch": place.epoch + place.position / size, "loss": found.loss, **found.parts}
        return values | {"lr": rate, "grad_norm": found.norm}

    def _divergence(self, found: Gradients, rate: float) -> Diverged:
        ids = [name for part in gather(found.ids) for name in part]
        named = ", ".join(map(str, ids))  # all of them: any one may be the culprit
        saved = on_main(lambda: checkpoints(self.folder / CHECKPOINTS))
        what = f"loss ({found.loss})" if not math.isfinite(found.loss) else f"gradient (norm {found.norm})"
        return Diverged(
            f"The {what} is not finite at update {self.place.step + 1} with learning rate {rate:.3g} "
            f"on the records {named}: lower trainer.learning_rate or look at these records; "
            f"last good checkpoint: {saved[-1] if saved else 'none'}."
        )

    def _introduce(self, total: int) -> None:
        """One line that says what runs on what."""
        s, accelerator = self.settings, self.accelerator
        count = sum(p.numel() for p in self.model.parameters())
        processes = f" × {accelerator.num_processes}" if accelerator.num_processes > 1 else ""
        batch = f"{s.batch_size}" + (f" × {s.accumulate}" if s.accumulate > 1 else "")
        device, threads, cores = accelerator.device.type, torch.get_num_threads(), os.cpu_count() or 1
        threading = f" ({threads} thread{'s' if threads > 1 else ''})" if device == "cpu" else ""
        self.say(
            f"{self.task.name} · {type(self.model).__name__} · {count / 1e6:.2f} M parameters · "
            f"{device}{processes}{threading} · {s.precision} · batch {batch} · {total} update{'s' * (total != 1)}"
        )
        for notice in self.notices:
            self.say(notice)
        if (
            device == "cpu"
            and threads * accelerator.num_processes < cores
            and "ACCELERATE_MIXED_PRECISION" in os.environ
        ):
            self.say(f"{cores} cores are there: accelerate launch --num_cpu_threads_per_process {cores} uses them all.")
