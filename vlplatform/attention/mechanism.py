"""What a mechanism file declares about itself: the ``Mechanism`` card that lists, builds and documents it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

Socket = Literal["token", "fusion", "context", "local"]
SOCKETS: tuple[Socket, ...] = ("token", "fusion", "context", "local")


GIVEN = ("dim", "memory_dim", "sizes")
"""Parameters of constructors that are no settings: the surroundings decide them."""


@dataclass(frozen=True)
class Mechanism:
    """One attention mechanism: its name, the sockets it fits, its source, and the class that builds it.

    A file in ``vlplatform/attention/`` makes its mechanisms known by a module-level tuple ``MECHANISMS``;
    an outside package by an entry point in the group ``vlplatform.attention`` that names a ``Mechanism``.

    Attributes:
        name: The name users write (``attn=name``).
        build: Class or factory; its keyword parameters (less ``dim``) are the mechanism's settings. Context and
            local operators take ``dim`` (input channels) and map (B, C, H, W) to (B, C', H, W); token and fusion
            mechanisms take ``dim`` (model width), and ``memory_dim`` if the memory's width may differ.
        sockets: Where it fits.
        summary: One line for tables.
        paper: Citation in a few words.
        equations: Equation, table or algorithm numbers in that paper.
        families: Socket → short name under which this mechanism is that socket's member, for example
            ``{"local": "bilateral"}`` lets ``attn=bilateral`` mean this one in the local socket.
        term: ``build`` makes a :class:`~vlplatform.attention.score_term.ScoreTerm` from the attention's ``sizes``;
            the mechanism is then multi-head attention with that term, and composes with all other terms.
    """

    name: str
    build: Callable[..., nn.Module]
    sockets: tuple[Socket, ...]
    summary: str
    paper: str
    equations: str = ""
    families: Mapping[Socket, str] = field(default_factory=dict)
    term: bool = False

    def settings(self) -> dict[str, dict[str, Any]]:
        """Type and default of every setting, by name."""
        from vlplatform import settings

        return settings.describe(self.settings_class())

    def settings_class(self) -> type[Any]:
        """The dataclass of the settings, made from the constructor's signature; a term's has the attention's too."""
        from vlplatform import settings
        from vlplatform.attention import composition

        return composition.settings_class([self]) if self.term else settings.of_constructor(self.build, GIVEN)
