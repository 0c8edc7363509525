"""One update: gradients of a whole global batch, however it is split, and the step of the optimiser."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from vlplatform.engine.interrupt import SignalWatch
from vlplatform.engine.processes import sum_over_processes
from vlplatform.task import Task


class Objective(nn.Module):
    """The task's loss as a module, so that the task sees the bare model and the processes a single forward pass."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The loss's ``total``, ``count`` and ``parts`` (scalars) of one process's batch."""
        loss = self.task.loss(self.model, batch)
        return loss.total, loss.count, loss.parts


@dataclass(frozen=True)
class Gradients:
    """What the backward passes of one update found.

    Attributes:
        loss: Mean loss over the global batch.
        parts: Its named parts, divided by the same count.
        norm: Norm of the whole gradient before clipping.
        ids: Ids of the records this process saw.
        stop: Greatest signal number that any process has received; 0: none.
    """

    loss: float
    parts: dict[str, float]
    norm: float
    ids: list[str] = field(default_factory=list)
    stop: int = 0


class Updater:
    """Makes updates of one model with one optimiser.

    Losses are sums. The gradient of part a is taken of ``total_a / C`` with C the first part's count over all
    processes (a number of the right size for half precision) and rescaled by ``C / ΣC`` before the step: so the
    update is that of the mean over the global batch, for any split into processes and parts.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        objective: nn.Module,
        optimizer: Optimizer,
        *,
        clip_norm: float | None = None,
        channels_last: bool = False,
    ) -> None:
        self.accelerator, self.objective, self.optimizer = accelerator, objective, optimizer
        self.clip_norm, self.channels_last = clip_norm, channels_last
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.wide = torch.float32 if accelerator.device.type == "mps" else torch.float64

    def gradients(self, batches: Iterator[Mapping[str, Any]], parts: int, signals: SignalWatch) -> Gradients:
        """Sum the gradients of the next ``parts`` batches, and agree on a stop; the optimiser has not stepped yet."""
        self.optimizer.zero_grad(set_to_none=True)
        ids: list[str] = []
        first = torch.ones((), dtype=self.wide, device=self.accelerator.device)
        sums = torch.zeros(())
        names: list[str] = []
        for part in range(parts):
            batch = next(batches)
            ids.extend(batch.get("ids", ()))
            last = part == parts - 1
            with nullcontext() if last else self.accelerator.no_sync(self.objective):
                total, count, extras = self.objective(self._placed(batch))
                count = count.detach().to(total.device, self.wide)  # a task may count on the CPU
                if part == 0:
                    first = sum_over_processes(count.clone())
                    first = torch.where(first > 0, first, torch.ones_like(first))
                    names = sorted(extras)
                scale = self.accelerator.num_processes / first  # processes: DDP takes their mean
                self.accelerator.backward(total * scale.to(total.dtype))
            found = [total, count, *(extras[name] for name in names)]
            found = torch.stack([value.detach().to(total.device, self.wide) for value in found])
            sums = found if part == 0 else sums + found
        stops = torch.zeros(self.accelerator.num_processes, dtype=self.wide, device=self.accelerator.device)
        stops[self.accelerator.process_index] = signals.received
        sums, stops = sum_over_processes(torch.cat([sums, stops])).split([len(sums), len(stops)])
        counted = torch.where(sums[1] > 0, sums[1], torch.ones_like(first))
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if parts > 1:
            torch._foreach_mul_(gradients, (first / counted).item())
        norm = get_total_norm(gradients)
        means = (sums / counted).tolist()
        return Gradients(means[0], dict(zip(names, means[2:])), norm.item(), ids, int(stops.max()))

    def step(self, found: Gradients) -> None:
        """Clip the gradients and let the optimiser step (fp16: or skip, where they overflowed)."""
        if self.clip_norm is not None and math.isfinite(found.norm):
            clip_grads_with_norm_(self.parameters, self.clip_norm, torch.tensor(found.norm))
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def diverged(self, found: Gradients) -> bool:
        """Whether the loss or the gradient is not finite, apart from an overflow that fp16's scaler will mend."""
        if not math.isfinite(found.loss):
            return True
        mendable = self.scaler is not None and self.scaler.get_scale() >= 1
        return not math.isfinite(found.norm) and not mendable

    @property
    def scaler(self) -> Any:
        """The gradient scaler of fp16; None in other precisions."""
        return self.accelerator.scaler

    def _placed(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        placed = send_to_device(batch, self.accelerator.device, non_blocking=True)
        if not self.channels_last:
            return placed
        return {key: _channels_last(value) for key, value in placed.items()}


def _channels_last(value: Any) -> Any:
    if isinstance(value, Tensor) and value.ndim == 4 and value.is_floating_point():
        return value.contiguous(memory_format=torch.channels_last)
    return value
