"""Lines of text files, plain or gzip, one by one: ends at line feeds alone, whatever Unicode calls an end of line."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO

from vlplatform.errors import UserError


def find(path: Path) -> Path | None:
    """``path``, or with ``.gz`` behind it, whichever is there."""
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    return None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Pairs (line number from 1, line without its end); a byte order mark at the file's start is dropped.

    Raises:
        UserError: The file cannot be read, or a line is not UTF-8.
    """
    with _opened(path) as file:
        for number, raw in enumerate(file, 1):
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            raw = raw.removesuffix(b"\n").removesuffix(b"\r")
            try:
                yield number, raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}, line {number}, is not UTF-8 (byte {error.start + 1} is 0x{raw[error.start]:02x}): "
                    "convert the file to UTF-8."
                ) from error


def measure(path: Path) -> tuple[str, int]:
    """Hash of what the file holds, unpacked, and its number of lines.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        about = path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): give an existing file.") from error
    return _measure(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=256)
def _measure(path: Path, _size: int, _changed: int) -> tuple[str, int]:
    digest, count, last = hashlib.sha256(), 0, b"\n"
    with _opened(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            count += block.count(b"\n")
            last = block[-1:]
    return digest.hexdigest(), count + (last != b"\n")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]  # both read bytes
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read ({why}): check that it is whole.") from error
