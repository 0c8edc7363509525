"""What is learnt from the training text, or read from the files that the settings give instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from vlp_translation.texts.bpe import Bpe
from vlp_translation.texts.codes import read_codes
from vlp_translation.texts.dictionary import of_counts, of_words, read_dictionary
from vlp_translation.texts.sentence_pieces import SentencePieces
from vlp_translation.texts.settings import Files, TextSettings, of_side
from vlp_translation.texts.side import Side, Splitter
from vlp_translation.texts.truecase import Casing
from vlp_translation.texts.whole import WholeWords
from vlp_translation.texts.wording import Wording
from vlplatform.errors import UserError
from vlplatform.text import Vocabulary

if TYPE_CHECKING:
    from vlp_translation.readers import ParallelData

_LOOKED_AT = 1000  # training pairs by which a given dictionary is judged


class Lesson:
    """The parts of both sides, source first; each is learnt when it is asked for.

    Each pass streams over the training pairs; words are counted, lines never kept.

    Args:
        data: Where the training pairs come from.
        settings: What to learn, and what is given.
    """

    def __init__(self, data: ParallelData, settings: TextSettings) -> None:
        self.data, self.settings = data, settings

    def sides(self) -> tuple[Side, Side]:
        """Source and target.

        Raises:
            UserError: A given file is faulty or does not fit the training text, or there is nothing to learn from.
        """
        source, target = map(Side, self.wordings, self.splitters, self.vocabularies)
        if self.settings.dictionary is not None:
            for which, file in enumerate(_paths(self.settings.dictionary)):
                self._check((source, target)[which], which, file)
        return source, target

    @cached_property
    def wordings(self) -> list[Wording]:
        """How lines become words."""
        plain = [Wording.of(language, self.settings) for language in self.data.languages]
        if not self.settings.truecase:
            return plain
        casings = [Casing() for _ in plain]
        for lines in self._lines():
            for casing, wording, line in zip(casings, plain, lines):
                casing.add(wording.words(line))
        return [replace(wording, truecaser=casing.truecaser()) for wording, casing in zip(plain, casings)]

    @cached_property
    def counts(self) -> list[Counter[str]]:
        """How often each word occurs in the training text."""
        counts: list[Counter[str]] = [Counter() for _ in self.wordings]
        for lines in self._lines():
            for count, wording, line in zip(counts, self.wordings, lines):
                count.update(wording.words(line))
        return counts

    @cached_property
    def splitters(self) -> list[Splitter]:
        """How words become pieces."""
        settings = self.settings
        if settings.subwords == "words":
            return [WholeWords()] * 2
        if settings.subwords == "sentencepiece":
            return [SentencePieces.read(file) for file in _paths(settings.sentencepiece)]
        if settings.codes is not None:
            return [read_codes(file) for file in _paths(settings.codes)]
        if settings.joint:
            return [Bpe.learn(self.counts[0] + self.counts[1], settings.size)] * 2
        return [Bpe.learn(count, settings.size) for count in self.counts]

    @cached_property
    def vocabularies(self) -> list[Vocabulary]:
        """The numbers of pieces."""
        settings, splitters = self.settings, self.splitters
        if settings.dictionary is not None:
            return [read_dictionary(file, s.pieces) for file, s in zip(_paths(settings.dictionary), splitters)]
        models = [splitter for splitter in splitters if isinstance(splitter, SentencePieces)]
        if models:
            words = [model.words() for model in models]
            if settings.one_dictionary:
                words = [list(dict.fromkeys((*words[0], *words[1])))] * 2
            return [of_words(pieces, "sentencepiece") for pieces in words]
        counts = [_of_pieces(count, splitter) for count, splitter in zip(self.counts, splitters)]
        if settings.one_dictionary:
            counts = [counts[0] + counts[1]] * 2
        return [of_counts(count, settings.min_count, s.pieces) for count, s in zip(counts, splitters)]

    def _lines(self) -> Iterator[tuple[str, str]]:
        """The training pairs' lines; pairs with an empty side are left out."""
        some = False
        for pair in self.data.pairs("train"):
            if pair.target is None:
                raise UserError(f"{pair.where} has no translation to learn from: add it, or leave the line out.")
            if pair.source.strip() and pair.target.strip():
                some = True
                yield pair.source, pair.target
        if not some:
            raise UserError(f"data={self.data.name} has no sentence pair to train on: check its files.")

    def _check(self, side: Side, which: int, file: Path) -> None:
        """Make sure that a given dictionary knows the better part of the training text, source (0) or target (1)."""
        numbers = [n for lines in islice(self._lines(), _LOOKED_AT) for n in side.encode(lines[which])]
        known = sum(n != side.vocabulary.unk for n in numbers)
        if 2 * known < len(numbers):
            raise UserError(
                f"{file} knows {known} of the {len(numbers)} words or pieces of the first training lines in "
                f"{side.language}: it does not match, so give the dictionary that was made with these settings."
            )


def _paths(files: Files) -> list[Path]:
    """Source's and target's file."""
    return [Path(of_side(files, side) or "").expanduser() for side in range(2)]


def _of_pieces(counts: Counter[str], splitter: Splitter) -> Counter[str]:
    found: Counter[str] = Counter()
    for word, count in counts.items():
        for piece in splitter.split((word,)):
            found[piece] += count
    return found
