"""IWSLT14: talks, from the published archive, cleaned and split as fairseq's script does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from vlp_translation.cache import built_once, digest_of
from vlp_translation.lines import find, read_lines
from vlp_translation.readers.files import Files, fingerprint_of, held_out, lines_of, numbered
from vlp_translation.readers.records import Pair, ParallelData
from vlp_translation.readers.segments import read_segments
from vlp_translation.texts.moses import Moses
from vlplatform.data import cache_folder
from vlplatform.data.root import open_root
from vlplatform.errors import UserError

SUMMARY = "IWSLT14, 160,000 sentences of talks, German and English"

TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
"""What makes up the test set, in this order."""

_SKIPPED = ("<url>", "<talkid>", "<keywords>")
_TAGS = ("<title>", "</title>", "<description>", "</description>")
_LONGEST, _RATIO, _HELD_OUT = 175, 1.5, 23
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of ``data=iwslt14``.

    Attributes:
        root: Folder of the unpacked archive ``de-en.tgz``: train.tags.de-en.de, IWSLT14.TED.tst2010.de-en.de.xml, ….
        source: Language to translate from.
        target: Language to translate into.
        clean: Leave out training pairs of more than 175 Moses tokens, or of a ratio above 1.5, before every 23rd goes
            into ``val``, as fairseq's script does; counted once, which takes minutes, then cached. Without it every
            pair of the archive counts, so that the splits differ from fairseq's.
    """

    root: str | None = None
    source: str = "de"
    target: str = "en"
    clean: bool = True


def open_data(settings: Settings) -> ParallelData:
    """The splits ``train``, ``val`` and ``test``.

    Raises:
        UserError: The folder or one of its files is not there.
    """
    root = open_root(settings.root, "train.tags.de-en.de, train.tags.de-en.en and IWSLT14.TED.*.xml")
    languages = (settings.source, settings.target)
    tag = next(
        (tag for tag in ("-".join(languages), "-".join(languages[::-1])) if _files(root, "train.tags", tag)), None
    )
    if tag is None:
        raise UserError(
            f"data.root={settings.root} lacks train.tags.{'-'.join(languages)}.{languages[0]} or its translation: give "
            "the folder of the unpacked archive."
        )
    talks = _Talks(root, tag, languages, settings.clean)
    missing = [name for name in TESTS if name not in talks.tests]
    if not talks.tests:
        raise UserError(f"data.root={settings.root} has no IWSLT14.{TESTS[0]}.{tag}.{languages[0]}.xml or the like.")
    return ParallelData(
        name="iwslt14",
        languages=languages,
        read=talks.read,
        fingerprint=talks.fingerprint,
        licence="CC BY-NC-ND 3.0, as TED talks",
        citation="Cettolo et al.: Report on the 11th IWSLT evaluation campaign, 2014",
        notes=(f"the test set lacks {', '.join(missing)}, which are not in {root}",) if missing else (),
    )


def _files(root: Path, stem: str, tag: str, languages: Sequence[str] = (), ending: str = "") -> Files | None:
    source, target = (find(root / f"{stem}.{tag}.{language}{ending}") for language in languages or tag.split("-"))
    return (source, target) if source is not None and target is not None else None


class _Talks:
    def __init__(self, root: Path, tag: str, languages: tuple[str, str], clean: bool) -> None:
        self.languages, self.clean = languages, clean
        training = _files(root, "train.tags", tag, languages)
        assert training is not None
        self.training = training
        found = {name: _files(root, f"IWSLT14.{name}", tag, languages, ".xml") for name in TESTS}
        self.tests = {name: files for name, files in found.items() if files is not None}

    def read(self, split: str) -> Iterator[Pair]:
        """The pairs of a split."""
        if split == "test":
            return numbered(line for files in self.tests.values() for line in lines_of(files, read_segments))
        lines = lines_of(self.training, _sentences)
        if self.clean:
            lines = (line for line, kept in zip(lines, self._kept) if kept)
        return numbered(held_out(lines, _HELD_OUT, split == "val"))

    def fingerprint(self, split: str) -> str:
        """A hash of the files and of the split."""
        if split == "test":
            parts = [fingerprint_of(files, read_segments) for files in self.tests.values()]
        else:
            parts = [fingerprint_of(self.training)]
        return digest_of(split, self.clean, _VERSION, *parts)

    @cached_property
    def _kept(self) -> list[bool]:
        """Whether each training pair is clean."""
        source, target = (Moses(language).words for language in self.languages)

        def clean(a: str, b: str | None) -> bool:
            m, n = len(source(a)), len(target(b or ""))
            return 0 < m <= _LONGEST and 0 < n <= _LONGEST and max(m, n) <= _RATIO * min(m, n)

        def build(folder: Path) -> None:
            np.save(folder / "kept.npy", [clean(a, b) for a, b, _ in lines_of(self.training, _sentences)])

        name = f"iwslt14-{digest_of(fingerprint_of(self.training), self.languages, _VERSION)}"
        what = "preparing data=iwslt14: training pairs are looked through for clean ones, once"
        folder = built_once(cache_folder() / "translation" / name, build, what)
        return np.load(folder / "kept.npy", allow_pickle=False).tolist()


def _sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Titles, descriptions and sentences."""
    for number, line in read_lines(path):
        if not any(mark in line for mark in _SKIPPED):
            for tag in _TAGS:
                line = line.replace(tag, "")
            yield number, line
