"""Fast paths of the mechanisms, and the choice among them.

Every mechanism has a path of plain modules and operations that is always right; ``using`` forces it (or the fast one).
Left alone, the local operators take the fused path where it was measured to win: on the CPU in eager mode and full
precision, where it saves the traffic to memory. ``torch.compile`` fuses the plain path by itself. The fast paths have
first derivatives only and know nothing of ``torch.func``; the plain one has all. On GPUs, attention over many
tokens takes ``flex`` where all its terms can be said for one query and one key (``kernels/flex.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor

Path = Literal["auto", "fused", "plain", "flex"]
_path: ContextVar[Path] = ContextVar("path", default="auto")


@contextmanager
def using(path: Path) -> Iterator[None]:
    """Within the block take this path: ``auto``, ``plain``, or ``fused`` on any device where the layer allows it.

    ``flex`` is :mod:`vlplatform.attention.kernels.flex`, on any device too; what does not allow it goes by ``auto``.
    """
    token = _path.set(path)
    try:
        yield
    finally:
        _path.reset(token)


def path() -> Path:
    """The path that the surroundings ask for."""
    return _path.get()


def fused_wanted(x: Tensor) -> bool:
    """Whether the fused path is to be taken for an input, as far as the input and the surroundings decide."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    path = _path.get()
    if path == "plain" or torch.is_autocast_enabled(x.device.type) or x.dtype not in (torch.float32, torch.float64):
        return False
    return path == "fused" or x.device.type == "cpu"
