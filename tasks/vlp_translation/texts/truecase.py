"""True case after Moses (train-truecaser.perl, truecase.perl): a sentence's first word as it is written elsewhere."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_ENDS = frozenset((".", ":", "?", "!"))
_OPENINGS = frozenset(("(", "[", '"', "'", "&apos;", "&quot;", "&#91;", "&#93;"))


class Casing:
    """Counts of how words are written; first words of sentences, whose case says nothing, are not counted."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, words: Sequence[str]) -> None:
        """Count a line."""
        for word, first in zip(words, _first(words)):
            if not first and word.lower() != word.upper():
                self.counts[word.lower()][word] += 1

    def truecaser(self) -> Truecaser:
        """The most frequent way of each word, of equally frequent ones the first by the alphabet."""
        ranked = [sorted(forms, key=lambda form: (-forms[form], form)) for forms in self.counts.values()]
        return Truecaser(sorted(forms[0] for forms in ranked), sorted(form for forms in ranked for form in forms[1:]))


class Truecaser:
    """Rewrites the case of words.

    Args:
        best: The most frequent way to write each word.
        known: The other ways that occur: they stay as they are, but at the beginning of a sentence.
    """

    def __init__(self, best: Iterable[str], known: Iterable[str] = ()) -> None:
        self.best = {form.lower(): form for form in best}
        self.known = frozenset(known)

    def __call__(self, words: Sequence[str]) -> list[str]:
        """The words in their true case; unknown words are left alone."""
        return [
            word if word in self.known and not first else self.best.get(word.lower(), word)
            for word, first in zip(words, _first(words))
        ]

    def undone(self, words: Sequence[str]) -> list[str]:
        """The words as a reader wants them: sentences begin with a capital."""
        return [word[:1].upper() + word[1:] if first else word for word, first in zip(words, _first(words))]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"best": sorted(self.best.values()), "known": sorted(self.known)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Truecaser:
        """From what :meth:`as_dict` gave."""
        return cls(values["best"], values["known"])


def _first(words: Sequence[str]) -> list[bool]:
    """Whether each word begins a sentence; brackets and quotes before it do not count."""
    found, first = [], True
    for word in words:
        found.append(first)
        if word in _ENDS:
            first = True
        elif word not in _OPENINGS:
            first = False
    return found
