"""``vlp train``: compose the settings, build the task, train it, print the scores and the report's path."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import textwrap
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlplatform import attention, registry, settings
from vlplatform.cli import compose, table
from vlplatform.cli.arguments import Parser
from vlplatform.errors import UserError, nearest

HELP = "Train a task with an attention mechanism; writes runs/NAME with checkpoints, scores and report.html."
_DEFAULTS = (
    "  A task and a data set bring other defaults than these, from configs/base/TASK.yaml and",
    "  configs/recipe/TASK_DATA.yaml; what a run has in the end is in runs/NAME/settings.json.",
)


def add_arguments(parser: Parser) -> None:
    """The overrides; the end of the help teaches what can be overridden."""
    parser.any_setting = True
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="group choices and settings, see below"
    )
    parser.teaches = _taught


def run(args: argparse.Namespace) -> int:
    """Train; exit code 0, or 130 / 143 after a signal (the run is saved and can be continued)."""
    resolved = compose.compose(args.overrides)
    own = compose.run_settings(resolved)
    sections = {group: resolved[group] for group in compose.GROUPS}

    from vlplatform.engine import Interrupted, TrainerSettings, train  # after the checks: it loads accelerate
    from vlplatform.engine.report.text import scored

    try:
        trainer = settings.parse(TrainerSettings, sections["trainer"], "trainer")
    except UserError as error:
        raise UserError(f"{error}{_not_typed(str(error), args.overrides)}") from error
    task = registry.task(section_name(sections, "task")).build(sections)
    resolved.update({**task.sections, "trainer": settings.as_dict(trainer)})
    name = own.name or run_name(task.sections, own.seed)
    folder = Path(os.path.expanduser(own.out)) / name
    resolved["name"] = name
    try:
        metrics = train(
            task,
            trainer,
            folder,
            resolved=resolved,
            seed=own.seed,
            resume=os.path.expanduser(own.resume) if own.resume else own.resume,
            overwrite=own.overwrite,
        )
    except Interrupted as stop:
        if os.environ.get("RANK", "0") == "0":
            print(stop)
        return stop.exit_code
    if os.environ.get("RANK", "0") == "0":
        found = metrics.get("values", {}), metrics.get("per_class", {}), metrics.get("notes", ())
        table.print_scores(*found, whose=scored(metrics))
        print(f"report: {folder / 'report.html'}")
        print(f"model:  {folder / 'best'}   (vlp predict {folder} {getattr(task, 'predict_hint', 'INPUT…')})")
    return 0


def section_name(sections: Mapping[str, Mapping[str, Any]], group: str) -> str:
    """The ``name`` in a section, which every group's file sets."""
    name = sections[group].get("name")
    if not isinstance(name, str):
        raise UserError(f"{group}.name is missing: choose one with {group}=NAME.")
    return name


def run_name(sections: Mapping[str, Mapping[str, Any]], seed: int) -> str:
    """The default folder name of a run: task, model, mechanism, data and seed."""
    parts = [section_name(sections, group) for group in ("task", "model", "attn", "data")]
    return "-".join([*parts, f"seed{seed}"])


def _not_typed(fault: str, overrides: Sequence[str]) -> str:
    """What a fault of the trainer's settings lacks: which file has set those that it names and nobody typed."""
    origins = compose.origins(overrides)
    named = [name for name in dict.fromkeys(re.findall(r"\b(\w+)=", fault)) if name in origins]
    told = "; ".join(f"{origins[name]} sets {name}, trainer.{name}=… replaces it" for name in named)
    return f" ({told})" if told else ""


def _typed(default: Any) -> str:
    """A value as it would be typed: ``null``, ``true``, ``[0.9,0.999]``, ``{name:bilateral,window:11}``."""
    if isinstance(default, Mapping):
        return "{" + ",".join(f"{key}:{_typed(value)}" for key, value in default.items()) + "}"
    if isinstance(default, (list, tuple)):
        return f"[{','.join(map(_typed, default))}]"
    return "null" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _taught(overrides: Sequence[str]) -> str:
    """The groups and settings, with the values that these overrides give them; of groups chosen here theirs, too."""
    from vlplatform.engine.settings import TrainerSettings

    lines = ["groups (choose one of each):"]
    for group in (*compose.GROUPS, "recipe"):
        key = "+recipe=" if group == "recipe" else f"{group}="
        listed = ", ".join(compose.options(group))
        lines += textwrap.wrap(listed, 106, initial_indent=f"  {key:<9}", subsequent_indent=" " * 11)
    resolved = compose.compose(overrides) if overrides else {}
    if resolved:
        compose.run_settings(resolved)
        settings.parse(TrainerSettings, resolved["trainer"], "trainer")
    lines += ["", "of the run:", *_explained("", compose.RunSettings, resolved)]
    lines += ["", "of the trainer:", *(() if overrides else _DEFAULTS)]
    lines += _explained("trainer.", TrainerSettings, resolved.get("trainer", {}))
    chosen = {word.partition("=")[0].lstrip("+").partition(".")[0] for word in overrides}
    for group in [each for each in ("task", "model", "data", "attn") if each in chosen]:
        lines += _of_group(group, resolved)
    if overrides:
        lines += ["", f"The values are those of: vlp train {shlex.join(overrides)}"]
    lines += [
        "",
        "Settings of a task, model, data set or mechanism: choose it beside --help, as in",
        "  vlp train task=translation data=multi30k attn=bilateral --help",
        "or vlp list tasks --json, and likewise models, data, attn.",
        "",
        "examples:",
        "  vlp train task=segmentation attn=bilateral",
        "  vlp train attn=crisscross data=camvid data.root=CamVid trainer.steps=2000 seed=1",
        "  vlp train data=folder data.root=mine trainer=smoke     (is all in order? a few updates of a small model)",
        "  accelerate launch --num_processes 4 run.py attn=bilateral resume=auto",
    ]
    return "\n".join(lines)


def _of_group(group: str, resolved: Mapping[str, Any]) -> list[str]:
    """The settings of what is chosen in one group; of a family or ``auto`` those of each that it may become."""
    found, named = compose.settings_of(group, resolved), section_name(resolved, group)
    if not found:
        return ["", f"of {group}={named}: nothing that task={section_name(resolved, 'task')} tells"]
    known = {key for cls in found.values() for key in settings.describe(cls)}
    for key in resolved[group]:
        if key not in known and key != "name":
            raise UserError(f"{group}.{key} is not a setting of {group}={named}: {nearest(key, known)}.")
    lines: list[str] = []
    for name, cls in found.items():
        mechanism = attention.catalogue().get(name) if group == "attn" else None
        note = f" (socket {', '.join(mechanism.sockets)})" if mechanism else ""
        lines += ["", f"of {group}={name}{note}:", *_explained(f"{group}.", cls, resolved[group])]
    if group == "attn":
        lines += ["", "A model's own default for a mechanism, as a window, goes before the default shown here."]
    return lines


def _explained(prefix: str, cls: type[Any], given: Mapping[str, Any]) -> list[str]:
    """Per setting its name with the value ``given`` or its default, its type, and its help; groups' settings, too."""
    lines: list[str] = []
    for name, entry in settings.describe(cls).items():
        value = given.get(name, entry.get("default"))
        help_lines = textwrap.wrap(entry.get("help", ""), 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
        if dataclasses.is_dataclass(hint := typing.get_type_hints(cls)[name]) and isinstance(hint, type):
            if not isinstance(value, Mapping) and name in given:
                raise UserError(f"{prefix}{name}={_typed(value)} must be a group of settings ({prefix}{name}.…=…).")
            inner = value if isinstance(value, Mapping) else {} if value is None else vars(value)
            lines += [f"  {prefix}{name}.…", *help_lines, *_explained(f"{prefix}{name}.", hint, inner)]
        else:
            shown = f"={_typed(value)}" if name in given or "default" in entry else "=…, needed"
            lines += [f"  {prefix}{name}{shown}  ({entry['type']})", *help_lines]
    return lines
