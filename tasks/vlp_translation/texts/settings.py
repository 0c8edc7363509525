"""How lines become words and pieces: the section ``task.text``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Files = str | tuple[str, str] | None
"""A file for both languages, or [source's, target's]."""


@dataclass(frozen=True)
class TextSettings:
    """How lines become words, and words pieces.

    The order of the steps is that of fairseq's scripts: punctuation, tokens, lower case or true case, pieces.

    Attributes:
        tokenize: moses: words and marks as Moses' tokenizer.perl parts them (sacremoses); none: the line's own blanks.
        punctuation: Moses' normalize-punctuation.perl first (fairseq's WMT recipes).
        hyphens: Part compounds at their hyphens, ``@-@`` (tokenizer.perl -a, as WMT En-De is used).
        escape: Write ``&apos;`` and the like for the characters that Moses reserves, as tokenizer.perl does unless told
            otherwise; the published models and the usual tokenised BLEU have it so.
        lower: Lower case throughout.
        truecase: Words that begin a sentence as they are mostly written elsewhere, learnt from the training text.
        subwords: bpe: byte-pair encoding; words: none; sentencepiece: a given model's pieces of raw lines.
        size: Merges of byte-pair encoding to be learnt.
        joint: Learn one set of merges from both languages.
        shared: One dictionary for both languages, so that embeddings can be shared; null: as ``joint``. A given
            dictionary decides this itself.
        min_count: Pieces seen less often in the training text are unknown.
        codes: Merges that are there already: a file of subword-nmt or fastBPE, or [source's, target's].
        sentencepiece: A model file of sentencepiece, or [source's, target's]; for subwords=sentencepiece.
        dictionary: fairseq's dictionary file (a word and its count on each line), or [source's, target's]; it gives the
            numbers.
    """

    tokenize: Literal["moses", "none"] = "moses"
    punctuation: bool = False
    hyphens: bool = False
    escape: bool = True
    lower: bool = False
    truecase: bool = False
    subwords: Literal["bpe", "words", "sentencepiece"] = "bpe"
    size: int = 10_000
    joint: bool = True
    shared: bool | None = None
    min_count: int = 1
    codes: Files = None
    sentencepiece: Files = None
    dictionary: Files = None

    def __post_init__(self) -> None:
        if self.size < 1 or self.min_count < 1:
            raise ValueError(f"size={self.size} and min_count={self.min_count} must be at least 1")
        if self.lower and self.truecase:
            raise ValueError("lower=true leaves no case for truecase=true to mend: choose one")
        if self.tokenize == "none" and self.hyphens:
            raise ValueError("hyphens=true is a choice of tokenize=moses, but tokenize=none")
        if (self.subwords == "sentencepiece") != (self.sentencepiece is not None):
            raise ValueError("subwords=sentencepiece and sentencepiece=FILE need each other: give both or neither")
        if self.subwords == "sentencepiece" and self.tokenize == "moses":
            raise ValueError("subwords=sentencepiece reads raw lines: add tokenize=none")
        if self.codes is not None and self.subwords != "bpe":
            raise ValueError(f"codes={self.codes} are merges of subwords=bpe, but subwords={self.subwords}")
        if self.dictionary is not None and self.subwords == "bpe" and self.codes is None:
            raise ValueError(f"dictionary={self.dictionary} holds the pieces of certain merges: add codes=FILE")
        if self.shared and isinstance(self.dictionary, tuple):
            raise ValueError("shared=true needs one dictionary, but dictionary names two files")

    @property
    def files(self) -> list[Path]:
        """All files that are given."""
        given = (self.codes, self.sentencepiece, self.dictionary)
        names = [
            name for files in given if files is not None for name in ((files,) if isinstance(files, str) else files)
        ]
        return [Path(name).expanduser() for name in names]

    @property
    def one_dictionary(self) -> bool:
        """Whether both languages have the same numbers."""
        return self.joint if self.shared is None else self.shared


def of_side(files: Files, side: int) -> str | None:
    """The file of the source (0) or the target (1)."""
    return files[side] if isinstance(files, tuple) else files
