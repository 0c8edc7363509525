"""A user's own text files, line by line: line i of one translates line i of the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vlp_translation.lines import find
from vlp_translation.readers.files import FilePairs, Files
from vlp_translation.readers.records import SPLITS, ParallelData
from vlplatform.errors import UserError

SUMMARY = "your own text files, line i of one translating line i of the other"

Given = str | tuple[str, ...] | None
"""A prefix of two files, the two files, or for ``test`` the source's alone."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of ``data=text``.

    Attributes:
        source: Language to translate from, a code of two letters; Moses has rules for it, or takes those of English.
        target: Language to translate into.
        train: ``PREFIX`` for the files PREFIX.en and PREFIX.de, or ``[FILE,FILE]``, source first; plain or ``.gz``.
        val: The same for validation.
        test: The same for the test; ``[FILE]``, the source alone, to translate without comparing.
        licence: The data's licence, for reports and model cards.
        citation: How the data want to be cited, for reports and model cards.
    """

    source: str
    target: str
    train: Given = None
    val: Given = None
    test: Given = None
    licence: str = ""
    citation: str = ""


def open_data(settings: Settings) -> ParallelData:
    """The splits that files are given for.

    Raises:
        UserError: None is, or a file is not there.
    """
    given = {split: getattr(settings, split) for split in SPLITS if getattr(settings, split) is not None}
    if not given:
        raise UserError(
            "data.train, data.val or data.test must be given: add data.train=PREFIX or data.train=[FILE,FILE]."
        )
    languages = (settings.source, settings.target)
    files = FilePairs({split: [_files(split, value, languages)] for split, value in given.items()})
    return ParallelData(
        name="text",
        languages=languages,
        read=files.read,
        fingerprint=files.fingerprint,
        splits=tuple(given),
        licence=settings.licence,
        citation=settings.citation,
    )


def _files(split: str, given: str | tuple[str, ...], languages: tuple[str, str]) -> Files:
    names = [f"{given}.{language}" for language in languages] if isinstance(given, str) else list(given)
    most = 1 if split == "test" else 2
    if not most <= len(names) <= 2:
        raise UserError(f"data.{split}={names} must name two files, the source's first: data.{split}=[FILE,FILE].")
    found: list[Path] = []
    for name in names:
        path = find(Path(name).expanduser())
        if path is None:
            raise UserError(f"data.{split}: there is no file {name} (nor {name}.gz): give PREFIX or [FILE,FILE].")
        found.append(path)
    return found[0], found[1] if len(found) == 2 else None
