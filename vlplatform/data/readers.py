"""The reader of a data set by its name, with its settings checked; each task has readers of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlplatform import settings
from vlplatform.errors import UserError, nearest


def open_named(readers: Mapping[str, Any], name: str, values: Mapping[str, Any], what: str) -> Any:
    """What the reader's ``open_data`` makes of its settings.

    Args:
        readers: Name → module with ``Settings`` and ``open_data``.
        name: Of the reader.
        values: The section ``data`` less its ``name``.
        what: What these readers read, for the message (``captions``).

    Raises:
        UserError: Unknown reader or setting, a wrong type, or data that are not where they should be.
    """
    if name not in readers:
        raise UserError(f"data.name={name} is not a reader of {what}: {nearest(name, readers)}.")
    reader = readers[name]
    return reader.open_data(settings.parse(reader.Settings, values, "data"))
