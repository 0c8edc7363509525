"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlplatform.errors import UserError


def write_whole(path: Path, data: bytes) -> None:
    """Write ``path`` aside, sync it, and rename it into place."""
    aside = path.with_name(f".tmp-{path.name}")
    try:
        write_synced(aside, data)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write ``path`` and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in ``folder`` are on the disk (where the system can: not on Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_bytes(value: Any) -> bytes:
    """``value`` as readable JSON."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


@contextmanager
def space_needed(folder: Path) -> Iterator[None]:
    """Turn "no space left" into a :class:`UserError`; what was saved before is untouched."""
    try:
        yield
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not full and "No space left on device" not in str(error):  # safetensors' own error carries it as text
            raise
        raise UserError(
            f"No space left on the disk of {folder}: free some and continue with resume=auto "
            "(everything saved before is intact)."
        ) from error
