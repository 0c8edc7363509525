"""The frame for importers: checkpoints of others' code, read safely, become this library's models."""

from __future__ import annotations

import argparse
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vlplatform.errors import UserError

Weights = Mapping[str, Tensor]

_WRAPPERS = ("state_dict", "model", "model_state_dict", "net", "module")
"""Keys under which training code keeps the weights beside other things."""


class _Inert:
    """In the place of an object that no model needs: it keeps nothing of what the file says of it."""

    def __setstate__(self, state: object) -> None:
        """Leave it out."""


def _harmless() -> list[Any]:
    """What may stand in a file beside tensors: it holds names and numbers and runs nothing; no arrays of objects."""
    array, number = np.zeros(0).__reduce__()[0], np.float64(0).__reduce__()[0]
    named = [
        (function, f"numpy.{core}.multiarray.{name}")
        for function, name in ((array, "_reconstruct"), (number, "scalar"))
        for core in ("core", "_core")  # NumPy 1 and 2
    ]
    meters = [  # fairseq's trainers of 2018 and 2019 keep theirs beside the weights
        (_Inert, f"fairseq.{module}.{kind}Meter")
        for module in ("meters", "logging.meters")
        for kind in ("Average", "Time", "Stopwatch")
    ]
    numbers = {type(np.dtype(kind)) for kind in "?bBhHiIlLqQefd"}
    return [argparse.Namespace, np.ndarray, np.dtype, *numbers, *named, *meters]


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds of a model.

    Attributes:
        weights: Its tensors under the authors' names.
        args: The arguments it was trained with, where they lie beside the weights (fairseq's ``args``, or ``cfg.model``
            and what only ``cfg.task`` has); plain values by name, which an importer checks.
    """

    weights: dict[str, Tensor]
    args: Mapping[str, Any] = field(default_factory=dict)


def _nothing(_: nn.Module) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Importer:
    """How one code base's checkpoints become a model of ours.

    Attributes:
        name: As in ``vlp convert NAME FILE OUT``.
        summary: One line: model, repository, commit.
        Settings: Dataclass of what the weights cannot tell, given as ``key=value``.
        convert: The checkpoint and those settings → the model, with the weights in it.
        notes: The converted model → what its user must know.
    """

    name: str
    summary: str
    Settings: type[Any]
    convert: Callable[[Checkpoint, Any], nn.Module]
    notes: Callable[[nn.Module], Sequence[str]] = _nothing


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, see :func:`read_checkpoint`."""
    return read_checkpoint(path).weights


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint's tensors and arguments: safetensors, or PyTorch's format without its pickled objects.

    A state dict inside a mapping (``{"state_dict": …, "epoch": …}``) is found; the prefix ``module.`` of data-parallel
    training goes. Of objects only ``argparse.Namespace``, which is names and values, and NumPy's arrays of numbers are
    read, which training code keeps beside the weights (the state of NumPy's random numbers); the meters of fairseq's
    older trainers are passed over.

    Raises:
        UserError: No such file, none of torch.save or not a whole one, objects other than tensors and plain values, or
            no tensors.
    """
    if not path.is_file():
        raise UserError(f"the checkpoint {path} is not a file: give an existing one.")
    if path.suffix == ".safetensors":
        try:
            found: Any = load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path} is not a whole safetensors file ({error}): download it again.") from error
    else:
        try:
            with torch.serialization.safe_globals(_harmless()):
                found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds, all of which mean that the file cannot be read safely
            if not isinstance(error, OSError) and not _of_torch(path):
                raise UserError(
                    f"{path} is no file of torch.save: give a checkpoint that it wrote, or weights as .safetensors."
                ) from error
            blocked = re.search(r"GLOBAL (\S+)", str(error))
            first = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0]  # then advice
            first = f"it names {blocked[1]}" if blocked else first
            raise UserError(
                f"{path} cannot be read as weights alone ({first[:200]}): it is damaged, or holds pickled objects, "
                "which are never loaded; save its state dict on its own (torch.save(model.state_dict(), FILE))."
            ) from error
    args = _args(found)
    while isinstance(found, Mapping):  # other tensors may lie beside the weights, as the state of random numbers
        inner = next((found[key] for key in _WRAPPERS if isinstance(found.get(key), Mapping)), None)
        if inner is None:
            break
        found = inner
    weights = _tensors(found) if isinstance(found, Mapping) else {}
    if not weights:
        raise UserError(f"{path} holds no weights by name: give a file with a model's state dict.")
    if all(name.startswith("module.") for name in weights):
        weights = {name.removeprefix("module."): tensor for name, tensor in weights.items()}
    return Checkpoint(weights, args)


def _of_torch(path: Path) -> bool:
    """Whether a file begins as all of torch.save do, damaged or not: a zip archive, a pickle, or a tar archive."""
    with path.open("rb") as file:
        begins = file.read(2)
    return begins == b"PK" or begins[:1] == b"\x80" or tarfile.is_tarfile(path)


def fill(model: nn.Module, weights: Weights, source: str, called: Callable[[str], str] = str) -> nn.Module:
    """Load weights under our names strictly, in their own precision, and return the model in evaluation mode.

    Args:
        model: To be filled.
        weights: Under our names.
        source: Whose checkpoint it is, for messages.
        called: Our name → the authors', for messages.

    Raises:
        UserError: A weight is missing, left over, or of another shape.
    """
    state = model.state_dict()
    absent = sorted(set(state) - set(weights))
    surplus = sorted(set(weights) - set(state))
    shapes = [
        f"{called(name)} {tuple(weights[name].shape)}, expected {tuple(state[name].shape)}"
        for name in state
        if name in weights and weights[name].shape != state[name].shape
    ]
    lacking, beyond = [called(name) for name in absent], [called(name) for name in surplus]
    for what, names in (("lacks", lacking), ("has beyond the model", beyond), ("has other shapes:", shapes)):
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise UserError(f"the {source} checkpoint {what} {shown}: give the weights of a whole model of that kind.")
    floating = next(tensor for tensor in weights.values() if tensor.is_floating_point())
    model.to(floating.dtype)
    model.load_state_dict(dict(weights))
    return model.eval()


def _args(found: Any) -> dict[str, Any]:
    """The arguments beside the weights; empty where there are none."""
    if not isinstance(found, Mapping):
        return {}
    if (args := _values(found.get("args"))) is not None:
        return args
    cfg = found.get("cfg")
    groups = [_values(cfg.get(name)) for name in ("task", "model")] if isinstance(cfg, Mapping) else []
    return {name: value for group in groups if group is not None for name, value in group.items()}


def _values(group: Any) -> dict[str, Any] | None:
    """Arguments by name; None where these are none."""
    group = vars(group) if isinstance(group, argparse.Namespace) else group
    return {str(name): value for name, value in group.items()} if isinstance(group, Mapping) else None


def _tensors(found: Mapping[Any, Any]) -> dict[str, Tensor]:
    return {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
