"""Source sentences as a model takes them: numbers, or texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vlplatform.errors import UserError
from vlplatform.text.subwords import join

if TYPE_CHECKING:
    from vlp_translation.models.transformer import Translator

Given = Tensor | Sequence[str]


@dataclass(frozen=True)
class Source:
    """A batch of source sentences.

    Attributes:
        numbers: (B, S) on the model's device.
        mask: (B, S) booleans, true where a token is real.
        texts: The lines, where they were given.
    """

    numbers: Tensor
    mask: Tensor
    texts: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def longest(self) -> int:
        """Tokens of the longest sentence, its end counted."""
        return int(self.mask.sum(1).max())

    @property
    def filled(self) -> Tensor:
        """(B,) booleans: there is a token beside the end symbol."""
        return self.mask.sum(1) > 1

    def only(self, kept: Tensor) -> Source:
        """The sentences where ``kept``, (B,) booleans, is true."""
        texts = None if self.texts is None else tuple(compress(self.texts, kept.tolist()))
        kept = kept.to(self.numbers.device)
        return Source(self.numbers[kept], self.mask[kept], texts)

    @classmethod
    def of(cls, given: Given, model: Translator) -> Source:
        """Checked, on the model's device.

        Args:
            given: Numbers (B, S) that end with the end symbol, padded on either side, or a list of lines.
            model: Who reads them.

        Raises:
            UserError: Another type or shape, a number that no word has, or a sentence of padding alone.
        """
        vocabulary = model.texts.source.vocabulary
        texts: tuple[str, ...] | None = None
        if not isinstance(given, Tensor):
            if isinstance(given, str) or not all(isinstance(line, str) for line in given):
                raise UserError("source must be a list of texts, or a tensor of numbers (sentences, tokens).")
            texts = tuple(given)
            rows = [[*model.texts.source.encode(line), vocabulary.eos] for line in texts]
            given = torch.full((len(rows), max(map(len, rows), default=0)), vocabulary.pad)
            for i, row in enumerate(rows):
                given[i, : len(row)] = torch.tensor(row)
        if given.ndim != 2 or given.is_floating_point() or given.dtype == torch.bool:
            raise UserError(
                f"source has shape {tuple(given.shape)} and type {given.dtype}; expected whole numbers of shape "
                "(sentences, tokens)."
            )
        if given.numel() and not 0 <= int(given.min()) <= int(given.max()) < len(vocabulary):
            raise UserError(f"source has numbers outside the vocabulary of {len(vocabulary)} words.")
        numbers = given.to(model.device, torch.long)
        mask = numbers != vocabulary.pad
        empty = (~mask.any(1)).nonzero()[:, 0].tolist()
        if empty:
            raise UserError(f"sentence {empty[0]} of the source is padding alone: give its end symbol at least.")
        return cls(numbers, mask, texts)

    def words(self, item: int, model: Translator) -> tuple[list[str], list[int]]:
        """The words of a sentence, and for each of its real tokens but the end the place of the word it belongs to."""
        vocabulary = model.texts.source.vocabulary
        if self.texts is not None:
            pieces = model.texts.source.pieces(self.texts[item])
        else:
            real = self.numbers[item][self.mask[item]].tolist()
            pieces = [vocabulary.words[number] for number in (real[:-1] if real[-1] == vocabulary.eos else real)]
        kind = vocabulary.pieces
        return join(pieces, kind), [max(0, len(join(pieces[: i + 1], kind)) - 1) for i in range(len(pieces))]
