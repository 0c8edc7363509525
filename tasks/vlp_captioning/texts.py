"""Training captions as numbers: tokenisation, vocabulary, what is cut and what is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlp_captioning.readers import Item
from vlplatform.text import Vocabulary
from vlplatform.text.ptb import tokenize
from vlplatform.text.subwords import Pieces, split


@dataclass(frozen=True)
class TextSettings:
    """How captions become words.

    Attributes:
        tokens: ``own``: the data set's own tokenisation where it has one (Karpathy's), else PTB; ``ptb``: PTB rules in
            Python for all, the same on every machine.
        subwords: A tokeniser of transformers (folder or hub id) whose pieces of words take the place of words;
            ``tokens`` has no part then.
        min_count: Words seen less often in the training captions are unknown (MD-SAN: 5, X-LAN: 6, ACF: 5).
        max_words: Words of the longest training caption; longer ones are cut.
    """

    tokens: Literal["own", "ptb"] = "own"
    subwords: str | None = None
    min_count: int = 5
    max_words: int = 60

    def __post_init__(self) -> None:
        if self.min_count < 1 or self.max_words < 1:
            raise ValueError(f"min_count={self.min_count} and max_words={self.max_words} must be at least 1")


@dataclass(frozen=True)
class Texts:
    """The captions of a split.

    Attributes:
        words: Per item its captions, each a list of words; an item may have none.
        cut: How many captions were cut to the longest that is allowed.
        pieces: How words join, where they are pieces of words.
    """

    words: list[list[list[str]]]
    cut: int
    pieces: Pieces = "words"

    @classmethod
    def of(cls, items: Sequence[Item], settings: TextSettings) -> Texts:
        """The items' captions as words."""
        if settings.subwords is not None:
            return cls._of_pieces(items, settings.subwords, settings.max_words)
        own = [item.tokens is not None and settings.tokens == "own" for item in items]
        raw = [caption for item, has in zip(items, own) if not has for caption in item.captions]
        ruled = iter(tokenize(raw, java="never").captions if raw else [])
        words: list[list[list[str]]] = []
        cut = 0
        for item, has in zip(items, own):
            if has:
                assert item.tokens is not None
                captions = [list(tokens) for tokens in item.tokens]
            else:
                captions = [next(ruled).split() for _ in item.captions]
            cut += sum(len(caption) > settings.max_words for caption in captions)
            words.append([caption[: settings.max_words] for caption in captions])
        return cls(words, cut)

    @classmethod
    def _of_pieces(cls, items: Sequence[Item], tokenizer: str, longest: int) -> Texts:
        pieces, kind = split([caption.lower() for item in items for caption in item.captions], tokenizer)
        each = iter(pieces)
        words = [[next(each) for _ in item.captions] for item in items]
        cut = sum(len(caption) > longest for captions in words for caption in captions)
        return cls([[caption[:longest] for caption in captions] for captions in words], cut, kind)

    def vocabulary(self, min_count: int) -> Vocabulary:
        """The words that occur often enough."""
        captions = (caption for captions in self.words for caption in captions)
        return Vocabulary.build(captions, min_count=min_count, pieces=self.pieces)

    def numbers(self, vocabulary: Vocabulary) -> list[list[list[int]]]:
        """Per item its captions as numbers of words, without begin and end; captions without any word are left out."""
        coded = [[vocabulary.encode(caption) for caption in captions] for captions in self.words]
        return [[caption for caption in captions if caption] for captions in coded]
