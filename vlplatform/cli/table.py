"""Score tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table


def print_scores(
    values: Mapping[str, float | None],
    per_class: Mapping[str, Mapping[str, float | None]],
    notes: Sequence[str] = (),
    whose: str = "",
) -> None:
    """Print the scores and the notes on them, then one table with a row per class and a column per per-class score.

    ``whose`` says what was scored.
    """
    console = Console()
    if whose:  # a line of its own: a title would be broken to the width of the numbers
        console.print(f"scores of {whose}", markup=False, highlight=False, soft_wrap=True)
    scores = Table(title=None if whose else "scores", title_justify="left")
    scores.add_column("score")
    scores.add_column("value", justify="right")
    for name, value in values.items():
        scores.add_row(name, _shown(value))
    console.print(scores)
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    if not per_class:
        return
    classes = Table(title="per class", title_justify="left")
    classes.add_column("class")
    for name in per_class:
        classes.add_column(name, justify="right")
    for row in dict.fromkeys(row for column in per_class.values() for row in column):
        classes.add_row(row, *(_shown(column.get(row)) for column in per_class.values()))
    console.print(classes)


def _shown(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4f}"
