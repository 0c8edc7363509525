"""How the lines of one language become words, and words lines again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vlp_translation.texts.moses import Moses, Punctuation
from vlp_translation.texts.settings import TextSettings
from vlp_translation.texts.truecase import Truecaser


@dataclass(frozen=True)
class Wording:
    """Tokenisation and case; see :class:`vlp_translation.texts.settings.TextSettings` for its choices.

    Attributes:
        language: Code of two letters.
        moses: Whether Moses parts the words, else the line's blanks do.
        punctuation: Whether punctuation is brought into one spelling first.
        hyphens: Whether Moses parts compounds.
        escape: Whether Moses escapes the characters it reserves.
        lower: Whether all is lower case.
        truecaser: Mends the case of words.
    """

    language: str
    moses: bool = True
    punctuation: bool = False
    hyphens: bool = False
    escape: bool = True
    lower: bool = False
    truecaser: Truecaser | None = None

    @classmethod
    def of(cls, language: str, settings: TextSettings) -> Wording:
        """What the settings say, without a truecaser."""
        given = {name: getattr(settings, name) for name in ("punctuation", "hyphens", "escape", "lower")}
        return cls(language, moses=settings.tokenize == "moses", **given)

    @property
    def signature(self) -> str:
        """What decides the words, for the signatures of scores: ``moses, escaped, lower case``."""
        moses = ["moses", *(["escaped"] if self.escape else []), *(["compounds parted"] if self.hyphens else [])]
        parts = moses if self.moses else ["blanks"]
        parts += ["punctuation normalised"] if self.punctuation else []
        parts += ["lower case"] if self.lower else ["truecased"] if self.truecaser is not None else []
        return ", ".join(parts)

    def words(self, line: str) -> list[str]:
        """The line's words; none for an empty line."""
        if self.punctuation:
            line = self._punctuation(line)
        words = self._moses.words(line) if self.moses else line.split()
        if self.lower:
            words = [word.lower() for word in words]
        return self.truecaser(words) if self.truecaser is not None else words

    def line(self, words: Sequence[str]) -> str:
        """The words as people would write them."""
        if self.truecaser is not None:
            words = self.truecaser.undone(words)
        return self._moses.joined(words) if self.moses else " ".join(words)

    @cached_property
    def _moses(self) -> Moses:
        return Moses(self.language, hyphens=self.hyphens, escape=self.escape)

    @cached_property
    def _punctuation(self) -> Punctuation:
        return Punctuation(self.language)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        names = ("language", "moses", "punctuation", "hyphens", "escape", "lower")
        truecaser = self.truecaser.as_dict() if self.truecaser is not None else None
        return {name: getattr(self, name) for name in names} | {"truecaser": truecaser}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Wording:
        """From what :meth:`as_dict` gave."""
        truecaser = values["truecaser"]
        return cls(**{**values, "truecaser": None if truecaser is None else Truecaser.from_dict(truecaser)})
