"""Hypotheses that have ended compete in the beam."""

from __future__ import annotations

import torch
from torch import Tensor

from vlplatform.decoding.candidates import best_words
from vlplatform.decoding.limits import Limits
from vlplatform.decoding.protocol import Symbols
from vlplatform.decoding.scores import least_of_best, normalised, sum_type, taken
from vlplatform.decoding.sequences import Sequences


class InBeam:
    """Hypotheses that ended stay in the beam and compete there, continuing at no cost (M², MD-SAN, X-LAN).

    All compete by Σ log p / L^α with their own lengths L; the authors' code has α = 0.

    Args:
        items: Number of items I.
        beam: Hypotheses K kept for each.
        returned: How many of them count in the end.
        length: T.
        alpha: α.
        symbols: The vocabulary's special symbols.
        like: Log-probabilities, for type and device.
    """

    def __init__(
        self, items: int, beam: int, returned: int, length: int, alpha: float, symbols: Symbols, like: Tensor
    ) -> None:
        self.beam, self.returned, self.length, self.alpha, self.symbols = beam, returned, length, alpha, symbols
        self.tokens = torch.full((items, 1, length), symbols.pad, device=like.device)
        self.log_probs = torch.zeros((items, 1, length), dtype=sum_type(like), device=like.device)
        self.sums = self.log_probs[..., 0].detach().clone()
        self.lengths = torch.zeros_like(self.tokens[..., 0])
        self.ended = torch.zeros_like(self.lengths, dtype=torch.bool)
        self.sorted = True  # by score
        self.said = self.lengths  # (I, K) words chosen in the last step; −1: none, as the hypothesis had ended before

    def candidates(self, log_probs: Tensor, limits: Limits, made: int, *, spare: int = 0) -> tuple[Tensor, Tensor]:
        """Values and words (I, rows, k) among which :meth:`advance` chooses, of (I · rows, V).

        Args:
            log_probs: Of all next words.
            limits: What is forbidden or penalised.
            made: Tokens chosen so far.
            spare: Words that will be lowered in the choice.
        """
        values, words = best_words(log_probs, self.beam, limits, self.symbols, made, spare=spare)
        return values.unflatten(0, (len(self.sums), -1)), words.unflatten(0, (len(self.sums), -1))

    def advance(self, values: Tensor, words: Tensor, made: int, penalty: Tensor | None = None) -> Tensor:
        """Token number ``made`` is chosen; gives each hypothesis' parent (I, K).

        Args:
            values: (I, rows, k) log-probabilities of the candidates.
            words: (I, rows, k), which they are.
            made: Tokens chosen so far.
            penalty: (I, rows, k), taken off in this choice, not from the scores.
        """
        ended, wide, self.sorted = self.ended, words.shape[2], penalty is None
        if made:
            free = torch.full((wide,), -torch.inf, dtype=values.dtype, device=values.device)
            free[0] = 0
            values = torch.where(ended[..., None], free, values)
            words = words.masked_fill(ended[..., None], self.symbols.pad)
        totals = self.sums[..., None] + values.detach()
        lengths = torch.where(ended, self.lengths, made + 1)
        ranks = totals if penalty is None else totals - penalty.masked_fill(ended[..., None], 0)
        place = normalised(ranks, lengths[..., None], self.alpha).flatten(1).topk(self.beam)[1]
        parent = place // wide
        chosen = words.flatten(1).gather(1, place)
        self.tokens, self.log_probs = taken(self.tokens, parent), taken(self.log_probs, parent)
        self.tokens[..., made] = chosen
        self.log_probs[..., made] = values.flatten(1).gather(1, place)
        self.sums, self.lengths = totals.flatten(1).gather(1, place), lengths.gather(1, parent)
        before = ended.gather(1, parent)
        self.said = chosen.masked_fill(before, -1)
        self.ended = before | (chosen == self.symbols.eos)
        return parent

    def settled(self) -> Tensor:
        """(I,) booleans: nothing can change the hypotheses returned any more.

        Scores of those that go on only fall, except that their sum is divided by a greater length: by T^α at most.
        """
        if self.sorted and not self.alpha:  # the best come first, and all others only fall
            first = self.sums[:, : self.returned]
            return (self.ended[:, : self.returned] | (first == -torch.inf)).all(1)
        reach = (self.sums / self.length**self.alpha).masked_fill(self.ended, -torch.inf).amax(1)
        scores = normalised(self.sums, self.lengths, self.alpha).masked_fill(~self.ended, -torch.inf)
        return least_of_best(scores, self.returned) >= reach

    def faulty(self) -> Tensor:
        """(I,) booleans: a sum is NaN, which counts as greatest in the choice."""
        return self.sums[:, 0].isnan()

    def keep(self, items: Tensor) -> None:
        """Leave all items but these."""
        for name in ("tokens", "log_probs", "sums", "lengths", "ended"):
            setattr(self, name, getattr(self, name)[items])

    def found(self) -> Sequences:
        """The best hypotheses, whether they ended or not."""
        log_probs, scores = self.log_probs, normalised(self.sums, self.lengths, self.alpha)
        return Sequences(self.tokens, log_probs, self.lengths, scores).best(self.returned)
