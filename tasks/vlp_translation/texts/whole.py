"""No sub-words: each word is its own piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlplatform.text.subwords import Pieces


class WholeWords:
    """Words as they are."""

    pieces: Pieces = "words"

    def split(self, words: Sequence[str]) -> list[str]:
        """The words."""
        return list(words)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"kind": "words"}
