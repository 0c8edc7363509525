"""A folder that is there whole or not at all: written aside, synced, and put in place by a rename."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path


@contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """An empty folder to fill; at the end of the ``with`` block it takes the place of ``folder`` and its contents.

    After an exception ``folder`` is as it was. What a killed process left beside it is swept away the next time.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(f".{escape(folder.name)}.*.part"):
        shutil.rmtree(leftover, ignore_errors=True)
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    aside.mkdir()
    try:
        yield aside
        for path in (*aside.rglob("*"), aside):
            _sync(path)
        _put_in_place(aside, folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)  # the half-written folder, or the old one after the exchange


def _put_in_place(aside: Path, folder: Path) -> None:
    if not folder.exists():
        aside.rename(folder)
    elif not _exchange(aside, folder):  # without the system call there is a moment with no folder at all
        old = folder.with_name(f"{aside.name.removesuffix('.part')}.old.part")
        folder.rename(old)
        try:
            aside.rename(folder)
        except OSError:
            old.rename(folder)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two paths in one step (Linux ``renameat2``); False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # another system, or an older C library
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0


def _sync(path: Path) -> None:
    if path.is_dir() and os.name != "posix":
        return  # only POSIX opens folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
