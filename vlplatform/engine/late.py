"""Scores that other programs compute beside the next updates: kept, continued after a resumption, and collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlplatform.task import Late, Score, Task


@dataclass(frozen=True)
class Collected:
    """Late scores that have come.

    Attributes:
        kind: ``eval`` or ``average``, of the evaluation they belong to.
        step: The update after which it was.
        score: All scores of that evaluation.
        values: Those of them that came late.
    """

    kind: str
    step: int
    score: Score
    values: dict[str, float]


class LateScores:
    """The scores on their way of one evaluation at most; only the main process has any.

    They are collected at fixed places of a run (before the next evaluation, and at the end) and not when they happen
    to be ready, so that every repetition of the run writes the same lines.
    """

    def __init__(self) -> None:
        self._late: Late | None = None
        self._early: set[str] = set()
        self._of: dict[str, Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What is on its way."""
        return self._late.names if self._late is not None else ()

    def take(self, task: Task, kind: str, step: int, predictions: Sequence[Mapping[str, Any]]) -> Score:
        """The scores of the predictions without the late ones, which are kept here on their way."""
        score = task.score(predictions)
        if score.late is not None:
            self._hold(score.late, score, {"kind": kind, "step": step, "predictions": list(predictions)})
        return replace(score, late=None)

    def pending(self) -> dict[str, Any] | None:
        """What :meth:`again` needs, JSON-ready, for a checkpoint; None where nothing is on its way."""
        return self._of if self._late is not None else None

    def again(self, task: Task, pending: Mapping[str, Any]) -> None:
        """Begin once more what was on its way when a checkpoint was written."""
        score = task.score(pending["predictions"])
        whole = replace(score, late=None)  # where the programs are not there any more, its notes say so
        self._hold(score.late or Late((), lambda: whole, lambda: None), score, dict(pending))

    def collect(self) -> Collected | None:
        """Wait for what is on its way; None where nothing is."""
        if self._late is None:
            return None
        late, self._late = self._late, None
        score = late.scores()
        values = {name: value for name, value in score.values.items() if name not in self._early}
        return Collected(self._of["kind"], self._of["step"], score, values)

    def stop(self) -> None:
        """End what is on its way, without its scores."""
        if self._late is not None:
            self._late.stop()
        self._late = None

    def _hold(self, late: Late, score: Score, of: dict[str, Any]) -> None:
        self._late, self._early, self._of = late, set(score.values), of
