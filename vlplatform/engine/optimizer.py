"""Optimisers by name, and their state as tensors by parameter name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from vlplatform.engine.settings import TrainerSettings


def build_optimizer(groups: list[dict[str, Any]], settings: TrainerSettings) -> Optimizer:
    """The optimiser of the settings over a task's parameter groups (each with its own ``lr`` and ``weight_decay``)."""
    s = settings
    if s.optimizer == "sgd":
        return SGD(groups, lr=s.learning_rate, momentum=s.momentum)
    kind = Adam if s.optimizer == "adam" else AdamW
    return kind(groups, lr=s.learning_rate, betas=s.betas, eps=s.eps)


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as ``"<parameter>/<name>"`` → tensor; its settings are the run's and not part of it."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}/{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if value is not None
    }


def load_optimizer_tensors(optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put back what :func:`optimizer_tensors` gave.

    Each tensor takes its parameter's layout in memory, so that the next update does the very same arithmetic.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    of: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        of.setdefault(name, {})[entry] = value
    state: dict[int, dict[str, Tensor]] = {}
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in enumerate(ordered):
        if entries := of.get(names[parameter]):
            state[index] = {key: _laid_out_like(parameter, value) for key, value in entries.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _laid_out_like(parameter: Tensor, value: Tensor) -> Tensor:
    if value.shape != parameter.shape:
        return value.clone()
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
