"""Numbers of words as fairseq gives them: ``<s>`` 0, ``<pad>`` 1, ``</s>`` 2, ``<unk>`` 3, then by frequency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vlp_translation.lines import read_lines
from vlplatform.errors import UserError
from vlplatform.text import Vocabulary
from vlplatform.text.subwords import Pieces

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")


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

    Raises:
        UserError: No such file, a faulty line, or a word twice.
    """
    words: dict[str, int] = {}
    for number, line in read_lines(path):
        word, _, count = line.rstrip(" ").rpartition(" ")
        if not word or not count.isdecimal():
            raise UserError(f"{path}, line {number}, is '{line:.60}': a word, a blank and its count are expected.")
        if word in words or word in SPECIALS:
            other = f"line {words[word]}" if word in words else "the special symbols"
            raise UserError(f"{path}, line {number}, has the word '{word}' of {other} again: leave it out once.")
        words[word] = number
    if not words:
        raise UserError(f"{path} has no words: give the dict.txt that fairseq-preprocess wrote.")
    return of_words(list(words), pieces)
