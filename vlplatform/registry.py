"""Task plugins by name, found through the entry-point group ``vlplatform.tasks``."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points

from vlplatform.errors import UserError, nearest
from vlplatform.task import TaskPlugin

GROUP = "vlplatform.tasks"


def task_names() -> list[str]:
    """Names of all installed task plugins; none is imported."""
    return sorted({point.name for point in _points()})


def task(name: str) -> TaskPlugin:
    """The plugin of the task ``name``.

    Raises:
        UserError: No such task, two packages claim the name, or its package cannot be imported (the cause is named).
    """
    points: list[EntryPoint] = list({p.value: p for p in _points() if p.name == name}.values())
    if not points:
        raise UserError(f"task={name} is not installed: {nearest(name, task_names())}.")
    if len(points) > 1:
        raise UserError(f"task={name} is claimed by {' and '.join(p.value for p in points)}; uninstall one.")
    try:
        return points[0].load()
    except ImportError as error:
        raise UserError(f"task={name} ({points[0].value}) cannot be imported: {error}.") from error


@functools.cache
def _points() -> tuple[EntryPoint, ...]:
    """The entry points of the group; reading them looks at every installed package."""
    return tuple(entry_points(group=GROUP))
