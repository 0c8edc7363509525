"""Multi-head attention from names of score terms: one, several joined by a plus, or a list with settings."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from vlplatform import settings as typed
from vlplatform.attention.mechanism import GIVEN, Mechanism
from vlplatform.attention.multi_head import MultiHeadAttention, sizes_of
from vlplatform.attention.score_term import ScoreTerm, Sizes
from vlplatform.errors import UserError, nearest


def settings_class(parts: Sequence[Mechanism]) -> type[Any]:
    """The settings of attention with these terms: the attention's own, and of each term those no other has.

    What two terms both have can be set in the list form alone (``terms: [{name: …, setting: …}]``).
    """
    shared = typed.of_constructor(MultiHeadAttention, (*GIVEN, "terms"))
    of_parts = [typed.of_constructor(part.build, GIVEN) for part in parts]
    names = [field.name for cls in of_parts for field in dataclasses.fields(cls)]
    fields: list[Any] = []
    for cls in (shared, *of_parts):
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if cls is shared or names.count(field.name) == 1:
                default = dataclasses.field(default=field.default, default_factory=field.default_factory)
                required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
                fields.append((field.name, hints[field.name], *(() if required else (default,))))
    documentation = "\n".join(cls.__doc__ or "" for cls in (shared, *of_parts))
    title = "".join(part.name.title() for part in parts)
    return dataclasses.make_dataclass(f"{title}Settings", fields, namespace={"__doc__": documentation}, kw_only=True)


def attention(
    name: str, parts: Sequence[Mechanism], dim: int, values: Mapping[str, Any], given: Mapping[str, Any]
) -> nn.Module:
    """Multi-head attention with the terms ``parts``, set by ``values``.

    Raises:
        UserError: A part that is no term, an unknown setting, or a wrong type.
        ValueError: A value that a term or the attention refuses.
    """
    for part in parts:
        if not part.term:
            raise UserError(
                f"attn={name}: {part.name} is a module of its own, not a score term, and cannot be joined by '+'."
            )
    parsed = vars(typed.parse(settings_class(parts), values, "attn"))
    shared = {f.name for f in dataclasses.fields(typed.of_constructor(MultiHeadAttention, (*GIVEN, "terms")))}
    of_attention = {key: value for key, value in parsed.items() if key in shared}
    of_sizes = {key: of_attention[key] for key in ("heads", "head_dim", "key_dim", "scale")}
    sizes = sizes_of(dim, **of_sizes, memory_dim=given.get("memory_dim"))
    made: list[ScoreTerm] = []
    for part in parts:
        own = {f.name for f in dataclasses.fields(typed.of_constructor(part.build, GIVEN))}
        values_of_part = {key: parsed[key] for key in own if key in parsed}
        made.append(_made(part, sizes, values_of_part, named=len(parts) > 1))
    return MultiHeadAttention(dim, terms=made, **of_attention, **given)


def terms(listed: Sequence[Any], sizes: Sizes) -> list[ScoreTerm]:
    """The terms of a list like ``["nsa", {"name": "dsa", "distance": "euclidean"}]``.

    Raises:
        UserError: An entry of another form, an unknown term or setting.
        ValueError: A value that a term refuses; the term is named.
    """
    from vlplatform.attention import catalogue, resolve

    known = sorted(name for name, mechanism in catalogue().items() if mechanism.term)
    made: list[ScoreTerm] = []
    for i, entry in enumerate(listed):
        values = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
        name = values.pop("name", None)
        if not isinstance(name, str):
            raise UserError(f"attn.terms[{i}]={entry!r} names no term: write a name or {{name: …, setting: …}}.")
        try:
            part = resolve(name, "token")
        except UserError:
            raise UserError(f"attn.terms[{i}]={name} is not a known term: {nearest(name, known)}.") from None
        if not part.term:
            raise UserError(f"attn.terms[{i}]={name} is a module of its own, not a score term: {nearest(name, known)}.")
        parsed = typed.parse(typed.of_constructor(part.build, GIVEN), values, f"attn.terms[{i}]")
        made.append(_made(part, sizes, vars(parsed), named=True))
    return made


def _made(part: Mechanism, sizes: Sizes, values: Mapping[str, Any], *, named: bool) -> ScoreTerm:
    """The term; what it refuses begins with its name where that is not said already."""
    try:
        term = part.build(sizes, **values)
    except ValueError as error:
        raise ValueError(f"{part.name}: {error}" if named else str(error)) from error
    assert isinstance(term, ScoreTerm)
    return term
