"""Greedy decoding: the best word in every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vlplatform.decoding.candidates import best_words
from vlplatform.decoding.limits import Limits
from vlplatform.decoding.protocol import Rule, S, Step, Symbols
from vlplatform.decoding.sequences import Sequences
from vlplatform.decoding.walk import walk


def greedy(
    step: Step[S],
    state: S,
    items: int,
    limits: Limits,
    symbols: Symbols,
    *,
    rules: Sequence[Rule] = (),
    device: torch.device | str = "cpu",
) -> Sequences:
    """The best word in every step, (I, 1).

    Args:
        step: From the rows' last tokens (R,) and the state to log-probabilities (R, V).
        state: Of the decoder, with one row per item; it is used up.
        items: Number of items I.
        limits: Lengths and words.
        symbols: The vocabulary's special symbols.
        rules: What changes log-probabilities for the tokens so far.
        device: Where the decoder runs.

    Raises:
        UserError: Log-probabilities of another shape, or NaN.
    """

    def choose(log_probs: Tensor, made: int, _: Tensor) -> tuple[Tensor, Tensor]:
        values, words = best_words(log_probs, 1, limits, symbols, made)
        value, place = values.max(1, keepdim=True)
        return value[:, 0], words.gather(1, place)[:, 0]

    return walk(step, state, items, 1, limits, symbols, choose, rules, device)
