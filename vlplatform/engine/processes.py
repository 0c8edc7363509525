"""A few words between the processes of a run; in a single process they cost nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from torch import Tensor, nn

from vlplatform.errors import UserError

T = TypeVar("T")


def on_cpu() -> bool:
    """Whether Accelerate is to be told ``cpu=True``: as its launcher was, or for ``torchrun`` without a GPU.

    In the second case Accelerate would otherwise let every process train alone.
    """
    if parse_flag_from_env("ACCELERATE_USE_CPU"):
        return True
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.cuda.is_available()


def this_device() -> tuple[torch.device, int, int]:
    """The device of this process, its rank, and the number of processes; joins the others at the first call."""
    state = PartialState(cpu=on_cpu())
    return state.device or torch.device("cpu"), state.process_index, state.num_processes


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def is_main() -> bool:
    """Whether this process is the one that writes files and talks to people."""
    return _alone() or dist.get_rank() == 0


def on_main(work: Callable[[], T]) -> T:
    """Do ``work`` in the main process alone and give its result, or its exception, to all.

    Nobody is left waiting when the work fails.
    """
    if _alone():
        return work()
    told: list[Any] = [None, None]
    if is_main():
        try:
            told[0] = work()
        except Exception as error:
            told[1] = error
    dist.broadcast_object_list(told, src=0)
    if told[1] is not None:
        raise told[1]
    return told[0]


def all_or_none(work: Callable[[], T]) -> T:
    """Do ``work``, which must not wait for other processes, in all; a :class:`UserError` of one is raised in all.

    So the main process can tell it, and nobody is left waiting.
    """
    if _alone():
        return work()
    result, error = None, None
    try:
        result = work()
    except UserError as raised:
        error = raised
    for raised in gather(error):
        if raised is not None:
            raise raised
    return cast(T, result)


def gather(value: T) -> list[T]:
    """Every process's ``value``, by rank, in all processes."""
    if _alone():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def sum_over_processes(values: Tensor) -> Tensor:
    """The elementwise sum of every process's ``values`` (any shape); ``values`` itself is overwritten."""
    if not _alone():
        dist.all_reduce(values)
    return values


def share_buffers(model: nn.Module) -> None:
    """Give all processes the main one's buffers (running statistics), so that they evaluate one model."""
    if not _alone():
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
