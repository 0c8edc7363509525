"""The model inside the wrappers of compilation and data parallelism."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def bare(model: nn.Module, *kinds: type[M]) -> M:
    """The first module of one of the ``kinds`` on the way inwards through ``torch.compile`` and data parallelism.

    Raises:
        TypeError: There is none.
    """
    inner: object = model
    while not isinstance(inner, kinds):
        inner = getattr(inner, "_orig_mod", None) or getattr(inner, "module", None)
        if inner is None:
            raise TypeError(f"{type(model).__name__} is no {' or '.join(kind.__name__ for kind in kinds)}")
    return inner
