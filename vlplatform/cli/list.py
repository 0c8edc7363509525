"""``vlp list``: what there is, for people (a table) and programs (``--json``)."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from vlplatform import attention, registry
from vlplatform.cli import compose
from vlplatform.errors import UserError

HELP = "List mechanisms, tasks, models, data sets, scores or recipes."
EPILOG = """examples:
  vlp list attn
  vlp list attn --json
  vlp list attn --socket local --cost 256x96x96   (channels x height x width: parameters, multiply-adds)
  vlp list data --json"""


SHOWN = ("name", "sockets", "task", "summary", "params", "macs")
"""Columns of the tables for people; ``--json`` has them all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to list, and for mechanisms the socket and the size to count costs at."""
    parser.add_argument("what", choices=sorted(LISTS), help="what to list")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--socket", choices=attention.SOCKETS, help="only mechanisms that fit this socket")
    parser.add_argument("--cost", metavar="CxHxW", help="add params and macs at this size (with --socket)")


def run(args: argparse.Namespace) -> int:
    """Print the list; exit code 0."""
    rows = LISTS[args.what](args)
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    table = Table()
    columns = [c for c in (rows[0] if rows else {}) if c in SHOWN]
    for column in columns:
        plain = column in ("summary", "paper")
        table.add_column(column, no_wrap=not plain, justify="right" if column in ("params", "macs") else "left")
    for row in rows:
        table.add_row(*(_shown(row[column]) for column in columns))
    Console().print(table)
    return 0


def _attn(args: argparse.Namespace) -> list[dict[str, Any]]:
    size = _size(args.cost) if args.cost else None
    if size and args.socket not in ("local", "context"):
        raise UserError("--cost needs --socket local or --socket context: it counts over a feature map.")
    rows = []
    for mechanism in attention.catalogue().values():
        if args.socket and args.socket not in mechanism.sockets:
            continue
        row: dict[str, Any] = {
            "name": mechanism.name,
            "sockets": list(mechanism.sockets),
            "families": dict(mechanism.families),
            "summary": mechanism.summary,
            "paper": mechanism.paper,
            "equations": mechanism.equations,
            "settings": mechanism.settings(),
        }
        if size:
            channels, height, width = size
            operator: Any = attention.build(mechanism.name, dim=channels, socket=args.socket)
            row["params"] = sum(p.numel() for p in operator.parameters())
            row["macs"] = operator.macs(height, width)
        rows.append(row)
    return rows


def _tasks(_: argparse.Namespace) -> list[dict[str, Any]]:
    return [{"name": name, "summary": registry.task(name).summary} for name in registry.task_names()]


def _of_plugins(kind: str) -> Callable[[argparse.Namespace], list[dict[str, Any]]]:
    def rows(_: argparse.Namespace) -> list[dict[str, Any]]:
        return [
            {"name": name, "task": task, "summary": summary}
            for task in registry.task_names()
            for name, summary in getattr(registry.task(task), kind)().items()
        ]

    return rows


def _recipes(_: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for name in compose.options("recipe"):
        text = (compose.configs() / "recipe" / f"{name}.yaml").read_text(encoding="utf-8")
        comments = [line.lstrip("# ") for line in text.splitlines() if line.startswith("# ") and "@package" not in line]
        rows.append({"name": name, "summary": " ".join(comments)})
    return rows


LISTS: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {
    "attn": _attn,
    "tasks": _tasks,
    "models": _of_plugins("models"),
    "data": _of_plugins("data_sets"),
    "metrics": _of_plugins("metrics"),
    "recipes": _recipes,
}


def _size(text: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise UserError(f"--cost {text} is not a size: write channels x height x width, as in 256x96x96.")
    channels, height, width = map(int, match.groups())
    return channels, height, width


def _shown(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, dict):
        return ", ".join(f"{family} ({socket})" for socket, family in value.items())
    return str(value)
