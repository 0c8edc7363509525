"""Pieces of a sentencepiece model, which travels with the translation model.

Kudo, Richardson: SentencePiece, EMNLP 2018 (demonstrations).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from vlplatform.errors import UserError
from vlplatform.text.subwords import Pieces


class SentencePieces:
    """Pieces that mark where a word begins (``▁``).

    Args:
        model: The bytes of the model file.
        where: What it is called in messages.

    Raises:
        UserError: sentencepiece is not installed, or the bytes are no model.
    """

    pieces: Pieces = "sentencepiece"

    def __init__(self, model: bytes, where: str = "the saved sentencepiece model") -> None:
        self.model, self.where = model, where
        _ = self._processor

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "where": self.where}

    @cached_property
    def _processor(self) -> Any:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise UserError("subwords=sentencepiece needs sentencepiece: pip install sentencepiece.") from error
        processor: Any = SentencePieceProcessor()
        try:
            if not self.model:
                raise RuntimeError("it is empty")
            processor.LoadFromSerializedProto(self.model)
        except RuntimeError as error:
            raise UserError(f"{self.where} is no model of sentencepiece ({error}): give its .model file.") from error
        return processor

    @classmethod
    def read(cls, path: Path) -> SentencePieces:
        """From a model file.

        Raises:
            UserError: No such file, or no model.
        """
        try:
            return cls(path.read_bytes(), str(path))
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}): give a model file of sentencepiece.") from error

    def split(self, words: Sequence[str]) -> list[str]:
        """The pieces of the line that the words make up."""
        return self._processor.EncodeAsPieces(" ".join(words))

    def words(self) -> list[str]:
        """All pieces that lines may have, in the order of their numbers."""
        model = self._processor
        skipped = (model.IsControl, model.IsUnknown, model.IsUnused)
        numbers = (n for n in range(model.GetPieceSize()) if not any(test(n) for test in skipped))
        return [model.IdToPiece(n) for n in numbers]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; the model in base64."""
        return {"kind": "sentencepiece", "model": base64.b64encode(self.model).decode("ascii")}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SentencePieces:
        """From what :meth:`as_dict` gave."""
        return cls(base64.b64decode(values["model"], validate=True))
