"""Words and their numbers, with the special symbols wherever a checkpoint has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from vlplatform.errors import UserError
from vlplatform.text.subwords import Pieces, join

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"


@dataclass(frozen=True)
class Vocabulary:
    """Words by number.

    Special symbols may share a number: X-LAN's 0 is padding, begin and end at once.

    Attributes:
        words: The words, special symbols included, in the order of their numbers.
        pad: Number of the filler behind a sentence.
        bos: Number of the symbol that starts a sentence.
        eos: Number of the symbol that ends it.
        unk: Number that stands for unknown words; None: they are left out.
        pieces: Whether the entries are words, or pieces of words that join in some way.

    Raises:
        UserError: A word twice, or a symbol's number that no word has.
    """

    words: tuple[str, ...]
    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int | None = 3
    pieces: Pieces = "words"
    _numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = {word: number for number, word in enumerate(self.words)}
        if len(numbers) != len(self.words):
            twice = Counter(self.words).most_common(1)[0][0]
            raise UserError(f"the vocabulary has the word '{twice}' twice: give each once.")
        for name in ("pad", "bos", "eos", "unk"):
            number = getattr(self, name)
            if number is not None and not 0 <= number < len(self.words):
                raise UserError(f"the vocabulary's {name}={number} is no number of its {len(self.words)} words.")
        object.__setattr__(self, "_numbers", numbers)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def specials(self) -> frozenset[int]:
        """The numbers of the special symbols."""
        return frozenset(n for n in (self.pad, self.bos, self.eos, self.unk) if n is not None)

    def encode(self, words: Sequence[str]) -> list[int]:
        """The words' numbers, without begin and end; a word that spells a special symbol counts as unknown."""
        found = []
        specials = self.specials
        for word in words:
            number = self._numbers.get(word, self.unk)
            if number in specials:
                number = self.unk
            if number is not None:
                found.append(number)
        return found

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """The words up to the end symbol, without padding and begin; unknown words as the symbol's own word.

        Pieces are joined into words.
        """
        found: list[str] = []
        for number in numbers:
            if number == self.eos:
                break
            if number not in (self.pad, self.bos):
                found.append(self.words[number])
        return join(found, self.pieces)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; :meth:`from_dict` makes the same vocabulary again."""
        symbols = {"pad": self.pad, "bos": self.bos, "eos": self.eos, "unk": self.unk}
        return {"words": list(self.words), **symbols, "pieces": self.pieces}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Vocabulary:
        """From what :meth:`as_dict` gave.

        Raises:
            UserError: A key is missing or of another type.
        """
        try:
            symbols = {name: values[name] for name in ("pad", "bos", "eos", "unk")}
            words = tuple(map(str, values["words"]))
        except (KeyError, TypeError) as error:
            raise UserError(f"the saved vocabulary cannot be read ({error!r}): save the model again.") from error
        wrong = {k: v for k, v in symbols.items() if not (isinstance(v, int) or (k == "unk" and v is None))}
        if wrong:
            raise UserError(f"the saved vocabulary's symbols are no numbers ({wrong}): save the model again.")
        pieces = values.get("pieces", "words")
        if pieces not in get_args(Pieces):
            raise UserError(f"the saved vocabulary has pieces={pieces!r}, which is none: save the model again.")
        return cls(words, **symbols, pieces=pieces)

    @classmethod
    def build(
        cls,
        sentences: Iterable[Sequence[str]],
        *,
        min_count: int = 1,
        max_size: int | None = None,
        pieces: Pieces = "words",
    ) -> Vocabulary:
        """The words that occur often enough, the most frequent first, equally frequent ones by the alphabet.

        Args:
            sentences: Tokenised sentences.
            min_count: Words seen less often are unknown (MD-SAN: 5, X-Linear: 6).
            max_size: At most so many words, the four symbols not counted.
            pieces: How the entries join, where they are pieces of words.

        Raises:
            UserError: No word is left.
        """
        counts = Counter(word for sentence in sentences for word in sentence)
        ranked = sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
        words = [word for word in ranked if word not in (PAD, BOS, EOS, UNK)][:max_size]
        if not words:
            raise UserError(f"no word occurs {min_count} times in the training text: lower the minimum count.")
        return cls((PAD, BOS, EOS, UNK, *words), pieces=pieces)
