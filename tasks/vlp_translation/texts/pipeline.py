"""The texts of a translation model: both languages' ways between lines and numbers, learnt once and cached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlp_translation.cache import built_once, digest_of
from vlp_translation.lines import measure
from vlp_translation.texts.lesson import Lesson
from vlp_translation.texts.settings import TextSettings
from vlp_translation.texts.side import Side
from vlplatform.errors import UserError

if TYPE_CHECKING:
    from vlp_translation.readers import ParallelData

VERSION = 2
"""To be raised whenever the same text and settings give other numbers, so that no old cache is taken for new."""

_FILE = "texts.json"


@dataclass(frozen=True)
class Texts:
    """Both sides of a translation.

    Attributes:
        source: Of the language to translate from.
        target: Of the language to translate into.
    """

    source: Side
    target: Side

    @cached_property
    def shared(self) -> bool:
        """Whether both sides have the same numbers, so that embeddings can be shared."""
        return self.source.vocabulary == self.target.vocabulary

    @cached_property
    def digest(self) -> str:
        """A hash of everything that decides the numbers of a line."""
        return digest_of(self.as_dict(), VERSION)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; what the target has in common with the source is there once, and null in the target."""
        source, target = self.source.as_dict(), self.target.as_dict()
        return {"source": source, "target": {k: None if v == source[k] else v for k, v in target.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Texts:
        """From what :meth:`as_dict` gave.

        Raises:
            UserError: It cannot be read.
        """
        try:
            first, second = values["source"], values["target"]
            source = Side.from_dict(first)
            target = Side.from_dict({key: first[key] if part is None else part for key, part in second.items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"the saved texts cannot be read ({error!r}): save the model again.") from error
        if second["vocabulary"] is None:
            target = replace(target, vocabulary=source.vocabulary)
        if second["splitter"] is None:
            target = replace(target, splitter=source.splitter)
        return cls(source, target)

    @classmethod
    def learn(cls, data: ParallelData, settings: TextSettings, cache: Path) -> Texts:
        """From the training pairs, which are streamed once, or twice with a truecaser, and from the files given.

        The result is cached: several processes wait for the first, and all read the same. Where learning is interrupted
        nothing is left behind.

        Args:
            data: Where the training pairs come from; pairs with an empty side are left out.
            settings: What to learn, and what is given.
            cache: Folder of the cached texts.

        Raises:
            UserError: There is no training text, or nothing in it to learn from, a given file is faulty or does not fit
                it, or the cache cannot be written.
        """
        data.need("train")
        given = [measure(path)[0] for path in settings.files]
        parts = (asdict(settings), given, data.name, data.languages, data.fingerprint("train"), VERSION)

        def build(folder: Path) -> None:
            values = cls(*Lesson(data, settings).sides()).as_dict()
            (folder / _FILE).write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")

        what = f"preparing data={data.name}: the words and pieces of the training text are learnt, once"
        folder = built_once(cache / f"texts-{digest_of(*parts)}", build, what)
        try:
            return cls.from_dict(json.loads((folder / _FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, UserError) as error:
            raise UserError(f"the cached texts in {folder} are damaged ({error}): delete that folder.") from error
