"""What the encoder leaves for the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Memory:
    """The encoded source sentences of a batch.

    Attributes:
        tokens: (B, S, D).
        mask: (B, S) booleans, true for real tokens; None: all are.
    """

    tokens: Tensor
    mask: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def lean(self) -> Memory:
        """The same without a mask that masks nothing."""
        return self if self.mask is None or not bool(self.mask.all()) else Memory(self.tokens)

    def rows(self, index: Tensor) -> Memory:
        """Of some sentences, (R,) numbers."""
        return Memory(self.tokens[index], None if self.mask is None else self.mask[index])

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name; :meth:`of` makes the memory again."""
        return {"tokens": self.tokens} if self.mask is None else {"tokens": self.tokens, "mask": self.mask}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Memory:
        """From what :meth:`tensors` gave, perhaps for fewer sentences by now."""
        return cls(tensors["tokens"], tensors.get("mask"))
