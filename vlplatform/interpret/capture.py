"""Capture attention around any model, without a flag in any ``forward`` and without cost when nobody looks.

Inside ``with capture(model) as captured:`` a forward pre-hook keeps the input of every feature-map operator
(any submodule with a method ``attention_maps``). The maps themselves are computed on request, for one query
pixel at a time, so that no (HW × HW) weights are ever held. Token attention (any submodule with a method
``attention_weights``) is kept with all arguments of its last call, and its weights are computed on request too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vlplatform.attention.cache import Cache
from vlplatform.attention.score_term import Depth
from vlplatform.errors import UserError, nearest


class MapAttention(Protocol):
    """A feature-map operator that can explain one query pixel."""

    def attention_maps(self, x: Tensor, row: int, col: int) -> dict[str, Tensor]:
        """Name (``content``, ``position``, ``bilateral``) → probabilities (B, heads, H, W) over the map of ``x``."""
        ...


class TokenAttention(Protocol):
    """A token attention that can say where it looked."""

    def attention_weights(self, query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Probabilities (B, heads, N, M) of a call with these arguments."""
        ...


@dataclass(frozen=True)
class _Call:
    module: nn.Module
    x: Tensor
    rest: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)


class Captured:
    """What one ``with capture(model)`` recorded; usable after the block has ended.

    A module that ran several times (shared, or over several batches) is represented by its last call.
    """

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}

    def names(self, over: Literal["map", "tokens"] | None = None) -> list[str]:
        """Dotted paths of the attentions that ran, in the order of their (last) calls.

        Args:
            over: Only those over a feature map, for :meth:`maps`, or over tokens, for :meth:`weights`.
        """
        methods = {"map": "attention_maps", "tokens": "attention_weights"}
        return [path for path, call in self._calls.items() if over is None or hasattr(type(call.module), methods[over])]

    def maps(self, name: str, row_fraction: float, col_fraction: float) -> dict[str, Tensor]:
        """The attention of one query pixel in the operator ``name``.

        The operator runs in evaluation mode, without gradient, on a copy of the input it was given.

        Args:
            name: One of :meth:`names`.
            row_fraction: The query's row as a fraction of the map's height, in [0, 1].
            col_fraction: The query's column as a fraction of the map's width, in [0, 1].

        Returns:
            Map name → probabilities (B, heads, H, W), float32 on the CPU.

        Raises:
            UserError: No operator of that name ran, or a fraction lies outside [0, 1].
        """
        call = self._call(name, "attention_maps")
        if not (0 <= row_fraction <= 1 and 0 <= col_fraction <= 1):
            raise UserError(
                f"the query point ({row_fraction}, {col_fraction}) lies outside the image: "
                "give row and column as fractions between 0 and 1."
            )
        height, width = call.x.shape[-2:]
        row = min(int(row_fraction * height), height - 1)
        col = min(int(col_fraction * width), width - 1)
        parameter = next(call.module.parameters(), None)
        x = call.x if parameter is None else call.x.to(parameter.dtype)  # autocast hands on half precision
        with evaluating(call.module):
            maps = cast(MapAttention, call.module).attention_maps(x, row, col)
        return {key: value.detach().float().cpu() for key, value in maps.items()}

    def weights(self, name: str) -> Tensor:
        """The attention weights (B, heads, N, M) of the last call of the token attention ``name``, float32 on the CPU.

        They are computed again, in evaluation mode and without gradient, from the arguments of that call.

        Raises:
            UserError: No token attention of that name ran.
        """
        call = self._call(name, "attention_weights")
        with evaluating(call.module):
            weights = cast(TokenAttention, call.module).attention_weights(call.x, *call.rest, **call.named)
        return weights.detach().float().cpu()

    def parts(self, name: str) -> dict[str, Tensor]:
        """What each summand of the logits of the token attention ``name`` alone would attend to in its last call.

        Returns:
            ``content`` and the names of the terms that add to it → probabilities (B or 1, heads or 1, N, M), float32 on
            the CPU; empty where the mechanism's logits are no such sum.

        Raises:
            UserError: No token attention of that name ran.
        """
        call = self._call(name, "attention_weights")
        explain = getattr(call.module, "attention_parts", None)
        if explain is None:
            return {}
        with evaluating(call.module):
            parts = explain(call.x, *call.rest, **call.named)
        return {part: weights.detach().float().cpu() for part, weights in parts.items()}

    def _call(self, name: str, method: str) -> _Call:
        fitting = [path for path, call in self._calls.items() if hasattr(type(call.module), method)]
        if name not in fitting:
            raise UserError(f"no attention of the name '{name}' was captured: {nearest(name, fitting)}.")
        return self._calls[name]


@contextmanager
def capture(model: nn.Module) -> Iterator[Captured]:
    """Record the inputs of all attention operators of ``model`` that run inside the block.

    The model may be compiled or wrapped for distributed training: names are those of the bare model, and
    compiled code runs eagerly inside the block (it would not see the hooks). The hooks are gone afterwards,
    also after an error.

    Example::

        with capture(model) as captured:
            model(image)
        captured.maps(captured.names()[-1], 0.5, 0.5)["bilateral"]  # (B, heads, H, W)
    """
    captured = Captured()
    handles: list[RemovableHandle] = []
    modules = dict(model.named_modules())
    compiled = any("_orig_mod" in path.split(".") for path in modules) or any(
        part._compiled_call_impl is not None for part in modules.values()
    )
    try:
        for path, module in modules.items():
            # asked of the class: torch.compile's wrapper would pass the question on to the module inside
            kind = type(module)
            if callable(getattr(kind, "attention_maps", None)) or callable(getattr(kind, "attention_weights", None)):
                recorder = _recorder(captured._calls, _bare(model, path))
                handles.append(module.register_forward_pre_hook(recorder, with_kwargs=True))
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():  # loads the compiler: 1.5 s
            yield captured
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode without gradient inside the block; each part's own mode is restored."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True


def _recorder(calls: dict[str, _Call], name: str) -> Any:
    def record(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls.pop(name, None)  # the order is that of the last calls
        kept = {key: _kept(value) for key, value in named.items()}
        first = kept.pop("query", None) if not args else _kept(args[0])
        calls[name] = _Call(module, first, tuple(_kept(value) for value in args[1:]), kept)

    return record


def _kept(value: Any) -> Any:
    """What an argument is now: later operations may change it in place."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Cache):
        return value.copy()
    if isinstance(value, Depth):
        return value.copy()
    return value


def _bare(model: nn.Module, path: str) -> str:
    """``path`` without what compilation and data parallelism put in: ``module._orig_mod.head`` → ``head``."""
    parts = [part for part in path.split(".") if part != "_orig_mod"]
    wrapped = isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)) or isinstance(
        getattr(model, "_orig_mod", None), nn.parallel.DistributedDataParallel
    )
    return ".".join(parts[1:] if wrapped else parts) or "model"
