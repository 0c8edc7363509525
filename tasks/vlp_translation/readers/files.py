"""Pairs of text files, line by line; several pairs of files may make up one split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from vlp_translation.cache import digest_of
from vlp_translation.lines import measure, read_lines
from vlp_translation.readers.records import Pair
from vlplatform.errors import UserError

Files = tuple[Path, Path | None]
"""The source's file and the target's, which may be missing where nothing is to be compared."""

Lines = Callable[[Path], Iterable[tuple[int, str]]]
"""A file → pairs (line number, line)."""

Triple = tuple[str, str | None, str]
"""Source, target if there is one, and where they stand."""


class FilePairs:
    """Splits of line-parallel files.

    Args:
        splits: Split → its pairs of files, read one after the other.
    """

    def __init__(self, splits: Mapping[str, Sequence[Files]]) -> None:
        self.splits = splits

    def read(self, split: str) -> Iterator[Pair]:
        """The pairs of a split; their ids are their numbers, from 1.

        Raises:
            UserError: A damaged file, or unequal numbers of lines.
        """
        return numbered(line for files in self.splits[split] for line in lines_of(files))

    def fingerprint(self, split: str) -> str:
        """A hash of the files' contents.

        Raises:
            UserError: A file cannot be read, or unequal numbers of lines.
        """
        return digest_of(*(fingerprint_of(files) for files in self.splits[split]))


def numbered(lines: Iterable[Triple]) -> Iterator[Pair]:
    """Pairs of (source, target, where), their ids counted from 1."""
    for number, (source, target, where) in enumerate(lines, 1):
        yield Pair(str(number), source, target, where)


def held_out(lines: Iterable[Triple], every: int, held: bool) -> Iterator[Triple]:
    """Each ``every``-th of the lines, or with ``held=False`` all others."""
    return (line for number, line in enumerate(lines, 1) if (number % every == 0) == held)


def lines_of(files: Files, read: Lines = read_lines) -> Iterator[Triple]:
    """Triples (source, target, where) of two files read side by side.

    Raises:
        UserError: A damaged file, or one that ends before the other.
    """
    source, target = files
    if target is None:
        yield from ((line, None, f"{source}, line {number},") for number, line in read(source))
        return
    for first, second in zip_longest(read(source), read(target)):
        if first is None or second is None:
            raise unequal(source, sum(1 for _ in read(source)), target, sum(1 for _ in read(target)))
        yield first[1], second[1], f"{source}, line {first[0]},"


def fingerprint_of(files: Files, read: Lines = read_lines) -> list[str]:
    """The hashes of two files.

    Args:
        files: The pair.
        read: How lines are found in them; as many must be found in either, whatever markup is around them.

    Raises:
        UserError: A file cannot be read, or unequal numbers of lines.
    """
    source, target = files
    if target is None:
        return [measure(source)[0]]
    (a, m), (b, n) = measure(source), measure(target)
    if read is not read_lines:  # those are counted already
        m, n = (sum(1 for _ in read(path)) for path in (source, target))
    if m != n:
        raise unequal(source, m, target, n)
    return [a, b]


def unequal(source: Path, m: int, target: Path, n: int) -> UserError:
    """What to say of files that do not run parallel."""
    return UserError(f"{source} has {m} lines, but {target} has {n}: line i of one must translate line i of the other.")
