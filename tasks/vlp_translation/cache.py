"""Folders that are computed once: by the first process that asks, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlplatform.errors import UserError
from vlplatform.hub.atomic import written_aside

SILENT_SECONDS = 2.0
"""After so much time it is said what is being built."""


def built_once(folder: Path, build: Callable[[Path], None], what: str) -> Path:
    """``folder``, filled by ``build`` if it is not there yet.

    Processes that ask at once wait for the first, which says on standard error what it does if that takes long. An
    interrupted build leaves nothing that a later one would take.

    Args:
        folder: Named by everything that its contents depend on.
        build: Fills an empty folder.
        what: What is built: ``preparing …``.

    Raises:
        UserError: It cannot be written.
    """
    from filelock import FileLock

    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not folder.is_dir():
                    with _said(what), written_aside(folder) as aside:
                        build(aside)
    except OSError as error:
        raise UserError(
            f"{folder.parent} cannot be written ({error.strerror or error}): make room there, or name another folder "
            "with VLP_CACHE."
        ) from error
    return folder


@contextmanager
def _said(what: str) -> Iterator[None]:
    timer = threading.Timer(SILENT_SECONDS, lambda: print(f"{what} …", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def digest_of(*parts: Any) -> str:
    """Sixteen hexadecimal digits that differ where JSON-ready ``parts`` do."""
    whole = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]
