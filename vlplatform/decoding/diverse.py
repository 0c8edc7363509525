"""Diverse beam search: groups of beams, each kept from the words that the groups before it chose in the same step.

Vijayakumar et al., "Diverse Beam Search for Improved Description of Complex Scenes" (2018), algorithm 1, with Hamming
diversity. The penalty acts on the choice alone; scores are the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlplatform.decoding.aside import Aside
from vlplatform.decoding.beam import BeamSettings
from vlplatform.decoding.in_beam import InBeam
from vlplatform.decoding.protocol import Rule, S, Step, Symbols
from vlplatform.decoding.search import search
from vlplatform.decoding.sequences import Sequences


@dataclass(frozen=True)
class DiverseSettings(BeamSettings):
    """Settings of diverse beam search, with those of :class:`BeamSettings`; ``beam`` counts all groups.

    Attributes:
        groups: Groups of beam / groups hypotheses; one group is ordinary beam search.
        diversity: λ, taken off a word's log-probability for each time that an earlier group chose it in this step.

    Raises:
        ValueError: A number out of range, or groups that do not divide the beam.
    """

    groups: int = 1
    diversity: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups < 1 or self.beam % self.groups:
            raise ValueError(f"groups={self.groups} must divide beam={self.beam}")
        if not 0 <= self.diversity < float("inf"):
            raise ValueError(f"diversity={self.diversity} must be at least 0")


def diverse_beam_search(
    step: Step[S],
    state: S,
    items: int,
    settings: DiverseSettings,
    symbols: Symbols,
    *,
    rules: Sequence[Rule] = (),
    device: torch.device | str = "cpu",
) -> Sequences:
    """The best hypotheses (I, returned) of all groups together.

    Args:
        step: From the rows' last tokens (R,) and the state to log-probabilities (R, V).
        state: Of the decoder, with one row per item; it is used up.
        items: Number of items I.
        settings: Of the search.
        symbols: The vocabulary's special symbols.
        rules: What changes log-probabilities for the tokens so far.
        device: Where the decoder runs.

    Raises:
        UserError: No item; log-probabilities of another shape, or NaN.
    """
    width = settings.beam // settings.groups

    def lanes(like: Tensor) -> list[InBeam | Aside]:
        kind = InBeam if settings.finish == "beam" else Aside
        count = min(width, settings.returned)
        length, alpha = settings.max_length, settings.length_penalty
        return [kind(items, width, count, length, alpha, symbols, like) for _ in range(settings.groups)]

    own = {"rules": rules, "diversity": settings.diversity, "device": device}
    return search(step, state, items, settings, symbols, lanes, settings.returned, **own)
