"""Batches of sentence pairs by their number of tokens, and single sentences for evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vlp_translation.corpus import Corpus, Numbers
from vlp_translation.texts import Texts
from vlplatform.text import Vocabulary


@dataclass(frozen=True)
class BatchSettings:
    """How sentence pairs become batches, and which are trained on.

    Attributes:
        max_tokens: Tokens of a batch at most, counted as its pairs times its longest sentence of either language, the
            end symbol included (fairseq's --max-tokens).
        max_sentences: Pairs of a batch at most; null: as many as fit.
        max_length: Longer training sentences, in pieces, are left out with their translation.
        max_ratio: Training pairs are left out if one side has more than so many times the pieces of the other (Moses'
            clean-corpus-n.perl: 9; fairseq's recipes: 1.5); null: none are.
        seed: Of the choice which pairs of equal lengths share a batch.
    """

    max_tokens: int = 4096
    max_sentences: int | None = None
    max_length: int = 250
    max_ratio: float | None = 9.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_length < 1 or (self.max_sentences is not None and self.max_sentences < 1):
            raise ValueError(f"max_length={self.max_length} and max_sentences={self.max_sentences} must be at least 1")
        if self.max_ratio is not None and self.max_ratio < 1:
            raise ValueError(f"max_ratio={self.max_ratio} must be at least 1")
        if self.max_tokens <= self.max_length:
            raise ValueError(
                f"max_tokens={self.max_tokens} must be above max_length={self.max_length}, so that a batch holds the "
                "longest sentence and its end symbol"
            )


class TokenBatches:
    """Training records, each of them one batch of pairs of like lengths.

    Pairs are ordered by the length of the source, then of the target, then by a seeded shuffle, and cut into batches in
    that order. The batches are the same in every process and epoch; a sampler shuffles them.

    Args:
        corpus: The pairs.
        settings: The size of a batch.
    """

    def __init__(self, corpus: Corpus, settings: BatchSettings) -> None:
        self.corpus = corpus
        lengths = corpus.lengths + 1
        shuffled = np.random.default_rng(settings.seed).permutation(len(corpus))
        self.order: NDArray[np.int64] = shuffled[np.lexsort((lengths[shuffled, 1], lengths[shuffled, 0]))]
        """The pairs' numbers, batch by batch."""
        longest = lengths[self.order].max(1)
        self.starts = _starts(longest, settings)
        """Where each batch begins in ``order``, and behind the last where it ends."""
        counts = np.diff(self.starts)
        padded = counts * np.maximum.reduceat(longest, self.starts[:-1])
        self.notes = (
            f"{len(corpus)} training pairs in {len(self)} batches of {counts.mean():.0f} pairs and "
            f"{padded.mean():.0f} tokens on average, padding included",
        )
        """What the batches are like, to be shown."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int, /) -> Mapping[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        pairs = [self.corpus[int(i)] for i in self.order[self.starts[index] : self.starts[index + 1]]]
        return {"id": f"batch {index}", "pairs": pairs}


def _starts(longest: NDArray[np.int64], settings: BatchSettings) -> NDArray[np.int64]:
    starts, start, width = [0], 0, 0
    most = settings.max_sentences or len(longest)
    for place, length in enumerate(longest.tolist()):
        wider = max(width, length)
        if place > start and (wider * (place - start + 1) > settings.max_tokens or place - start == most):
            starts.append(place)
            start, wider = place, length
        width = wider
    return np.array([*starts, len(longest)])


class SentenceRecords:
    """Evaluation records, each of them one sentence, the longest source first; ``line`` and ``reference`` as read.

    Args:
        corpus: The sentences.
        texts: Given for training sentences, whose lines are not kept: they are put together again from their numbers.
    """

    def __init__(self, corpus: Corpus, texts: Texts | None = None) -> None:
        self.corpus, self.texts = corpus, texts
        self.order: NDArray[np.int64] = np.argsort(-corpus.lengths[:, 0], kind="stable")

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int, /) -> Mapping[str, Any]:
        place = int(self.order[index])
        pair = self.corpus[place]
        if self.texts is None:
            lines = {"line": self.corpus.line(place), "reference": self.corpus.reference(place)}
        else:
            sides = zip(("line", "reference"), (self.texts.source, self.texts.target), pair[1:])
            lines = {name: side.detokenised(side.decode(numbers.tolist())) for name, side, numbers in sides}
        return {"id": pair[0], "index": place, "pairs": [pair], **lines}


def collate(records: Sequence[Mapping[str, Any]], texts: Texts) -> dict[str, Any]:
    """The B pairs of all records as one batch, padded on the right.

    ``ids``, B texts; ``source`` (B, S), each row ends with the end symbol; ``read`` (B, T), the end symbol, with which
    fairseq begins, and the target; ``targets`` (B, T), the target and the end symbol; ``tokens`` (), how many numbers
    of ``targets`` are not padding. Of evaluation also ``lines`` and ``references``, B texts as read; a reference may be
    None.
    """
    pairs: list[tuple[str, Numbers, Numbers]] = [pair for record in records for pair in record["pairs"]]
    sources, targets = [pair[1] for pair in pairs], [pair[2] for pair in pairs]
    source, target = texts.source.vocabulary, texts.target.vocabulary
    ended = _padded(targets, target)
    read = torch.cat((ended.new_full((len(pairs), 1), target.eos), ended[:, :-1]), 1)
    batch: dict[str, Any] = {
        "ids": [pair[0] for pair in pairs],
        "source": _padded(sources, source),
        "read": read.masked_fill(ended == target.pad, target.pad),
        "targets": ended,
        "tokens": (ended != target.pad).sum(),
    }
    if "line" in records[0]:
        batch["lines"] = [record["line"] for record in records]
        batch["references"] = [record["reference"] for record in records]
    return batch


def _padded(rows: Sequence[Numbers], words: Vocabulary) -> Tensor:
    """(B, longest + 1): the rows, each with the end symbol behind it."""
    padded = np.full((len(rows), 1 + max(map(len, rows))), words.pad, np.int64)
    for place, row in zip(padded, rows):
        place[: len(row)], place[len(row)] = row, words.eos
    return torch.from_numpy(padded)
