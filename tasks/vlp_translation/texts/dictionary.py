"""Numbers of words as fairseq gives them: ``<s>`` 0, ``<pad>`` 1, ``</s>`` 2, ``<unk>`` 3, then by frequency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vlp_translation.lines import read_lines
from vlplatform.errors import UserError
from vlplatform.text import Vocabulary
from vlplatform.text.subwords import Pieces

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")

_OVERWRITE = " #fairseq:overwrite"


def of_words(words: Sequence[str], pieces: Pieces) -> Vocabulary:
    """The vocabulary of the special symbols and ``words``.

    Raises:
        UserError: A word twice.
    """
    return Vocabulary((*SPECIALS, *words), bos=0, pad=1, eos=2, unk=3, pieces=pieces)


def of_counts(counts: Mapping[str, int], min_count: int, pieces: Pieces) -> Vocabulary:
    """The most frequent first, equally frequent ones by the alphabet.

    Raises:
        UserError: None occurs ``min_count`` times.
    """
    kept = [piece for piece, count in counts.items() if count >= min_count and piece not in SPECIALS]
    if not kept:
        raise UserError(f"no word occurs {min_count} times in the training text: lower task.text.min_count.")
    return of_words(sorted(kept, key=lambda piece: (-counts[piece], piece)), pieces)


def read_dictionary(path: Path, pieces: Pieces) -> Vocabulary:
    """The vocabulary of fairseq's dict.txt: a word, a blank and a count on each line.

    A line that ends with ``#fairseq:overwrite`` may have a word again. As in fairseq both keep their numbers and the
    later one has the word from then on; a special symbol keeps its own. The other is named so that no text has it.

    Raises:
        UserError: No such file, a faulty line, or a word twice.
    """
    entries: list[str] = []
    places: dict[str, int] = {}
    for number, line in read_lines(path):
        given = line.rstrip(" ")
        entry = given.removesuffix(_OVERWRITE)
        word, _, count = entry.rpartition(" ")
        if not word or not count.isdecimal():
            raise UserError(f"{path}, line {number}, is '{line:.60}': a word, a blank and its count are expected.")
        special = word in SPECIALS
        if (special or word in places) and entry == given:
            other = "the special symbols" if special else f"line {places[word] + 1}"
            raise UserError(f"{path}, line {number}, has the word '{word}' of {other} again: leave it out once.")
        if word in places:
            entries[places[word]] = f"{word} (line {places[word] + 1})"  # words of a text have no blanks
        places[word] = len(entries)
        entries.append(f"{word} (line {number})" if special else word)
    if not entries:
        raise UserError(f"{path} has no words: give the dict.txt that fairseq-preprocess wrote.")
    return of_words(entries, pieces)
