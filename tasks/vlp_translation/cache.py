"""Folders that are computed once: by the first process that asks, whole or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlplatform.errors import UserError
from vlplatform.hub.atomic import written_aside


def built_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """``folder``, filled by ``build`` if it is not there yet.

    Processes that ask at once wait for the first. An interrupted build leaves nothing that a later one would take.

    Args:
        folder: Named by everything that its contents depend on.
        build: Fills an empty folder.

    Raises:
        UserError: It cannot be written.
    """
    from filelock import FileLock

    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not folder.is_dir():
                    with written_aside(folder) as aside:
                        build(aside)
    except OSError as error:
        raise UserError(
            f"{folder.parent} cannot be written ({error.strerror or error}): make room there, or name another folder "
            "with VLP_CACHE."
        ) from error
    return folder


def digest_of(*parts: Any) -> str:
    """Sixteen hexadecimal digits that differ where JSON-ready ``parts`` do."""
    whole = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]
