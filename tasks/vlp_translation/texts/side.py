"""One language's way between a line and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vlp_translation.texts.bpe import Bpe
from vlp_translation.texts.sentence_pieces import SentencePieces
from vlp_translation.texts.whole import WholeWords
from vlp_translation.texts.wording import Wording
from vlplatform.errors import UserError, nearest
from vlplatform.text import Vocabulary
from vlplatform.text.subwords import Pieces


class Splitter(Protocol):
    """Words into pieces."""

    pieces: Pieces
    """How the pieces join."""

    def split(self, words: Sequence[str]) -> list[str]:
        """The pieces of a line's words."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, with its ``kind``."""
        ...


@dataclass(frozen=True)
class Side:
    """The source's language, or the target's.

    Attributes:
        wording: Between lines and words.
        splitter: From words to pieces.
        vocabulary: Between pieces and numbers.
    """

    wording: Wording
    splitter: Splitter
    vocabulary: Vocabulary

    @property
    def language(self) -> str:
        """Code of two letters."""
        return self.wording.language

    def words(self, line: str) -> list[str]:
        """The line's words in their normal form, before they are split: what tokenised BLEU compares."""
        return self.wording.words(line)

    def pieces(self, line: str) -> list[str]:
        """The pieces that the line's numbers stand for."""
        return self.splitter.split(self.words(line))

    def encode(self, line: str) -> list[int]:
        """The line's numbers, without begin and end; none for an empty line."""
        return self.vocabulary.encode(self.pieces(line))

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """The words up to the end symbol, pieces joined."""
        return self.vocabulary.decode(numbers)

    def detokenised(self, words: Sequence[str]) -> str:
        """The words as people would write them."""
        return self.wording.line(words)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; :meth:`from_dict` makes the same side again."""
        parts = {"splitter": self.splitter.as_dict(), "vocabulary": self.vocabulary.as_dict()}
        return {"wording": self.wording.as_dict(), **parts}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Side:
        """From what :meth:`as_dict` gave.

        Raises:
            UserError: It cannot be read.
        """
        try:
            wording = Wording.from_dict(values["wording"])
            splitter, vocabulary = _splitter(values["splitter"]), Vocabulary.from_dict(values["vocabulary"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the saved texts cannot be read ({error!r}): save the model again.") from error
        return cls(wording, splitter, vocabulary)


def _splitter(values: Mapping[str, Any]) -> Splitter:
    kind = values["kind"]
    if kind == "words":
        return WholeWords()
    if kind == "bpe":
        return Bpe.from_dict(values)
    if kind == "sentencepiece":
        return SentencePieces.from_dict(values)
    raise UserError(f"the saved texts split words by '{kind}': {nearest(kind, ('bpe', 'sentencepiece', 'words'))}.")
