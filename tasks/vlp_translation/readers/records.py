"""What every reader makes: ``ParallelData``, a stream of sentence pairs for each split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from vlplatform.errors import UserError, nearest

SPLITS: tuple[str, ...] = ("train", "val", "test")


@dataclass(frozen=True)
class Pair:
    """A line and its translation.

    Attributes:
        id: Unique in its split.
        source: The line to translate; may be empty.
        target: Its translation, if there is one.
        where: ``FILE, line N``, for messages.
    """

    id: str
    source: str
    target: str | None
    where: str


def _nothing(_: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True, kw_only=True)
class ParallelData:
    """An opened data set.

    Attributes:
        name: The reader's name.
        languages: Codes of the source's and the target's language.
        read: Split → its pairs, streamed; raises UserError where they are damaged.
        fingerprint: Split → a hash of its contents and of how they are read; raises UserError where the files do not
            fit each other (unequal numbers of lines).
        splits: The names that ``read`` takes.
        licence: In a few words.
        citation: In a few words.
        notes: Choices made on the user's behalf, to be shown.
        passed_over: Split → notes on lines that ``read`` passes over.
    """

    name: str
    languages: tuple[str, str]
    read: Callable[[str], Iterable[Pair]]
    fingerprint: Callable[[str], str]
    splits: tuple[str, ...] = SPLITS
    licence: str = ""
    citation: str = ""
    notes: tuple[str, ...] = ()
    passed_over: Callable[[str], Sequence[str]] = _nothing

    def pairs(self, split: str) -> Iterator[Pair]:
        """The pairs of a split, one by one.

        Raises:
            UserError: No such split, or its files are damaged.
        """
        self.need(split)
        return iter(self.read(split))

    def check(self, splits: Sequence[str] | None = None) -> None:
        """Look whether the files of all splits (or of some) fit each other, without reading a word of them.

        Raises:
            UserError: They do not, a file is missing, or there is no such split.
        """
        for split in self.splits if splits is None else splits:
            self.need(split)
            self.fingerprint(split)

    def need(self, split: str) -> None:
        """Make sure that there is such a split.

        Raises:
            UserError: There is none.
        """
        if split not in self.splits:
            raise UserError(f"data={self.name} has no split '{split}': {nearest(split, self.splits)}.")
