"""``vlp list``: what there is, for people (a table) and programs (``--json``)."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from vlplatform import attention, registry, settings
from vlplatform.cli import compose
from vlplatform.cli.arguments import one_of
from vlplatform.errors import UserError, nearest
from vlplatform.task import TaskPlugin

HELP = "List mechanisms, tasks, models, data sets, scores or recipes."
EPILOG = """examples:
  vlp list attn
  vlp list attn --json
  vlp list attn --socket local --cost 256x96x96   (channels x height x width: parameters, multiply-adds)
  vlp list attn --socket local --cost 256x96x96 attn.heads=4 attn.kernel=7
  vlp list attn --socket token --cost 512x196             (width x tokens)
  vlp list data --json"""

SHOWN = ("name", "sockets", "task", "summary", "params", "macs")
"""Columns of the tables for people; ``--json`` has them all."""

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to list, and for mechanisms the socket, the size to count costs at, and settings."""
    kinds = sorted(LISTS)
    parser.add_argument("what", nargs="?", type=one_of("the list", kinds), metavar="WHAT", help=", ".join(kinds))
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="attn.KEY=VALUE", help="settings to count costs with"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    socket = one_of("--socket", attention.SOCKETS)
    sockets = ", ".join(attention.SOCKETS)
    parser.add_argument("--socket", type=socket, metavar="SOCKET", help=f"only mechanisms that fit it: {sockets}")
    parser.add_argument("--cost", metavar="SIZE", help="with --socket: add params and macs at CxHxW, or DxN for tokens")


def run(args: argparse.Namespace) -> int:
    """Print the list; exit code 0.

    Raises:
        UserError: No list is named, costs are asked for without a socket or size, or settings that no listed mechanism
            has.
    """
    if args.what is None:
        raise UserError(f"vlp list needs the name of a list (vlp list attn): {', '.join(sorted(LISTS))}.")
    if args.overrides and not (args.what == "attn" and args.cost):
        raise UserError(
            f"'{args.overrides[0]}' has no meaning here: settings go with vlp list attn --socket … --cost …."
        )
    rows = LISTS[args.what](args)
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    console = Console()
    table = Table()
    # Where one socket was asked for, a column of sockets would tell nothing.
    columns = [c for c in (rows[0] if rows else {}) if c in SHOWN and not (c == "sockets" and args.socket)]
    for column in columns:
        justify = "right" if column in ("params", "macs") else "left"
        table.add_column(column, no_wrap=column != "summary", justify=justify)
    for row in rows:
        table.add_row(*(_cell(row, column) for column in columns))
    console.print(table)
    for line in _families(rows):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for row in rows:
        if row.get("not_counted"):
            console.print(f"{row['name']}: {row['not_counted']}", markup=False, highlight=False)
    return 0


def _families(rows: Sequence[Row]) -> list[str]:
    """Per family a line of what its name stands for in each socket."""
    members: dict[str, list[str]] = {}
    for row in rows:
        for socket, family in row.get("families", {}).items():
            members.setdefault(family, []).append(f"{row['name']} in the {socket} socket")
    return [f"attn={family} is {', '.join(found)}" for family, found in members.items()]


def _attn(args: argparse.Namespace) -> list[Row]:
    size = _size(args.cost, args.socket) if args.cost else None
    chosen = [m for m in attention.catalogue().values() if not args.socket or args.socket in m.sockets]
    values = _values(args.overrides, chosen)
    rows = []
    for mechanism in chosen:
        row: Row = {
            "name": mechanism.name,
            "sockets": list(mechanism.sockets),
            "families": dict(mechanism.families),
            "summary": mechanism.summary,
            "paper": mechanism.paper,
            "equations": mechanism.equations,
            "settings": mechanism.settings(),
        }
        if size:
            row.update(_cost(mechanism, args.socket, size, values))
        rows.append(row)
    if values and rows and all(row["params"] is None for row in rows):
        raise UserError(f"no mechanism can be built with {' '.join(args.overrides)}: {_reason(rows, values)}")
    return rows


def _values(overrides: Sequence[str], mechanisms: Sequence[attention.Mechanism]) -> dict[str, Any]:
    """The settings in ``attn.KEY=VALUE``, each of them known to one of the mechanisms at least."""
    known = {name for mechanism in mechanisms for name in mechanism.settings()}
    for override in overrides:
        path = override.partition("=")[0].split(".")
        if path[0] != "attn" or len(path) < 2:
            raise UserError(f"'{override}' is no setting of a mechanism: write attn.KEY=VALUE (attn.heads=2).")
        if path[1] not in known:
            raise UserError(f"attn.{path[1]} is a setting of none of these mechanisms: {nearest(path[1], known)}.")
    if not overrides:
        return {}
    section = compose.compose(overrides, recipe=False, given={"attn": {"name": "auto"}})["attn"]
    return {key: value for key, value in section.items() if key != "name"}


def _cost(mechanism: attention.Mechanism, socket: Any, size: tuple[int, int, int], values: dict[str, Any]) -> Row:
    """``params`` and ``macs``, null where they cannot be had, and then ``not_counted``, the reason."""
    channels, height, width = size
    cost: Row = {"params": None, "macs": None, "not_counted": None}
    foreign = [key for key in values if key not in mechanism.settings()]
    if foreign:
        return {**cost, "not_counted": f"it has no setting {', '.join(foreign)}."}
    try:
        operator: Any = attention.build(mechanism.name, dim=channels, socket=socket, **values)
        tokens = height * width
        given: tuple[Any, ...] = {"token": (tokens,), "fusion": (tokens, (tokens, tokens))}.get(socket, (height, width))
        cost["params"] = sum(p.numel() for p in operator.parameters())
        if hasattr(operator, "macs"):
            cost["macs"] = operator.macs(*given)
        else:
            cost["not_counted"] = "it does not count its multiply-adds (no macs)."
    except Exception as error:  # whatever one mechanism, perhaps an outside one, raises: the others are still listed
        said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        cost["not_counted"] = " ".join(said.split())
    return cost


def _reason(rows: Sequence[Row], values: dict[str, Any]) -> str:
    """Why the first mechanism that has the settings could not be built."""
    telling = [row for row in rows if all(key in row["settings"] for key in values)]
    return (telling or list(rows))[0]["not_counted"]


def _tasks(args: argparse.Namespace) -> list[Row]:
    rows = []
    for name in registry.task_names():
        plugin = registry.task(name)
        row: Row = {"name": name, "summary": plugin.summary}
        rows.append({**row, **_settings(plugin, "task", name)} if args.json else row)
    return rows


def _of_group(group: str, kind: str) -> Callable[[argparse.Namespace], list[Row]]:
    """Rows of what the plugins have of a kind, then of the YAML files of the group that are none of these."""

    def rows(args: argparse.Namespace) -> list[Row]:
        found: list[Row] = []
        owners: dict[str, TaskPlugin] = {}
        for task in registry.task_names():
            plugin = registry.task(task)
            for name, summary in getattr(plugin, kind)().items():
                owners[name] = plugin
                row: Row = {"name": name, "task": task, "summary": summary}
                found.append({**row, **_settings(plugin, group, name)} if args.json else row)
        for name in compose.options(group):
            if name in owners:
                continue
            base = compose.compose([f"{group}={name}"], recipe=False)[group]["name"]
            owner = owners.get(base)
            row = {"name": name, "task": owner.name if owner else None, "summary": compose.comments(group, name)}
            found.append({**row, **_settings(owner, group, name, base)} if args.json else row)
        return found

    return rows


def _settings(plugin: TaskPlugin | None, group: str, name: str, base: str | None = None) -> Row:
    """``settings`` as :func:`vlplatform.settings.describe` has them, and ``values``, what the group's file sets.

    Settings are null where the plugin does not have the optional method ``settings_class(group, name)``.
    """
    given = compose.compose([f"{group}={name}"], recipe=False)[group]
    find: Callable[[str, str], type[Any] | None] | None = getattr(plugin, "settings_class", None)
    found = find(group, base or name) if find else None
    described = settings.describe(found) if found else None
    for entry in (described or {}).values():
        if dataclasses.is_dataclass(default := entry.get("default")) and not isinstance(default, type):
            entry["default"] = dataclasses.asdict(default)
    return {"settings": described, "values": {key: value for key, value in given.items() if key != "name"}}


def _of_plugins(kind: str) -> Callable[[argparse.Namespace], list[Row]]:
    def rows(_: argparse.Namespace) -> list[Row]:
        return [
            {"name": name, "task": task, "summary": summary}
            for task in registry.task_names()
            for name, summary in getattr(registry.task(task), kind)().items()
        ]

    return rows


def _recipes(_: argparse.Namespace) -> list[Row]:
    return [{"name": name, "summary": compose.comments("recipe", name)} for name in compose.options("recipe")]


LISTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "attn": _attn,
    "tasks": _tasks,
    "models": _of_group("model", "models"),
    "data": _of_group("data", "data_sets"),
    "metrics": _of_plugins("metrics"),
    "recipes": _recipes,
}


def _size(text: str, socket: str | None) -> tuple[int, int, int]:
    """Channels, height and width; so many tokens have a height of 1."""
    if socket is None:
        raise UserError(f"--cost needs --socket, one of {', '.join(attention.SOCKETS)}: what is counted depends on it.")
    over_tokens = socket in ("token", "fusion")
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)(?:x([1-9]\d*))?", text)
    if not match or (match[3] is None and not over_tokens):
        form = "width x tokens, as in 512x196" if over_tokens else "channels x height x width, as in 256x96x96"
        raise UserError(f"--cost {text} is not a size for the {socket} socket: write {form}.")
    channels, first, second = int(match[1]), int(match[2]), match[3]
    return (channels, 1, first) if second is None else (channels, first, int(second))


def _cell(row: Row, column: str) -> str:
    """What a table for people shows; a socket with the name of the family whose member the mechanism is there."""
    if column == "sockets":
        families = row["families"]
        return ", ".join(f"{s} ({families[s]})" if s in families else s for s in row["sockets"])
    return _readable(row[column]) if column == "macs" else _shown(row[column])


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _readable(count: int | None) -> str:
    """A large number to three digits and more: ``2.63 G``."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count is not None and count >= size:
            return f"{count / size:.2f} {unit}"
    return _shown(count)
