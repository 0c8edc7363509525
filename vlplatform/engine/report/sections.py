"""The parts of the page that are words and tables: header, scores, settings, environment, command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

from vlplatform.engine.report.pictures import swatch
from vlplatform.engine.report.read import Run, Scores, flatten
from vlplatform.engine.report.text import escape, is_number, number, scored
from vlplatform.task import Exhibit

GROUPS = ("task", "attn", "model", "data")
SCENES = (
    "These scores are on Scenes, the small generated world that comes with the library. It is a yardstick for code: "
    "scores on it are never comparable to published results, nor to scores on any real data."
)
UNFINISHED = "This run has no final scores yet: what is shown is its last evaluation."
NAMES = {"miou": "mIoU", "iou": "IoU", "f1": "F1", "mean_f1": "mean F1", "lr": "learning rate"}


def header(run: Run) -> str:
    """Name, headline score, status, and what was trained on what."""
    status = str(run.final.get("status") or ("finished" if run.final else "not finished"))
    css = "good" if status in ("finished", "done", "complete", "completed") else "warn"
    parts = [
        '<div><p class="eyebrow">vlplatform · report of a run</p>',
        f"<h1>{escape(run.name)}</h1>",
        f'<p><span class="pill {css}">{escape(status)}</span></p></div>',
    ]
    if headline := run.headline():
        split, name = headline
        value = run.scores()[split].values[name]
        parts.append(
            f'<div class="headline"><strong>{number(value)}</strong>'
            f"<span>{escape(title(name))} on {escape(split)}</span></div>"
        )
    facts = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in _facts(run).items())
    return f'<header>{"".join(parts)}</header><dl class="facts">{facts}</dl>'


def notes(run: Run) -> str:
    """What a reader must know before quoting a number."""
    told = [SCENES] * (str(run.section("data").get("name")) == "scenes")
    told += [UNFINISHED] * (not run.final and bool(run.evals))
    return "".join(f'<p class="note" role="note">{escape(text)}</p>' for text in told + run.problems)


def scores(run: Run, exhibits: Sequence[Exhibit]) -> str:
    """Per split a table of scores and one of classes, with bars where all is within [0, 1]."""
    colours = {name: colour for exhibit in exhibits for name, colour in exhibit.legend.items()}
    whose = scored(run.final)
    captions = {str(run.final.get("split", "val")): f"Of {whose}"} if whose else {}
    parts = [_scores_of(captions.get(split, f"On {split}"), found, colours) for split, found in run.scores().items()]
    return "".join(parts) or '<p class="empty">The run was not evaluated.</p>'


def settings(run: Run) -> str:
    """One folded table per group; the run's own settings first."""
    own = {key: value for key, value in run.settings.items() if not isinstance(value, Mapping)}
    groups = {"run": own} | {key: value for key, value in run.settings.items() if isinstance(value, Mapping)}
    return "".join(_folded(name, values) for name, values in groups.items() if values) or _NOTHING


def environment(run: Run) -> str:
    """Versions, devices and whatever else was recorded."""
    return _folded("environment", run.environment) if run.environment else _NOTHING


def command(run: Run) -> str:
    """The recorded command, or one that spells out every setting."""
    recorded = next((run.environment[key] for key in ("command", "argv") if run.environment.get(key)), None)
    if isinstance(recorded, list):
        recorded = shlex.join(str(word) for word in recorded)
    return f'<pre class="command" tabindex="0"><code>{escape(recorded or _spelled_out(run))}</code></pre>'


def title(name: str) -> str:
    """A key in a reader's words."""
    return NAMES.get(name, name.replace("_", " "))


_NOTHING = '<p class="empty">Not recorded.</p>'


def _choices(run: Run) -> dict[str, str]:
    return {group: str(run.section(group)["name"]) for group in GROUPS if run.section(group).get("name")}


def _facts(run: Run) -> dict[str, str]:
    found = {"task": "Task", "attn": "Attention", "model": "Model", "data": "Data"}
    facts = {found[group]: name for group, name in _choices(run).items()}
    if (seed := run.settings.get("seed")) is not None:
        facts["Seed"] = str(seed)
    steps = [line["step"] for line in [*run.train, *(line for lines in run.evals.values() for line in lines)]]
    if steps:
        facts["Steps"] = number(max(steps))
    recorded = {**run.environment, **run.final}
    for key, name in (("parameters", "Parameters"), ("best_step", "Best at step"), ("device", "Device")):
        if (value := recorded.get(key)) is not None and not isinstance(value, (dict, list)):
            facts[name] = number(value) if is_number(value) else str(value)
    if initial := run.final.get("initial_weights"):
        facts["Initial weights"] = str(initial)
    if isinstance(device := recorded.get("device"), dict):
        count = device.get("processes", 1)
        facts["Device"] = f"{device.get('name') or device.get('type')}{f' × {count}' if count != 1 else ''}"
    if speeds := [value for line in run.train if is_number(value := line.get("samples_per_second"))]:
        facts["Samples per second"] = number(round(median(speeds), 1))
    facts["Written"] = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    return facts


def _scores_of(caption: str, found: Scores, colours: Mapping[str, Sequence[int]]) -> str:
    values = {name: value for name, value in found.values.items() if value is None or is_number(value)}
    rows = "".join(
        f'<tr><th scope="row">{escape(title(k))}</th>{_cell(v, _within(values))}</tr>' for k, v in values.items()
    )
    tables = [f'<table class="scores"><caption>{escape(caption)}</caption><tbody>{rows}</tbody></table>'] * bool(rows)
    if found.per_class:
        tables.append(_per_class(found.per_class, colours))
    told = "".join(f'<p class="empty">{escape(note)}</p>' for note in found.notes)
    return f'<div class="card tables">{"".join(tables)}</div>{told}'


def _per_class(tables: Mapping[str, Mapping[str, Any]], colours: Mapping[str, Sequence[int]]) -> str:
    head = "".join(f'<th scope="col">{escape(title(name))}</th>' for name in tables)
    bars = {name: _within(column) for name, column in tables.items()}
    body = []
    for row in dict.fromkeys(row for column in tables.values() for row in column):
        dot = swatch(colours[row]) if row in colours else ""
        cells = "".join(_cell(column.get(row), bars[name]) for name, column in tables.items())
        body.append(f'<tr><th scope="row"><span>{dot}{escape(row)}</span></th>{cells}</tr>')
    return (
        f'<table class="scores"><caption>Per class</caption><thead><tr><th scope="col">class</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def _within(values: Mapping[str, Any]) -> bool:
    """Whether every defined value lies in [0, 1], so that bars mean something."""
    return all(0 <= value <= 1 for value in values.values() if is_number(value) and value == value)


def _cell(value: Any, bar: bool) -> str:
    if not is_number(value) or value != value:
        return '<td title="not defined">–</td>'
    if not bar:
        return f"<td>{number(value)}</td>"
    return f'<td><span class="bar"><span style="width:{value:.1%}"></span></span>{value:.4f}</td>'


def _folded(name: str, values: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(_plain(value))}</td></tr>'
        for key, value in flatten(values).items()
    )
    return (
        f"<details><summary>{escape(name)} <small>{len(flatten(values))}</small></summary>"
        f'<table class="plain"><tbody>{rows}</tbody></table></details>'
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _spelled_out(run: Run) -> str:
    words = ["accelerate", "launch", "run.py", *(f"{group}={name}" for group, name in _choices(run).items())]
    for key, value in flatten(run.settings).items():
        group, _, rest = key.partition(".")
        if (group in GROUPS and rest in ("", "name")) or key in ("name", "out", "resume", "overwrite") or value == {}:
            continue
        words.append(f"{key}={_plain(value)}")
    return shlex.join(words)
