"""Several decoders as one, by the mean of their probabilities; they may be of different kinds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vlplatform.decoding.protocol import Decodable, State
from vlplatform.errors import UserError


class _States:
    """The states of all members, moved together."""

    def __init__(self, members: Sequence[State]) -> None:
        self.members = list(members)

    def reorder(self, index: Tensor) -> None:
        for member in self.members:
            member.reorder(index)

    def expand(self, times: int) -> None:
        for member in self.members:
            member.expand(times)


class Ensemble:
    """A decodable whose probabilities are the mean of its members', each with a memory of its own.

    Args:
        members: The decoders; all must number words alike.

    Raises:
        UserError: No member.
    """

    def __init__(self, members: Sequence[Decodable]) -> None:
        if not members:
            raise UserError("an ensemble needs at least one model.")
        self.members = list(members)

    def start(self, memory: Sequence[Any]) -> _States:
        """The state before the first step.

        Args:
            memory: What each member starts from, in their order.

        Raises:
            UserError: Not one for each.
        """
        if len(memory) != len(self.members):
            raise UserError(f"{len(memory)} memories came for an ensemble of {len(self.members)}: give one each.")
        return _States([member.start(own) for member, own in zip(self.members, memory)])

    def step(self, tokens: Tensor, state: _States) -> Tensor:
        """log of the mean probability (R, V).

        Raises:
            UserError: Vocabularies of different sizes.
        """
        total: Tensor | None = None
        for member, own in zip(self.members, state.members):
            log_probs = member.step(tokens, own)
            if total is not None and log_probs.shape != total.shape:
                raise UserError(
                    f"the ensemble's models give {total.shape[-1]} and {log_probs.shape[-1]} words: "
                    "only models with the same vocabulary can be averaged."
                )
            total = log_probs if total is None else torch.logaddexp(total, log_probs)
        assert total is not None
        return total - math.log(len(self.members)) if len(self.members) > 1 else total
