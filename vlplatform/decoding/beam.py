"""Beam search over any decoder that can make a step, for a batch of items at once.

Items whose result can no longer change leave the batch; this changes no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from vlplatform.decoding.aside import Aside
from vlplatform.decoding.in_beam import InBeam
from vlplatform.decoding.limits import Limits
from vlplatform.decoding.protocol import Rule, S, Step, Symbols
from vlplatform.decoding.required import Required
from vlplatform.decoding.search import search
from vlplatform.decoding.sequences import Sequences
from vlplatform.errors import UserError

Finish = Literal["beam", "aside"]


@dataclass(frozen=True)
class BeamSettings(Limits):
    """Settings of beam search, with those of :class:`Limits`.

    Attributes:
        beam: Hypotheses kept per item.
        length_penalty: α in the score Σ log p / L^α, L tokens with the end symbol (fairseq's; not ((5 + L) / 6)^α);
            0 does not normalise.
        finish: What becomes of hypotheses that end: they compete in the ``beam`` at no further cost (M², MD-SAN,
            X-Linear), or are put ``aside`` until there are ``beam`` of them (fairseq).
        returned: Hypotheses returned per item, at most ``beam``; fewer let items leave earlier.

    Raises:
        ValueError: A number out of range.
    """

    beam: int = 3
    length_penalty: float = 0.0
    finish: Finish = "beam"
    returned: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beam < 1:
            raise ValueError(f"beam={self.beam} must be at least 1")
        if not 1 <= self.returned <= self.beam:
            raise ValueError(f"returned={self.returned} must be from 1 to beam={self.beam}")
        if not 0 <= self.length_penalty < float("inf"):
            raise ValueError(f"length_penalty={self.length_penalty} must be at least 0")
        if self.finish not in get_args(Finish):
            raise ValueError(f"finish={self.finish} is not one of {', '.join(get_args(Finish))}")


def beam_search(
    step: Step[S],
    state: S,
    items: int,
    settings: BeamSettings,
    symbols: Symbols,
    *,
    rules: Sequence[Rule] = (),
    required: Sequence[Sequence[int]] | None = None,
    device: torch.device | str = "cpu",
) -> Sequences:
    """The best hypotheses (I, returned) that a beam finds.

    Which of equally good continuations is taken is left open, as in ``torch.topk``. Where the step's log-probabilities
    carry gradients, those of the result do.

    Args:
        step: From the rows' last tokens (R,) and the state to log-probabilities (R, V).
        state: Of the decoder, with one row per item; it is used up.
        items: Number of items I.
        settings: Of the search.
        symbols: The vocabulary's special symbols.
        rules: What changes log-probabilities for the tokens so far (:mod:`vlplatform.decoding.rules`).
        required: Words that must appear, per item; needs ``finish="aside"``. A larger beam serves them better.
        device: Where the decoder runs.

    Raises:
        UserError: No item; log-probabilities of another shape, or NaN; required words that cannot be had.
    """
    words = None
    if required is not None:
        words = _required(required, items, settings, symbols, torch.device(device))

    def lane(like: Tensor) -> list[InBeam] | list[Aside]:
        given = (items, settings.beam, settings.returned, settings.max_length, settings.length_penalty, symbols, like)
        return [InBeam(*given)] if settings.finish == "beam" else [Aside(*given, required=words)]

    return search(step, state, items, settings, symbols, lane, settings.returned, rules=rules, device=device)


def _required(
    words: Sequence[Sequence[int]], items: int, settings: BeamSettings, symbols: Symbols, device: torch.device
) -> Required:
    if settings.finish != "aside":
        raise UserError("required words need finish=aside: hypotheses that hold them all must not be lost again.")
    if len(words) != items:
        raise UserError(f"required words were given for {len(words)} items; expected {items}, empty where none are.")
    banned = set(settings.forbidden(symbols, settings.max_length))
    for i, of_item in enumerate(words):
        if banned.intersection(of_item):
            number = min(banned.intersection(of_item))
            raise UserError(f"word {number} is required of item {i} and forbidden: change forbid=… or the words.")
    return Required(words, symbols.eos, settings.max_length, device)
