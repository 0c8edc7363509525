"""The loop of all beam searches: steps, choices, items that leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vlplatform.decoding.aside import Aside
from vlplatform.decoding.candidates import checked, ruled
from vlplatform.decoding.in_beam import InBeam
from vlplatform.decoding.limits import Limits
from vlplatform.decoding.protocol import Rule, S, State, Step, Symbols
from vlplatform.decoding.sequences import Sequences, behind, beside
from vlplatform.errors import UserError


def search(
    step: Step[S],
    state: S,
    items: int,
    limits: Limits,
    symbols: Symbols,
    lanes_of: Callable[[Tensor], Sequence[InBeam | Aside]],
    returned: int,
    *,
    rules: Sequence[Rule] = (),
    diversity: float = 0.0,
    device: torch.device | str = "cpu",
) -> Sequences:
    """What the lanes find, the best ``returned`` of each item; a lane is a beam, several share the decoder's batch.

    Args:
        step: From the rows' last tokens (R,) and the state to log-probabilities (R, V).
        state: Of the decoder, with one row per item; it is used up.
        items: Number of items I.
        limits: Lengths and words.
        symbols: The vocabulary's special symbols.
        lanes_of: Makes the lanes, all of one width, given the first log-probabilities.
        returned: Hypotheses wanted of each item.
        rules: What changes log-probabilities for the tokens so far.
        diversity: Taken off a word's log-probability for each time that an earlier lane chose it in this step.
        device: Where the decoder runs.

    Raises:
        UserError: No item; log-probabilities of another shape, or NaN.
    """
    if not items:
        raise UserError("there is no item to decode: give at least one.")
    last = torch.full((items,), symbols.bos, device=device)
    numbers = torch.arange(items, device=device)  # of the items still searched
    lanes: Sequence[InBeam | Aside] = ()
    found: list[Sequences] = []
    whose: list[Tensor] = []
    for made in range(limits.max_length):
        log_probs = checked(step(last, state), len(last), limits, symbols)
        lanes = lanes or lanes_of(log_probs)
        if rules:
            log_probs = ruled(log_probs, _side_by_side([lane.tokens for lane in lanes], made)[..., :made], rules)
        parents = _advance(lanes, log_probs, limits, made, diversity)
        stay = _stay(lanes, made)
        if not stay or made + 1 == limits.max_length:
            break
        kept = None
        if len(stay) < len(numbers):
            kept = torch.tensor(stay, device=device)
            gone = torch.ones_like(numbers, dtype=torch.bool).index_fill_(0, kept, False)
            found.append(beside([lane.found() for lane in lanes]).items(gone))
            whose.append(numbers[gone])
            for lane in lanes:
                lane.keep(kept)
            numbers = numbers[kept]
        last = torch.cat([lane.tokens[..., made] for lane in lanes], 1).flatten()
        _move(state, parents, kept, first=made == 0)
    found.append(beside([lane.found() for lane in lanes]))
    whose.append(numbers)
    return behind(found, whose).best(returned)


def _side_by_side(parts: Sequence[Tensor], made: int) -> Tensor:
    """The rows (R, …) of all lanes, each (I, K, …), item by item; before the first step lanes share one row."""
    return (parts[0] if made == 0 or len(parts) == 1 else torch.cat(list(parts), 1)).flatten(0, 1)


def _advance(lanes: Sequence[InBeam | Aside], log_probs: Tensor, limits: Limits, made: int, diversity: float) -> Tensor:
    """One step of every lane; gives the parents (I, beam) among an item's rows."""
    width = lanes[0].beam
    lowered = (len(lanes) - 1) * width + 1 if diversity else 0  # words of the other lanes, and the end
    values, words = lanes[0].candidates(log_probs, limits, made, spare=lowered)
    parents: list[Tensor] = []
    for i, lane in enumerate(lanes):
        mine = slice(0, 1) if made == 0 else slice(i * width, (i + 1) * width)
        penalty = None
        if diversity and i:
            said = torch.cat([other.said for other in lanes[:i]], 1)
            penalty = diversity * (words[:, mine, :, None] == said[:, None, None]).sum(-1).to(values.dtype)
        parents.append(lane.advance(values[:, mine], words[:, mine], made, penalty) + mine.start)
    return parents[0] if len(parents) == 1 else torch.cat(parents, 1)


def _stay(lanes: Sequence[InBeam | Aside], made: int) -> list[int]:
    """Places of the items that are not done yet; the one time per step that the device is waited for."""
    settled, faulty = lanes[0].settled(), lanes[0].faulty()
    for lane in lanes[1:]:
        settled, faulty = settled & lane.settled(), faulty | lane.faulty()
    settled, faulty = torch.stack((settled, faulty)).tolist()
    if any(faulty):
        raise UserError(
            f"the decoder gave NaN log-probabilities for token {made + 1}: its weights or input are broken."
        )
    return [i for i, done in enumerate(settled) if not done]


def _move(state: State, parents: Tensor, kept: Tensor | None, *, first: bool) -> None:
    """The state follows the hypotheses, of the items ``kept`` only."""
    items, beam = parents.shape
    index = torch.arange(items * beam, device=parents.device).view(items, beam)
    if first and beam > 1:
        state.expand(beam)
    elif not first:
        index = index[:, :1] + parents
    if kept is not None:
        index = index[kept]
    if kept is not None or (beam > 1 and not first):  # else all stays in place
        state.reorder(index.flatten())
