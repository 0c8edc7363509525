"""What attention the layers of a stack have: one spec for all, or one per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from vlplatform.attention import build
from vlplatform.attention.mechanism import Socket
from vlplatform.errors import UserError

Spec = str | Mapping[str, Any]
"""A mechanism's name, several score terms joined by a plus, or a mapping with ``name`` and settings."""


def attentions(
    spec: Spec | Sequence[Spec], layers: int, *, dim: int, heads: int, socket: Socket = "token", **rest: Any
) -> list[nn.Module]:
    """One attention per layer, from the bottom up.

    Args:
        spec: One for all layers or a list with one per layer, as in MD-SAN's table XII:
            ``["mdsa", "sa", "mdsa"]``.
        layers: Number of layers.
        dim: Model width D.
        heads: Heads, where a spec does not say.
        socket: Where they go.
        rest: Settings for all that accept them, such as ``dropout``; ``memory_dim``.

    Raises:
        UserError: A list of another length, a spec without a name, or what :func:`vlplatform.attention.build` refuses.
    """
    if isinstance(spec, (str, Mapping)):
        specs: list[Spec] = [spec] * layers
    else:
        specs = list(spec)
        if len(specs) != layers:
            raise UserError(f"attn has {len(specs)} specs for {layers} layers: give one, or one per layer.")
    made = []
    for i, each in enumerate(specs):
        values = {"name": each} if isinstance(each, str) else dict(each)
        name = values.pop("name", None)
        if not isinstance(name, str):
            raise UserError(f"attn[{i}]={each!r} names no mechanism: write a name or {{name: …, setting: …}}.")
        made.append(build(name, dim=dim, socket=socket, **{"heads": heads, **rest, **values}))
    return made
