"""Random samples: multinomial, with temperature, of the k best words, of a nucleus.

Top-k: Fan et al. 2018; nucleus: Holtzman et al. 2020. The log-probabilities given back are the model's own, before
temperature and truncation, as self-critical training needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlplatform.decoding.candidates import only, top
from vlplatform.decoding.limits import Limits
from vlplatform.decoding.protocol import Rule, S, Step, Symbols
from vlplatform.decoding.sequences import Sequences
from vlplatform.decoding.walk import walk
from vlplatform.errors import UserError


@dataclass(frozen=True)
class SamplingSettings(Limits):
    """Settings of sampling, with those of :class:`Limits`.

    Attributes:
        samples: Sequences drawn per item.
        temperature: Log-probabilities are divided by it before a word is drawn.
        top_k: Words are drawn among so many best; 0: among all.
        top_p: Words are drawn among the best ones that have this probability together, the one that reaches it
            included; of the ``top_k``, if both are given.
        close: Where the end symbol has not come by then, it is the last of ``max_length`` tokens, drawn or not
            (fairseq); else a sequence breaks off there (the authors' codes of captioning).

    Raises:
        ValueError: A number out of range.
    """

    samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    close: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 1 or self.top_k < 0:
            raise ValueError(f"samples={self.samples} must be at least 1 and top_k={self.top_k} at least 0")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature} must be above 0; greedy decoding is a search of its own")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be above 0 and at most 1")


def sample(
    step: Step[S],
    state: S,
    items: int,
    settings: SamplingSettings,
    symbols: Symbols,
    *,
    rules: Sequence[Rule] = (),
    generator: torch.Generator | None = None,
    draws: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Sequences:
    """Random sequences (I, samples), in the order in which they were drawn; scores are Σ log p.

    Args:
        step: From the rows' last tokens (R,) and the state to log-probabilities (R, V).
        state: Of the decoder, with one row per item; it is used up.
        items: Number of items I.
        settings: Of the sampling.
        symbols: The vocabulary's special symbols.
        rules: What changes log-probabilities for the tokens so far.
        generator: Of random numbers, torch's own of the device unless given; exactly I · samples · T are drawn.
        draws: (I, samples, T) numbers in [0, 1) instead: each is a place in the cumulated probabilities.
        device: Where the decoder runs.

    Raises:
        UserError: Log-probabilities of another shape, or NaN; no word allowed.
    """
    shape = (items, settings.samples, settings.max_length)
    if draws is None:
        draws = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
    if draws.shape != shape:
        raise UserError(f"draws has shape {tuple(draws.shape)}; expected (items, samples, max_length) = {shape}.")
    kept: Tensor = draws

    def choose(log_probs: Tensor, made: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
        if settings.close and made + 1 == settings.max_length:
            times = len(numbers) * settings.samples // len(log_probs)  # before the first word an item has one row
            values, words = only(log_probs, symbols.eos, 1)
            return values.flatten().repeat_interleave(times), words.flatten().repeat_interleave(times)
        weights = log_probs.detach().to(torch.promote_types(log_probs.dtype, torch.float32), copy=True)
        weights[:, list(settings.forbidden(symbols, made))] = -torch.inf
        penalty = settings.penalty(symbols)
        if penalty:
            weights[:, symbols.unk] -= penalty
        words, drawable = _drawn(weights, kept[numbers, :, made].view(len(weights), -1), settings)
        values = log_probs.gather(1, words).to(weights.dtype)
        if penalty:
            values = values - penalty * (words == symbols.unk).to(values.dtype)
        return values.masked_fill(~drawable, torch.nan).flatten(), words.flatten()

    return walk(step, state, items, settings.samples, settings, symbols, choose, rules, device)


def _drawn(weights: Tensor, draws: Tensor, settings: SamplingSettings) -> tuple[Tensor, Tensor]:
    """Words (R, n) of rows (R, V), n for each; and whether there is any to be drawn in a row, (R, 1).

    Args:
        weights: Log-probabilities, which are overwritten: at the sizes of vocabularies a new array is half the cost.
        draws: (R, n), places in the cumulated probabilities.
        settings: How they are drawn.
    """
    words: Tensor | None = None
    if settings.top_k:
        weights, words = top(weights, settings.top_k)
    elif settings.top_p < 1:
        weights, words = weights.sort(1, descending=True)
    weights = weights.sub_(weights.amax(1, keepdim=True)).div_(settings.temperature).exp_()
    if settings.top_p < 1:
        sums = weights.cumsum(1)
        weights = weights.masked_fill(sums - weights >= settings.top_p * sums[:, -1:], 0)
    sums = weights.cumsum_(1)
    whole = sums[:, -1:]
    at = torch.minimum(draws.to(sums.dtype) * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    place = torch.searchsorted(sums, at, right=True).clamp_max(sums.shape[1] - 1)
    return place if words is None else words.gather(1, place), whole > 0
