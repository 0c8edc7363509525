"""A run's folder as the report needs it. Files that are missing or cut short are told, never fatal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlplatform.engine.report.text import is_number

EVALUATIONS = ("val", "test")
"""Kinds of lines that may hold their scores directly instead of under ``values``."""


@dataclass(frozen=True)
class Scores:
    """The scores of one split: number by name, table → row → number, and what a reader must know of them."""

    values: dict[str, Any]
    per_class: dict[str, dict[str, Any]]
    notes: tuple[str, ...] = ()


@dataclass
class Run:
    """What was found in the folder.

    Attributes:
        name: The folder's name.
        settings: ``settings.json``, nested.
        environment: ``environment.json``.
        final: ``metrics.json``; empty while the run is not finished.
        train: Training lines of ``metrics.jsonl`` and ``timings.jsonl`` by step, ascending; a step that was
            done again after a resume counts once, as it was last.
        evals: Split → evaluation lines, ascending by step.
        problems: What could not be read, in sentences.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    final: dict[str, Any] = field(default_factory=dict)
    train: list[dict[str, Any]] = field(default_factory=list)
    evals: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def scores(self) -> dict[str, Scores]:
        """Split → its final scores, or those of the last evaluation where there are no final ones."""
        split = str(self.final.get("split", "val"))
        found = {split: self.final} if "values" in self.final else self.final
        scores = {str(key): _scores(value) for key, value in found.items() if _has_values(value)}
        flat = {key: value for key, value in self.final.items() if is_number(value)}
        if not scores and flat and "values" not in self.final:
            scores = {split: Scores(flat, {})}
        return scores or {split: _scores(lines[-1]) for split, lines in self.evals.items()}

    def headline(self) -> tuple[str, str] | None:
        """Split and name of the score that stands for the run: the selecting one, else the first."""
        scores = self.scores()
        wanted = str(self.final.get("best_metric", "")).lstrip("-")
        for split, score in scores.items():
            if wanted in score.values:
                return split, wanted
        return next(((split, name) for split, score in scores.items() for name in score.values), None)

    def section(self, group: str) -> dict[str, Any]:
        """The settings of one group; a bare name counts as ``{"name": …}``."""
        value = self.settings.get(group)
        return value if isinstance(value, dict) else {} if value is None else {"name": value}


def read_run(folder: Path) -> Run:
    """Read the folder of a run."""
    run = Run(folder.resolve().name)
    run.settings, run.environment, run.final = (
        _read_json(folder / f"{name}.json", run.problems) for name in ("settings", "environment", "metrics")
    )
    if not run.final:
        run.problems = [problem for problem in run.problems if not problem.startswith("metrics.json is missing")]
    steps: dict[int, dict[str, Any]] = {}
    evals: dict[str, dict[int, dict[str, Any]]] = {}
    for path in (folder / "metrics.jsonl", folder / "timings.jsonl"):
        for line in _read_lines(path, run.problems):
            step = line.get("step")
            if not is_number(step):
                continue
            if line.get("kind", "train") in EVALUATIONS and "values" not in line:
                line = {
                    "split": line["kind"],
                    "values": {k: v for k, v in line.items() if k not in ("kind", "step")},
                    **line,
                }
            if line.get("kind") == "late":
                _add_late(evals.get(str(line.get("split", "val")), {}).get(line.get("of_step", -1), {}), line)
            elif isinstance(line.get("values"), dict):
                evals.setdefault(str(line.get("split", "val")), {})[int(step)] = line
            else:
                steps.setdefault(int(step), {}).update(line)
    run.train = [steps[step] for step in sorted(steps)]
    run.evals = {split: [lines[step] for step in sorted(lines)] for split, lines in evals.items()}
    return run


def _add_late(evaluation: dict[str, Any], line: Mapping[str, Any]) -> None:
    """Put scores that came late into the line of the evaluation that they belong to."""
    if line.get("of") == evaluation.get("kind") and isinstance(line.get("values"), dict):
        evaluation["values"] = {**evaluation["values"], **line["values"]}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys joined by dots; an empty mapping stays as it is."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _has_values(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(values := value.get("values"), dict) and bool(values)


def _scores(found: dict[str, Any]) -> Scores:
    values, tables, notes = found.get("values"), found.get("per_class"), found.get("notes")
    return Scores(
        values if isinstance(values, dict) else {},
        {str(k): v for k, v in tables.items() if isinstance(v, dict)} if isinstance(tables, dict) else {},
        tuple(map(str, notes)) if isinstance(notes, list) else (),
    )


def _read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{path.name} is missing.")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name} cannot be read: {error}.")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} does not hold a JSON object.")
        return {}
    return value


def _read_lines(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        if path.name == "metrics.jsonl":
            problems.append(f"{path.name} cannot be read: {error.strerror}.")
        return []
    found, broken = [], 0
    for line in lines:
        try:
            value = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            broken += 1
            continue
        if isinstance(value, dict):
            found.append(value)
    if broken:
        problems.append(f"{path.name} has {broken} unreadable line{'s' * (broken > 1)}, left out here.")
    return found
