"""WMT14: English-German and English-French news translation, from the published files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlp_translation.cache import digest_of
from vlp_translation.lines import read_lines
from vlp_translation.readers.files import Files, Lines, fingerprint_of, held_out, lines_of, numbered
from vlp_translation.readers.records import Pair, ParallelData
from vlp_translation.readers.segments import read_segments
from vlplatform.data.root import open_root
from vlplatform.errors import UserError

SUMMARY = "WMT14, English-German (4.5 million pairs) and English-French (36 million)"

CORPORA: dict[str, tuple[tuple[str, ...], ...]] = {
    "de-en": (
        ("europarl-v7.de-en",),
        ("commoncrawl.de-en",),
        ("news-commentary-v9.de-en", "news-commentary-v12.de-en"),
    ),
    "fr-en": (
        ("commoncrawl.fr-en",),
        ("europarl-v7.fr-en",),
        ("giga-fren.release2.fixed", "giga-fren.release2"),
        ("news-commentary-v9.fr-en",),
        ("undoc.2000.fr-en",),
    ),
}
"""Pair of languages → its corpora, each by the names it may have, the first that is there counts."""


Part = tuple[Files, Lines]
"""A pair of files, and how their lines are read."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of ``data=wmt14``.

    Attributes:
        root: Folder of the unpacked archives; files are looked for in all folders below it.
        source: Language to translate from: de, en, fr.
        target: Language to translate into.
        train: Names of the training files without their language (``europarl-v7.de-en``), to be read as one in this
            order; null: those of WMT14 that are there.
        val: Name of the validation files, plain text or .sgm.
        test: Name of the test files, plain text or .sgm.
        held_out: n: in place of ``val``, every n-th training pair is for validation (fairseq: 100 for English-German,
            1333 for English-French); null: none is.
    """

    root: str | None = None
    source: str = "en"
    target: str = "de"
    train: tuple[str, ...] | None = None
    val: str = "newstest2013"
    test: str = "newstest2014"
    held_out: int | None = None

    def __post_init__(self) -> None:
        if self.tag not in CORPORA:
            raise ValueError(f"source={self.source} and target={self.target} must be en and de, or en and fr")
        if self.held_out is not None and self.held_out < 2:
            raise ValueError(f"held_out={self.held_out} must be at least 2")

    @property
    def tag(self) -> str:
        """The pair of languages as the files have it."""
        return "-".join(sorted((self.source, self.target), key=lambda language: (language == "en", language)))


def open_data(settings: Settings) -> ParallelData:
    """The splits ``train``, ``val`` and ``test``, as far as their files are there.

    Raises:
        UserError: The folder is not there, or no file of training and test data is.
    """
    root = open_root(settings.root, "the unpacked archives (europarl-v7.de-en.de, …)")
    tree = _Tree(root, (settings.source, settings.target))
    if settings.train is not None:
        names = list(settings.train)
    else:
        names = [found for each in CORPORA[settings.tag] if (found := next(filter(tree.plain, each), None)) is not None]
    training = [(name, tree.plain(name)) for name in names]
    if missing := [name for name, files in training if files is None]:
        raise UserError(f"data.root={settings.root} lacks {missing[0]}.{settings.source} or its translation: add them.")
    splits: dict[str, list[Part]] = {"train": [(files, read_lines) for _, files in training if files is not None]}
    for split, name in (("val", settings.val), ("test", settings.test)):
        files = tree.evaluation(name, settings.tag.replace("-", ""))
        splits[split] = [] if files is None else [files]
    if settings.held_out is not None:
        splits["val"] = splits["train"]
    splits = {split: parts for split, parts in splits.items() if parts}
    if not splits:
        raise UserError(
            f"data.root={settings.root} holds no files of WMT14 in {settings.source} and {settings.target}."
        )
    news = _News(splits, settings.held_out)
    return ParallelData(
        name="wmt14",
        languages=(settings.source, settings.target),
        read=news.read,
        fingerprint=news.fingerprint,
        splits=tuple(splits),
        licence="as the sources of WMT14 say: research",
        citation="Bojar et al.: Findings of the 2014 workshop on statistical machine translation, W14-3302, 2014",
        notes=(f"the training text is {', '.join(names)}",) if names else (),
    )


class _Tree:
    """Files by their names, wherever they lie below a folder."""

    def __init__(self, root: Path, languages: tuple[str, str]) -> None:
        self.languages = languages
        self.paths: dict[str, Path] = {}
        for path in sorted(root.rglob("*")):
            if path.is_file():
                self.paths.setdefault(path.name.removesuffix(".gz"), path)

    def plain(self, name: str) -> Files | None:
        """``NAME.en`` and ``NAME.de``."""
        return self._both(*(f"{name}.{language}" for language in self.languages))

    def evaluation(self, name: str, tag: str) -> Part | None:
        """Plain files, or ``NAME-deen-src.en.sgm`` and ``NAME-deen-ref.de.sgm``, with the infix or without."""
        if files := self.plain(name):
            return files, read_lines
        source, target = self.languages
        for infix in (f"-{tag}", ""):
            if files := self._both(f"{name}{infix}-src.{source}.sgm", f"{name}{infix}-ref.{target}.sgm"):
                return files, read_segments
        return None

    def _both(self, source: str, target: str) -> Files | None:
        return (self.paths[source], self.paths[target]) if source in self.paths and target in self.paths else None


class _News:
    def __init__(self, splits: Mapping[str, Sequence[Part]], every: int | None) -> None:
        self.splits, self.every = splits, every

    def read(self, split: str) -> Iterator[Pair]:
        """The pairs of a split."""
        lines = (line for files, read in self.splits[split] for line in lines_of(files, read))
        if self.every is not None and split != "test":
            lines = held_out(lines, self.every, split == "val")
        return numbered(lines)

    def fingerprint(self, split: str) -> str:
        """A hash of the files and of the split."""
        return digest_of(split, self.every, *(fingerprint_of(files, read) for files, read in self.splits[split]))
