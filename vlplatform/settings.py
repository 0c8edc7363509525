"""Typed settings: a dataclass, or a constructor's keyword arguments, filled strictly from a mapping.

The dataclass (or signature) beside each component is the only truth about its settings. ``parse`` accepts
exactly its names and types and stops at the first mistake with one sentence that names the key, what was
expected, and the nearest valid name.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from vlplatform.errors import UserError, nearest

T = TypeVar("T")


def parse(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """An instance of the dataclass ``cls`` from ``values``; ``where`` prefixes keys in messages (``trainer``).

    Raises :class:`UserError` for an unknown key, a missing one, a wrong type, or a value that the class's own
    ``__post_init__`` refuses with ``ValueError``.
    """
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, cls)) if f.init}
    filled: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            raise UserError(f"{where}.{key} is not a setting of {where}: {nearest(str(key), fields)}.")
        filled[key] = _convert(value, hints[key], f"{where}.{key}")
    for name, field in fields.items():
        missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if missing and name not in filled:
            raise UserError(f"{where}.{name} must be given ({_describe(hints[name])}): add {where}.{name}=….")
    try:
        return cls(**filled)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def of_words(words: Sequence[str]) -> dict[str, Any]:
    """The values of ``key=value`` words of a command line: numbers, true, false, null, lists in brackets, else text.

    Raises:
        UserError: A word without an equals sign, or a key twice.
    """
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"'{word}' is no setting: write KEY=VALUE.")
        if key in values:
            raise UserError(f"{key} is given twice: give it once.")
        try:
            values[key] = json.loads(text)
        except ValueError:
            items = text[1:-1].split(",") if text[:1] == "[" and text[-1:] == "]" else None
            values[key] = text if items is None else [item.strip() for item in items if item.strip()]
    return values


@functools.cache
def of_constructor(build: Callable[..., Any], given: tuple[str, ...] = ()) -> type[Any]:
    """The settings dataclass of a class or factory: its keyword parameters, less those ``given`` by the caller.

    Every parameter that remains must be annotated; its default becomes the setting's default.
    """
    target = build.__init__ if inspect.isclass(build) else build
    hints = typing.get_type_hints(target)
    fields: list[Any] = []
    for name, parameter in inspect.signature(build).parameters.items():
        if name in given or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.default is inspect.Parameter.empty:
            fields.append((name, hints[name]))
        else:
            fields.append((name, hints[name], dataclasses.field(default=parameter.default)))
    lineage = reversed(inspect.getmro(build)) if inspect.isclass(build) else (build,)
    documentation = "\n".join(inspect.cleandoc(each.__doc__) for each in lineage if each.__doc__)
    namespace = {"__doc__": documentation}
    return dataclasses.make_dataclass(f"{build.__name__}Settings", fields, namespace=namespace, kw_only=True)


def describe(cls: type[Any]) -> dict[str, dict[str, Any]]:
    """Per setting of the dataclass ``cls``: its type in words, its default (absent where required), its ``help``.

    The help is the setting's entry under ``Attributes:`` or ``Args:`` in the docstring of the class, or of the base
    class it comes from, if there is one. A group of settings has its own under ``settings``.
    """
    hints, explained = typing.get_type_hints(cls), {}
    for each in reversed(cls.__mro__):
        explained.update(_explanations(inspect.cleandoc(each.__dict__.get("__doc__") or "")))
    out: dict[str, dict[str, Any]] = {}
    for field in dataclasses.fields(cls):
        entry: dict[str, Any] = {"type": _describe(hints[field.name])}
        if field.default is not dataclasses.MISSING:
            entry["default"] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            entry["default"] = field.default_factory()
        if field.name in explained:
            entry["help"] = explained[field.name]
        hint = hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            entry["settings"] = describe(hint)
        out[field.name] = entry
    return out


def _explanations(doc: str) -> dict[str, str]:
    """Name → text of the entries under ``Attributes:`` and ``Args:`` of a docstring."""
    found: dict[str, str] = {}
    name, inside = "", False
    for line in doc.splitlines():
        if line and not line.startswith(" "):
            inside = line in ("Attributes:", "Args:")
        elif inside and (match := re.match(r"    (\w+): (.*)", line)):
            name, found[match[1]] = match[1], match[2]
        elif inside and name and line.startswith("     "):
            found[name] += " " + line.strip()
    return {key: _plain(text) for key, text in found.items()}


def _plain(text: str) -> str:
    """A docstring's text without marks: neither code, nor emphasis, nor roles (``:class:`~a.B``` is B)."""
    text = re.sub(r":[\w:]+:`~?(?:[^`]*\.)?([^`]*)`", r"\1", text)
    return re.sub(r"(\*\*|``?)(?=\S)(.+?)(?<=\S)\1", r"\2", text)


def as_dict(settings: Any) -> dict[str, Any]:
    """The settings dataclass as plain JSON-ready values, the inverse of :func:`parse`."""
    return dataclasses.asdict(settings)


def _convert(value: Any, hint: Any, where: str) -> Any:
    """``value`` as the type ``hint``, or :class:`UserError`; whole numbers are fine where a real is expected."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        for option in args:
            if option is type(None):
                continue
            try:
                return _convert(value, option, where)
            except UserError:
                continue
        raise _mismatch(value, hint, where)
    if origin is Literal:
        if value in args and type(value) in {type(a) for a in args}:
            return value
        raise UserError(f"{where}={value} is not valid: {nearest(str(value), map(str, args))}.")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if dataclasses.is_dataclass(value):
            return value
        if isinstance(value, Mapping):
            return parse(hint, value, where)
        raise UserError(f"{where}={value!r} must be a group of settings ({where}.…=…).")
    if origin in (list, tuple):
        if isinstance(value, str) or not isinstance(value, (list, tuple)):
            raise _mismatch(value, hint, where)
        if origin is tuple and args and args[-1] is not Ellipsis:
            if len(value) != len(args):
                raise UserError(f"{where}={list(value)} has {len(value)} values; {len(args)} are needed.")
            return tuple(_convert(v, a, f"{where}[{i}]") for i, (v, a) in enumerate(zip(value, args)))
        return origin(_convert(v, args[0], f"{where}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _mismatch(value, hint, where)
        return {_convert(k, args[0], where): _convert(v, args[1], f"{where}.{k}") for k, v in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bool) and hint is not bool:
        raise _mismatch(value, hint, where)
    if isinstance(hint, type) and isinstance(value, hint):
        return value
    raise _mismatch(value, hint, where)


def _mismatch(value: Any, hint: Any, where: str) -> UserError:
    return UserError(f"{where}={value!r} has the wrong type: expected {_describe(hint)}.")


def _describe(hint: Any) -> str:
    """A type in a user's words: ``whole number``, ``one of: a, b``, ``list of real number``."""
    plain = {
        int: "whole number",
        float: "real number",
        bool: "true or false",
        str: "text",
        type(None): "null",
        dict: "a group of settings",
    }
    if hint in plain:
        return plain[hint]
    if hint is Any:
        return "any value"
    origin, args = get_origin(hint), get_args(hint)
    if origin is dict:
        return "a group of settings" if args[1] is Any else f"{_describe(args[1])} by name"
    if origin is Literal:
        return "one of: " + ", ".join(map(str, args))
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(a) for a in args)
    if origin in (list, tuple) and args:
        if origin is tuple and args[-1] is not Ellipsis:
            return "list of " + ", ".join(_describe(a) for a in args)
        return f"list of {_describe(args[0])}"
    if dataclasses.is_dataclass(hint):
        return "a group of settings"
    return getattr(hint, "__name__", str(hint))
