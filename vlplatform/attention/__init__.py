"""Attention mechanisms: one idea, one file; needs torch alone.

``build(name, dim=…, socket=…)`` makes one by name; ``catalogue()`` lists them all. Every ``*.py`` beside this
file may declare ``MECHANISMS``; nothing is registered by being imported.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from importlib.metadata import entry_points
from typing import Any

from torch import nn

from vlplatform import settings as typed
from vlplatform.attention import composition
from vlplatform.attention.cache import Cache
from vlplatform.attention.mechanism import SOCKETS, Mechanism, Socket
from vlplatform.attention.multi_head import MultiHeadAttention, sizes_of
from vlplatform.attention.score_term import Block, Depth, ScoreTerm, Sizes
from vlplatform.errors import UserError, nearest

__all__ = [
    "SOCKETS",
    "Block",
    "Cache",
    "Depth",
    "Mechanism",
    "MultiHeadAttention",
    "ScoreTerm",
    "Sizes",
    "Socket",
    "build",
    "catalogue",
    "resolve",
    "sizes_of",
]


@functools.cache
def catalogue() -> dict[str, Mechanism]:
    """All mechanisms by name: those of this folder, then those of installed plugins.

    Raises:
        UserError: A plugin cannot be imported, or two mechanisms share a name.
    """
    found: dict[str, Mechanism] = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.ispkg:
            declared = importlib.import_module(f"{__name__}.{module.name}")
            for mechanism in getattr(declared, "MECHANISMS", ()):
                found[mechanism.name] = mechanism
    for point in entry_points(group="vlplatform.attention"):
        try:
            mechanism = point.load()
        except Exception as error:  # whatever an outside module raises while it is imported
            raise UserError(
                f"the attention plugin '{point.name}' ({point.value}) cannot be imported: {error!r}; "
                "mend or uninstall its package."
            ) from error
        if mechanism.name in found:
            raise UserError(f"the attention plugin {point.value} takes the name '{mechanism.name}', in use already.")
        found[mechanism.name] = mechanism
    return dict(sorted(found.items()))


def resolve(name: str, socket: Socket) -> Mechanism:
    """The mechanism called ``name`` in a socket; a family name means the socket's member of that family.

    Raises:
        UserError: No such name, or one that does not fit the socket (the fitting ones are listed).
    """
    mechanisms = catalogue()
    for mechanism in mechanisms.values():
        if mechanism.families.get(socket) == name:
            return mechanism
    if name in mechanisms and socket in mechanisms[name].sockets:
        return mechanisms[name]
    fitting = {m.families.get(socket, m.name) for m in mechanisms.values() if socket in m.sockets}
    fitting |= {m.name for m in mechanisms.values() if socket in m.sockets}
    families = {family for m in mechanisms.values() for family in m.families.values()}
    if name in mechanisms or name in families:
        own = mechanisms[name].sockets if name in mechanisms else ()
        fits = f" (it fits {', '.join(own)})" if own else ""
        raise UserError(
            f"attn={name} does not fit the {socket} socket{fits}; those that do: {', '.join(sorted(fitting))}."
        )
    raise UserError(f"attn={name} is not a known mechanism: {nearest(name, set(mechanisms) | families)}.")


def build(name: str, *, dim: int, socket: Socket, memory_dim: int | None = None, **settings: Any) -> nn.Module:
    """The mechanism ``name`` for width ``dim`` in a socket, with ``settings`` checked against its own.

    Over a feature map the module maps (B, dim, H, W) to (B, C', H, W). Over tokens it is called as
    ``attn(query, key=None, value=None, *, geometry=None, mask=None, causal=False, cache=None)``, giving (B, N, dim);
    several score terms are joined by a plus: ``build("nsa+gsa", dim=512, socket="token")``.

    Args:
        name: One of :func:`catalogue`, a family's name, or names of score terms joined by ``+``.
        dim: Channels or model width.
        socket: Where it goes.
        memory_dim: Width of the keys' tokens where it differs from ``dim``; sockets ``token`` and ``fusion`` only.
        settings: Of the mechanism.

    Raises:
        UserError: Unknown name or setting, a wrong type, or a value the mechanism refuses.
    """
    given: dict[str, Any] = {} if memory_dim is None else {"memory_dim": memory_dim}
    if socket not in SOCKETS:
        raise UserError(f"socket={socket} is none: {nearest(socket, SOCKETS)}.")
    try:
        if "+" in name and socket == "token":
            parts = [resolve(part.strip(), socket) for part in name.split("+")]
            return composition.attention(name, parts, dim, settings, given)
        mechanism = resolve(name, socket)
        if mechanism.term:
            return composition.attention(name, [mechanism], dim, settings, given)
        parsed = typed.parse(mechanism.settings_class(), settings, "attn")
        accepted = inspect.signature(mechanism.build).parameters
        if given and "memory_dim" not in accepted:
            raise UserError(f"attn={name} cannot read a memory of another width: memory_dim must be left out.")
        return _built(
            name, mechanism, {"dim": dim, **{k: v for k, v in vars(parsed).items() if k in accepted}, **given}
        )
    except ValueError as error:
        raise UserError(f"attn={name}: {error}") from error


def _built(name: str, mechanism: Mechanism, arguments: dict[str, Any]) -> nn.Module:
    """The module; messages from within, now or in its calls, name it too and not its parts alone."""
    try:
        module = mechanism.build(**arguments)
    except UserError as error:
        if str(error).startswith(f"attn={name}"):
            raise
        raise UserError(f"attn={name}: {error}") from error
    for part in module.modules():
        if isinstance(part, ScoreTerm):
            part.title = f"{name} ({part.title})"
    return module
