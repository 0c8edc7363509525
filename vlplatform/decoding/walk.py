"""One word per row and step, until all rows of an item have ended: the loop of greedy decoding and of sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vlplatform.decoding.candidates import checked, ruled
from vlplatform.decoding.limits import Limits
from vlplatform.decoding.protocol import Rule, S, Step, Symbols
from vlplatform.decoding.sequences import Sequences, behind
from vlplatform.errors import UserError


def walk(
    step: Step[S],
    state: S,
    items: int,
    count: int,
    limits: Limits,
    symbols: Symbols,
    choose: Callable[[Tensor, int, Tensor], tuple[Tensor, Tensor]],
    rules: Sequence[Rule],
    device: torch.device | str,
) -> Sequences:
    """``count`` rows per item, a word each per step; an item leaves when all its rows have ended.

    ``choose(log_probs, made, numbers)`` gives value and word (R,) each of all rows of the items ``numbers``, where in
    the first step one row stands for all of an item.
    """
    if not items:
        raise UserError("there is no item to decode: give at least one.")
    numbers = torch.arange(items, device=device)
    last = torch.full((items,), symbols.bos, device=device)
    tokens = torch.full((items * count, limits.max_length), symbols.pad, device=device)
    lengths, ended = torch.zeros_like(tokens[:, 0]), torch.zeros_like(tokens[:, 0], dtype=torch.bool)
    log_probs: list[Tensor] = []  # (R,) per step
    found: list[Sequences] = []
    whose: list[Tensor] = []
    for made in range(limits.max_length):
        given = checked(step(last, state), len(last), limits, symbols)
        if rules:
            given = ruled(given, tokens[:: 1 if made else count, :made], rules)
        value, last = choose(given, made, numbers)
        last = last.masked_fill(ended, symbols.pad)
        tokens[:, made] = last
        log_probs.append(value.masked_fill(ended, 0))
        lengths += ~ended
        faulty = (~ended & ~(value.detach() > -torch.inf)).any()
        ended = ended | (last == symbols.eos)
        done, faulty = _told(ended, faulty, count)
        if faulty:
            raise UserError(f"no word can follow: all log-probabilities of token {made + 1} are −∞, or some are NaN.")
        if all(done) or made + 1 == limits.max_length:
            break
        if made == 0 and count > 1:
            state.expand(count)
        if any(done):
            stays = torch.tensor([not of_item for of_item in done], device=device)
            rows = stays.repeat_interleave(count)
            found.append(_found(tokens[~rows], [of_step[~rows] for of_step in log_probs], lengths[~rows], count))
            whose.append(numbers[~stays])
            tokens, lengths, ended, last = tokens[rows], lengths[rows], ended[rows], last[rows]
            log_probs, numbers = [of_step[rows] for of_step in log_probs], numbers[stays]
            state.reorder(rows.nonzero()[:, 0])
    found.append(_found(tokens, log_probs, lengths, count))
    whose.append(numbers)
    return behind(found, whose)


def _told(ended: Tensor, faulty: Tensor, count: int) -> tuple[list[bool], bool]:
    """Which items are done, and whether there was a fault; the one time per step that the device is waited for."""
    *done, fault = torch.cat((ended.view(-1, count).all(1), faulty[None])).tolist()
    return done, fault


def _found(tokens: Tensor, log_probs: Sequence[Tensor], lengths: Tensor, count: int) -> Sequences:
    values = torch.stack(list(log_probs), 1)
    values = F.pad(values, (0, tokens.shape[1] - values.shape[1]))
    tokens, values, lengths = (each.unflatten(0, (-1, count)) for each in (tokens, values, lengths))
    return Sequences(tokens, values, lengths, values.detach().sum(-1))
