"""Caption files on disk, read with every fault named: the file, the record, the remedy."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

from vlp_captioning.readers.records import Item
from vlplatform.errors import UserError


def read_text(path: Path) -> str:
    """The text of a file, also of one compressed with gzip (.gz).

    Raises:
        UserError: It is missing, damaged, or no UTF-8.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing: put it there, or name the right file (vlp list data shows the settings).")
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text ({error}): copy it again, or save it as UTF-8.") from error


def read_json(path: Path) -> Any:
    """The contents of a JSON file, also of one compressed with gzip (.gz).

    Raises:
        UserError: It is missing, or no JSON (cut off, for instance).
    """
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path} is no JSON ({error}): it may be cut off; copy or save it again.") from error


def inside(name: Any, where: str) -> str:
    """A path out of a file of the data set, relative to its folder, with forward slashes.

    Raises:
        UserError: It is no text, or leaves the folder.
    """
    if not isinstance(name, str) or not name:
        raise UserError(f"{where} has {name!r} where the name of a picture must be: write a path as text.")
    plain = PurePosixPath(name.replace("\\", "/"))
    if plain.is_absolute() or ".." in plain.parts or not plain.parts or ":" in plain.parts[0]:
        raise UserError(f"{where} names '{name}', which lies outside its folder: list paths relative to that folder.")
    return plain.as_posix()


def item(id: Any, source: Any, captions: Any, where: str, tokens: Any = None, *, file: bool = True) -> Item:
    """An item from values of a file, checked.

    Args:
        id: Text or a whole number.
        source: A path below the folder of the pictures; with ``file`` false any text.
        captions: A list of texts.
        where: File and record, for messages.
        tokens: Lists of words, one for each caption, or None.
        file: Whether ``source`` is a path.

    Raises:
        UserError: Another type.
    """
    if isinstance(id, bool) or not isinstance(id, (str, int)) or id == "":
        raise UserError(f"{where} has the image id {id!r}: write text or a whole number.")
    if not isinstance(captions, (list, tuple)) or not all(isinstance(caption, str) for caption in captions):
        raise UserError(f"{where} has {captions!r:.80} where the captions must be: write a list of texts.")
    if tokens is not None and not (
        isinstance(tokens, list)
        and len(tokens) == len(captions)
        and all(isinstance(words, list) and all(isinstance(word, str) for word in words) for words in tokens)
    ):
        raise UserError(f"{where} has tokens that do not fit its captions: give a list of words for each, or none.")
    words = None if tokens is None else tuple(map(tuple, tokens))
    return Item(str(id), inside(source, where) if file else str(source), tuple(captions), words)


def rows(value: Any, where: str) -> list[dict[str, Any]]:
    """A JSON list of objects.

    Raises:
        UserError: It is something else.
    """
    if not isinstance(value, list):
        raise UserError(f"{where} is no list of records: check that it is the right file.")
    for number, row in enumerate(value):
        if not isinstance(row, dict):
            raise UserError(f"{where}[{number}] is {row!r:.40}, not a record of names and values: mend or remove it.")
    return value


def need(row: dict[str, Any], key: str, where: str) -> Any:
    """``row[key]``.

    Raises:
        UserError: It is missing.
    """
    if key not in row:
        raise UserError(f"{where} lacks '{key}' (it has {', '.join(map(str, row)) or 'nothing'}): add it.")
    return row[key]
