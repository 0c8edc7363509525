"""A user's own pairs: JSON lines of {source, target} or {translation: {en: …, de: …}}."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlp_translation.cache import digest_of
from vlp_translation.lines import measure, read_lines
from vlp_translation.readers.records import SPLITS, Pair, ParallelData
from vlplatform.errors import UserError, nearest

SUMMARY = "your own pairs: files of JSON lines, {source, target} or {translation: {en, de}} each"

_EXAMPLE = '{"source": "a dog", "target": "ein Hund"}'
_KEYS = ("source", "target", "translation", "id")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of ``data=jsonl``.

    Attributes:
        source: Language to translate from, a code of two letters.
        target: Language to translate into.
        file: File of JSON lines to train on, with the keys source and target, or with translation, which has a text
            under each language's code; id (the number of the line by default) may be added. Plain or ``.gz``.
        val_file: The same for the validation split.
        test_file: The same for the test split; target may be missing, where nothing is to be compared.
        licence: The data's licence, for reports and model cards.
        citation: How the data want to be cited, for reports and model cards.
    """

    source: str
    target: str
    file: str | None = None
    val_file: str | None = None
    test_file: str | None = None
    licence: str = ""
    citation: str = ""


def open_data(settings: Settings) -> ParallelData:
    """The splits that files are given for.

    Raises:
        UserError: None is, or a file is not there.
    """
    names = zip(SPLITS, (settings.file, settings.val_file, settings.test_file))
    files = {split: Path(name).expanduser() for split, name in names if name is not None}
    if not files:
        raise UserError(f"data.file, data.val_file or data.test_file must be given: lines such as {_EXAMPLE}.")
    for path in files.values():
        if not path.is_file():
            raise UserError(f"there is no file {path}: give one of lines such as {_EXAMPLE}.")
    rows = _Rows(files, (settings.source, settings.target))
    return ParallelData(
        name="jsonl",
        languages=rows.languages,
        read=rows.read,
        fingerprint=rows.fingerprint,
        splits=tuple(files),
        licence=settings.licence,
        citation=settings.citation,
        passed_over=rows.passed_over,
    )


class _Rows:
    def __init__(self, files: dict[str, Path], languages: tuple[str, str]) -> None:
        self.files, self.languages = files, languages

    def fingerprint(self, split: str) -> str:
        """A hash of the file."""
        return digest_of(measure(self.files[split])[0])

    def passed_over(self, split: str) -> list[str]:
        """How many lines are blank, if any is."""
        path = self.files[split]
        blank = [number for number, line in read_lines(path) if not line.strip()]
        return [f"blank lines left out: {len(blank)} (the first: {path}, line {blank[0]})"] if blank else []

    def read(self, split: str) -> Iterator[Pair]:
        """The pairs of a file; blank lines are left out."""
        for number, line in read_lines(self.files[split]):
            if line.strip():
                where = f"{self.files[split]}, line {number},"
                row = _row(line, where)
                id = str(row.get("id", number))
                source, target = _texts(row, self.languages, where)
                _check_letters((id, source, target or ""), where)
                if target is None and split != "test":
                    raise UserError(f"{where} has no translation into {self.languages[1]}: write {_EXAMPLE}.")
                yield Pair(id, source, target, where)


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # no JSON, or a number of thousands of digits
        raise UserError(f"{where} is no JSON that can be read ({error}): write {_EXAMPLE}.") from error
    if not isinstance(row, dict):
        raise UserError(f"{where} is no JSON object: write {_EXAMPLE}.")
    if unknown := sorted(set(row) - set(_KEYS)):
        raise UserError(f"{where} has the key '{unknown[0]}': {nearest(unknown[0], _KEYS)}.")
    return row


def _texts(row: dict[str, Any], languages: tuple[str, str], where: str) -> tuple[str, str | None]:
    if "translation" in row:
        texts, keys = row["translation"], languages
        if not isinstance(texts, dict):
            raise UserError(f"{where} has a translation that is no object: write {{{languages[0]!r}: …}}.")
    else:
        texts, keys = row, ("source", "target")
    source, target = (texts.get(key) for key in keys)
    if not isinstance(source, str) or not isinstance(target, str | None):
        key = keys[0] if not isinstance(source, str) else keys[1]
        raise UserError(f"{where} has no text under '{key}' (it has {', '.join(texts) or 'nothing'}): add it.")
    return source, target


def _check_letters(texts: Iterable[str], where: str) -> None:
    if any("\ud800" <= letter <= "\udfff" for text in texts for letter in text):  # JSON may escape a lone half
        raise UserError(f"{where} has half of a surrogate pair (\\ud800 … \\udfff), which is no character: mend it.")
