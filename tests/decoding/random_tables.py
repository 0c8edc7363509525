"""A decoder of random tables: what follows depends on the item and the last two tokens."""

from __future__ import annotations

import torch
from reference.beam import Grown, Task
from torch import Tensor

from vlplatform.decoding import DecoderState, Hypothesis, Limits, Sequences, Symbols


class Toy:
    """Counts its calls and rows; tables (I, V, V, V) of log-probabilities after (last but one, last)."""

    def __init__(self, tables: Tensor) -> None:
        self.tables, self.rows = tables, []

    def start(self, memory: Tensor | None = None) -> DecoderState:
        tables = self.tables if memory is None else memory
        return DecoderState(len(tables), rows={"before": torch.zeros(len(tables)).long()}, memory={"tables": tables})

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        self.rows.append(len(tokens))
        item = torch.arange(len(tokens)) // state.share
        out = state.memory["tables"][item, state.rows["before"], tokens]
        state.rows["before"] = tokens
        state.position += 1
        return out

    def follows(self, item: int, bos: int):
        def next_words(tokens: list[int]) -> list[float]:
            before, last = [0, bos, *tokens][-2:]
            return self.tables[item, before, last].tolist()

        return next_words

    def task(self, item: int, limits: Limits, symbols: Symbols, beam: int = 1, alpha: float = 0.0) -> Task:
        never = {symbols.pad, symbols.bos} - {symbols.eos} if limits.forbid is None else set(limits.forbid)
        return Task(
            self.follows(item, symbols.bos),
            beam,
            limits.max_length,
            symbols.eos,
            alpha,
            limits.min_length,
            tuple(never),
            symbols.unk,
            limits.unk_penalty,
        )


def toy(seed: int, items: int, words: int, sharp: float = 1.5, dtype: torch.dtype = torch.float64) -> Toy:
    """Random tables."""
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(items, words, words, words, generator=generator, dtype=torch.float64) * sharp
    return Toy(tables.log_softmax(-1).to(dtype))


def agree(found: Sequences, expected: list[list[Grown]], alpha: float = 0.0) -> None:
    """The same tokens, log-probabilities and scores in the same order."""
    hypotheses = found.hypotheses()
    assert len(hypotheses) == len(expected)
    for ours, theirs in zip(hypotheses, expected):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        for mine, its in zip(ours, theirs):
            assert isinstance(mine, Hypothesis)
            torch.testing.assert_close(mine.log_probs, its.log_probs, rtol=0, atol=1e-12)
            assert abs(mine.score - its.score(alpha)) < 1e-12
