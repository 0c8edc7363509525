"""Byte-pair encoding as subword-nmt writes it: ``un@@ known`` is one word of two pieces.

Sennrich, Haddow, Birch: Neural machine translation of rare words with subword units, ACL 2016. Merges are learnt by the
library tokenizers; applied here, because that library drops characters it has not seen, which must stay pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from vlplatform.errors import UserError
from vlplatform.text.subwords import Pieces

END = "</w>"
"""Marks the last symbol of a word in the merges."""

GOES_ON = "@@"
"""Behind a piece: the word goes on."""

_REMEMBERED = 1_000_000  # words whose pieces are kept at hand
_LONGEST = 1000  # letters that are merged at once: the time grows with their square


class Bpe:
    """Words as pieces by a list of merges, the earliest that fits first.

    Args:
        merges: Pairs of symbols, written ``left right``.
        end_apart: Whether the end of a word is a symbol of its own (subword-nmt before 0.2).
    """

    pieces: Pieces = "bpe"

    def __init__(self, merges: Sequence[str], *, end_apart: bool = False) -> None:
        self.merges, self.end_apart = tuple(merges), end_apart
        self._ranks: dict[tuple[str, ...], int] = {}
        for rank, merge in enumerate(self.merges):
            self._ranks.setdefault(tuple(merge.split(" ")), rank)
        self._found: dict[str, tuple[str, ...]] = {}

    def split(self, words: Sequence[str]) -> list[str]:
        """The pieces of the words."""
        found: list[str] = []
        for word in words:
            pieces = self._found.get(word)
            if pieces is None:
                if len(self._found) >= _REMEMBERED:
                    self._found.clear()
                pieces = self._found[word] = self._split(word)
            found += pieces
        return found

    def _split(self, word: str) -> tuple[str, ...]:
        letters = [*word, END] if self.end_apart else [*word[:-1], word[-1] + END]
        parts = [self._merged(letters[start : start + _LONGEST]) for start in range(0, len(letters), _LONGEST)]
        symbols = [symbol for part in parts for symbol in part]
        if symbols[-1] == END:
            symbols.pop()
        else:
            symbols[-1] = symbols[-1].removesuffix(END)
        if symbols[-1].endswith(GOES_ON):  # such a last piece would read as one that goes on
            symbols[-1:] = [*symbols[-1]]
        return (*(symbol + GOES_ON for symbol in symbols[:-1]), symbols[-1])

    def _merged(self, symbols: list[str]) -> list[str]:
        while len(symbols) > 1:
            pairs = list(pairwise(symbols))
            left, right = best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self.merges)))
            if best not in self._ranks:
                break
            merged, place = [], 0
            while place < len(symbols):
                fits = place + 1 < len(symbols) and symbols[place] == left and symbols[place + 1] == right
                merged.append(left + right if fits else symbols[place])
                place += 1 + fits
            symbols = merged
        return symbols

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"kind": "bpe", "merges": list(self.merges), "end_apart": self.end_apart}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Bpe:
        """From what :meth:`as_dict` gave."""
        return cls(values["merges"], end_apart=values["end_apart"])

    @classmethod
    def learn(cls, counts: Mapping[str, int], size: int) -> Bpe:
        """``size`` merges, or fewer where no pair occurs twice; the same for the same counts.

        Args:
            counts: How often each word occurs.
            size: Number of merges.

        Raises:
            UserError: tokenizers is not installed.
        """
        try:
            from tokenizers import Tokenizer, models, pre_tokenizers, trainers
        except ImportError as error:
            raise UserError("byte-pair encoding needs tokenizers: pip install vlplatform[translation].") from error
        finals = _final_letters(counts)
        spelt = {word[:-1] + finals[word[-1]]: count for word, count in counts.items()}
        tokenizer: Any = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        letters = {letter for word in spelt for letter in word}
        trainer = trainers.BpeTrainer(vocab_size=len(letters) + size, min_frequency=2, show_progress=False)
        tokenizer.train_from_iterator(_repeated(spelt), trainer)
        merges = json.loads(tokenizer.to_str())["model"]["merges"]
        back = {ord(letter): final + END for final, letter in finals.items()}
        pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
        return cls([pair.translate(back) for pair in pairs])


def _final_letters(words: Iterable[str]) -> dict[str, str]:
    """Letter that ends a word → a letter for private use that stands for it there and that no word has.

    The library's own marks of a word's end would do the same, but are numbered by chance, and the numbers decide
    between pairs that occur equally often: each run would learn other merges (huggingface/tokenizers, issue 1794).
    """
    words = set(words)
    taken = {letter for word in words for letter in word}
    free = (letter for letter in map(chr, range(0xF0000, 0x110000)) if letter not in taken)
    return dict(zip(sorted({word[-1] for word in words}), free))


def _repeated(counts: Mapping[str, int], most: int = 10_000) -> Iterator[str]:
    """Each word as often as it occurs, on lines of ``most`` words."""
    for word in sorted(counts):
        whole, rest = divmod(counts[word], most)
        for times in (*[most] * whole, rest):
            yield " ".join([word] * times)
