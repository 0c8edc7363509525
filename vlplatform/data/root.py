"""The folder of a data set that lies on the user's disk."""

from __future__ import annotations

from pathlib import Path

from vlplatform.errors import UserError


def open_root(root: str | None, holds: str) -> Path:
    """The data set's folder.

    Args:
        root: The setting ``data.root``.
        holds: What must be in it, for messages.

    Raises:
        UserError: ``data.root`` is not given, is no folder, or is empty.
    """
    if root is None:
        raise UserError(f"data.root must be given: add data.root=FOLDER, the one that holds {holds}.")
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise UserError(f"data.root={root} is not a folder: give the one that holds {holds}.")
    if next(folder.iterdir(), None) is None:
        raise UserError(f"data.root={root} is empty: it must hold {holds}.")
    return folder
