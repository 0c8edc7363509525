"""Words of a model whose dictionaries nobody gave: named after their numbers, so that no text can be read with them."""

from __future__ import annotations

from vlp_translation.texts.dictionary import SPECIALS
from vlp_translation.texts.pipeline import Texts
from vlplatform.text import Vocabulary

NOTE = (
    "no dictionary was given to vlp convert: words are called by their numbers, word4, word5 …; give it "
    "source_dict=FILE target_dict=FILE to translate text"
)


def placeholders(size: int, *, bos: int, pad: int, eos: int, unk: int) -> Vocabulary:
    """A vocabulary of ``size`` words, each ``word`` and its number but the special symbols."""
    names = dict(zip((bos, pad, eos, unk), SPECIALS))
    words = tuple(names.get(i, _name(i)) for i in range(size))
    return Vocabulary(words, bos=bos, pad=pad, eos=eos, unk=unk)


def notes_of(texts: Texts) -> list[str]:
    """:data:`NOTE`, if a side has no other words than placeholders."""
    return [NOTE] if any(_all_named(side.vocabulary) for side in (texts.source, texts.target)) else []


def _all_named(words: Vocabulary) -> bool:
    special = {words.bos, words.pad, words.eos, words.unk}
    return all(word == _name(i) for i, word in enumerate(words.words) if i not in special)


def _name(number: int) -> str:
    return f"word{number}"
