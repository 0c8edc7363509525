"""Words as the Moses toolkit parts them, through sacremoses.

Koehn et al., Moses: Open source toolkit for statistical machine translation, ACL 2007 (tokenizer.perl,
normalize-punctuation.perl, detokenizer.perl).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from vlplatform.errors import UserError


class Moses:
    """Tokens of one language. Languages that Moses does not know are read by the rules of English, as Moses does.

    Args:
        language: Code of two letters: ``en``, ``de``.
        hyphens: Part compounds, ``@-@``.
        escape: ``&apos;`` for an apostrophe and so on.
    """

    def __init__(self, language: str, *, hyphens: bool = False, escape: bool = True) -> None:
        self.language, self.hyphens, self.escape = language, hyphens, escape

    def words(self, line: str) -> list[str]:
        """The line's tokens; none for an empty line."""
        return self._tokenizer.tokenize(line, aggressive_dash_splits=self.hyphens, escape=self.escape)

    def joined(self, words: Sequence[str]) -> str:
        """The line that people would write."""
        return self._detokenizer.detokenize(list(words), unescape=self.escape)

    @cached_property
    def _tokenizer(self) -> Any:
        sacremoses = _sacremoses()
        known = sacremoses.corpus.NonbreakingPrefixes().available_langs.values()
        return sacremoses.MosesTokenizer(self.language if self.language in known else "en")

    @cached_property
    def _detokenizer(self) -> Any:
        return _sacremoses().MosesDetokenizer(self.language)


class Punctuation:
    """Quotes, dashes and blanks in one spelling: normalize-punctuation.perl."""

    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, line: str) -> str:
        """The line in that spelling."""
        return self._normaliser.normalize(line)

    @cached_property
    def _normaliser(self) -> Any:
        return _sacremoses().MosesPunctNormalizer(self.language)


def _sacremoses() -> Any:
    try:
        import sacremoses
    except ImportError as error:
        raise UserError(
            "Moses' tokenisation needs sacremoses: pip install vlplatform[translation], or set task.text.tokenize=none."
        ) from error
    return sacremoses
