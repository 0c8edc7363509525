"""Hypotheses that have ended are put aside."""

from __future__ import annotations

import torch
from torch import Tensor

from vlplatform.decoding.candidates import best_words, only
from vlplatform.decoding.limits import Limits
from vlplatform.decoding.protocol import Symbols
from vlplatform.decoding.required import Required
from vlplatform.decoding.scores import least_of_best, sum_type, taken
from vlplatform.decoding.sequences import Sequences


class Aside:
    """Hypotheses that end are put aside, and the best K others go on (fairseq).

    Of the best 2K continuations, those among the first K that end are finished, with score Σ log p / L^α; the first K
    that do not end go on. An item is done with K finished ones. At length T the end is forced: candidates are then the
    end symbol alone.

    Args:
        items: Number of items I.
        beam: Hypotheses K kept for each.
        returned: How many finished ones count in the end.
        length: T.
        alpha: α.
        symbols: The vocabulary's special symbols.
        like: Log-probabilities, for type and device.
        required: Words that must appear, if any.
    """

    def __init__(
        self,
        items: int,
        beam: int,
        returned: int,
        length: int,
        alpha: float,
        symbols: Symbols,
        like: Tensor,
        required: Required | None = None,
    ) -> None:
        self.beam, self.returned, self.length, self.alpha, self.symbols = beam, returned, length, alpha, symbols
        self.required = required
        self.tokens = torch.full((items, 1, length), symbols.pad, device=like.device)
        self.log_probs = torch.zeros((items, 1, length), dtype=sum_type(like), device=like.device)
        self.sums = self.log_probs[..., 0].detach().clone()
        self.said = torch.zeros_like(self.tokens[..., 0])  # (I, n) words chosen in the last step, −1 for none
        self.count = torch.zeros_like(self.said)  # (I, 1) finished
        # the last place takes what is not wanted
        self.done_tokens, self.done_log_probs = (
            self.tokens.repeat(1, beam + 1, 1),
            self.log_probs.repeat(1, beam + 1, 1),
        )
        self.done_lengths = torch.zeros_like(self.done_tokens[..., 0])
        self.scores = torch.full(self.done_lengths.shape, -torch.inf, dtype=self.sums.dtype, device=like.device)

    def candidates(self, log_probs: Tensor, limits: Limits, made: int, *, spare: int = 0) -> tuple[Tensor, Tensor]:
        """Values and words (I, rows, k) among which :meth:`advance` chooses, as :meth:`InBeam.candidates`."""
        forced = made + 1 == self.length
        if forced:
            values, words = only(log_probs, self.symbols.eos, 2 * self.beam)
        else:
            values, words = best_words(log_probs, 2 * self.beam, limits, self.symbols, made, spare=spare)
        values, words = values.unflatten(0, (len(self.sums), -1)), words.unflatten(0, (len(self.sums), -1))
        return (values, words) if forced or self.required is None else self.required.add(values, words, log_probs)

    def advance(self, values: Tensor, words: Tensor, made: int, penalty: Tensor | None = None) -> Tensor:
        """Token number ``made`` is chosen, as in :meth:`InBeam.advance`."""
        totals = self.sums[..., None] + values.detach()
        ranks = totals if penalty is None else totals - penalty
        if self.required is not None:
            place = self.required.order(totals, words, self.tokens[..., :made], 2 * self.beam)
        else:
            place = ranks.flatten(1).topk(min(2 * self.beam, ranks[0].numel()))[1]
        parent, words = place // words.shape[2], words.flatten(1).gather(1, place)
        totals, values = totals.flatten(1).gather(1, place), values.flatten(1).gather(1, place)
        if self.required is not None:
            totals = self.required.withheld(totals, words, parent, self.tokens[..., :made])
        ends, dead = words == self.symbols.eos, totals == -torch.inf
        finish = (ends & ~dead)[:, : self.beam]
        self._finish(finish, totals, values, words, parent, made)
        rank = torch.arange(words.shape[1], device=words.device)
        goes = torch.where(ends | dead, rank + words.shape[1], rank).topk(self.beam, largest=False)[1]
        none = (ends | dead).gather(1, goes)
        parent, chosen = parent.gather(1, goes), words.gather(1, goes)
        ending = words[:, : self.beam].masked_fill(~finish, -1)
        self.said = torch.cat((chosen.masked_fill(none, -1), ending), 1)
        self.tokens, self.log_probs = taken(self.tokens, parent), taken(self.log_probs, parent)
        self.tokens[..., made] = chosen
        self.log_probs[..., made] = values.gather(1, goes)
        self.sums = totals.gather(1, goes).masked_fill(none, -torch.inf)
        return parent

    def _finish(self, ends: Tensor, totals: Tensor, values: Tensor, words: Tensor, parent: Tensor, made: int) -> None:
        """Put those aside that end, (I, K) booleans, while there is room."""
        first = ends.shape[1]
        slot = (self.count + ends.cumsum(1) - 1).masked_fill(~ends, self.beam).clamp_max(self.beam)
        tokens, log_probs = taken(self.tokens, parent[:, :first]), taken(self.log_probs, parent[:, :first])
        tokens[..., made], log_probs[..., made] = words[:, :first], values[:, :first]
        wide = slot[..., None].expand(-1, -1, self.length)
        self.done_tokens = self.done_tokens.scatter(1, wide, tokens)
        self.done_log_probs = self.done_log_probs.scatter(1, wide, log_probs)
        self.done_lengths.scatter_(1, slot, made + 1)
        self.scores.scatter_(1, slot, totals[:, :first] / (made + 1) ** self.alpha)
        self.scores[:, self.beam] = -torch.inf
        self.count = (self.count + ends.sum(1, keepdim=True)).clamp_max(self.beam)

    def settled(self) -> Tensor:
        """(I,) booleans: K are finished, or no other can reach the score of those returned (see :class:`InBeam`)."""
        reach = (self.sums / self.length**self.alpha).amax(1)
        return (self.count[:, 0] >= self.beam) | (least_of_best(self.scores, self.returned) >= reach)

    def faulty(self) -> Tensor:
        """(I,) booleans: a sum is NaN."""
        return self.sums.isnan().any(1) | self.scores.isnan().any(1)

    def keep(self, items: Tensor) -> None:
        """Leave all items but these."""
        if self.required is not None:
            self.required.keep(items)
        names = ("tokens", "log_probs", "sums", "count", "done_tokens", "done_log_probs", "done_lengths", "scores")
        for name in names:
            setattr(self, name, getattr(self, name)[items])

    def found(self) -> Sequences:
        """The best finished hypotheses."""
        return Sequences(self.done_tokens, self.done_log_probs, self.done_lengths, self.scores).best(self.returned)
