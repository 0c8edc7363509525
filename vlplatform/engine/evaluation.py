"""Evaluation: per-record predictions, gathered from all processes by id, scored once."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import nn

from vlplatform.data.loader import evaluation_batches
from vlplatform.engine.late import LateScores
from vlplatform.engine.processes import gather, on_main, this_device
from vlplatform.engine.progress import Display
from vlplatform.engine.settings import Precision
from vlplatform.errors import UserError
from vlplatform.task import Score, Task

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def evaluate(
    task: Task,
    model: nn.Module,
    split: str,
    *,
    batch_size: int,
    workers: int,
    precision: Precision = "fp32",
    beside: tuple[LateScores, str, int] | None = None,
    display: Display | None = None,
) -> Score:
    """The scores of ``model`` on a split, the same for any number of processes, which may get uneven shares.

    The model is moved to this process's device and left in the mode (training or not) it was in.

    Args:
        task: The task.
        model: The bare model, not wrapped for several processes.
        split: ``val``, ``test`` or ``train``.
        batch_size: Records per batch of one process.
        workers: Loader processes per process.
        precision: Arithmetic of the forward pass.
        beside: Where to keep scores that take long, with kind and update of this evaluation; None: they are waited for.
        display: Shows how many of this process's records are done.

    Raises:
        UserError: The split is empty or has a bad record.
    """
    device, rank, world = this_device()
    records = task.records(split)
    if not len(records):
        raise UserError(f"The split {split} of {task.name} holds no records: check the data set's folder.")
    mine = range(rank, len(records), world)
    predictions: list[tuple[int, dict[str, Any]]] = []
    model.to(device)
    training = model.training
    model.eval()
    if display is not None:
        display.start(len(mine), 0)
    autocast = torch.autocast(device.type, DTYPES[precision], enabled=precision != "fp32")
    with torch.no_grad(), autocast:
        for indices, batch in evaluation_batches(
            records, task.collate, mine, batch_size=batch_size, workers=workers, pin_memory=device.type == "cuda"
        ):
            predictions.extend(zip(indices, task.predict(model, send_to_device(batch, device)), strict=True))
            if display is not None:
                display.update(len(predictions), split)
    model.train(training)
    everything = sorted((pair for part in gather(predictions) for pair in part), key=lambda pair: pair[0])
    once = {prediction["id"]: prediction for _, prediction in everything}

    def score() -> Score:
        if beside is not None:
            late, kind, step = beside
            return late.take(task, kind, step, list(once.values()))
        found = task.score(list(once.values()))
        return found if found.late is None else found.late.scores()

    return on_main(score)
