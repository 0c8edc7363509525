"""The optimiser's groups of models with or without a backbone of their own."""

from __future__ import annotations

from typing import Any

from torch import nn

from vlp_captioning.models.vision import Vision


def parameter_groups(
    model: nn.Module, eyes: Vision | None, learning_rate: float, weight_decay: float, ratio: float | None
) -> list[dict[str, Any]]:
    """Matrices with weight decay, vectors without; those of a backbone apart, at a learning rate of their own.

    Args:
        model: The whole model.
        eyes: The part of it that is the backbone; None: there is none.
        learning_rate: Of the rest.
        weight_decay: Of matrices.
        ratio: Learning rate of the backbone relative to the rest; None: 0.1 with pretrained weights, else 1.
    """
    if ratio is None:
        ratio = 0.1 if eyes is not None and eyes.settings.pretrained else 1.0
    in_backbone = {id(p) for p in eyes.parameters()} if eyes is not None else set[int]()
    groups: dict[str, dict[str, Any]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            decays, seeing = parameter.ndim > 1, id(parameter) in in_backbone
            name = ("backbone " if seeing else "") + ("weights" if decays else "vectors (no decay)")
            rate, decay = learning_rate * (ratio if seeing else 1.0), weight_decay if decays else 0.0
            made = {"name": name, "params": [], "lr": rate, "weight_decay": decay}
            groups.setdefault(name, made)["params"].append(parameter)
    return list(groups.values())
