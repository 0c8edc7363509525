"""Batches from records: seeded record by record, so that workers and processes change nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from vlplatform.data.sampler import Place, StreamSampler, mix
from vlplatform.errors import UserError
from vlplatform.task import Records

Collate = Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]


@dataclass(frozen=True)
class _Refusal:
    """A user's mistake met in a worker; raised in the main process, where its text stays one sentence."""

    text: str


class _Batches(Dataset[Any]):
    """Collated batches by the places of their records."""

    def __init__(self, records: Records, collate: Collate, seed: int) -> None:
        self.records, self.collate, self.seed = records, collate, seed

    def __getitem__(self, places: list[Place]) -> dict[str, Any] | _Refusal:
        try:
            return self.collate([self._record(*place) for place in places])
        except UserError as error:
            return _Refusal(str(error))

    def _record(self, epoch: int, index: int) -> Mapping[str, Any]:
        """Record ``index`` as ``epoch`` sees it. Only the CPU generator is borrowed."""
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(mix("record", self.seed, epoch, index))
        try:
            return self.records[index]
        finally:
            generator.set_state(state)


def train_batches(
    records: Records, collate: Collate, sampler: StreamSampler, *, workers: int = 0, pin_memory: bool = False
) -> Iterator[dict[str, Any]]:
    """The endless stream of this process's training batches, from the sampler's place on.

    Raises:
        UserError: A record cannot be made; the text is the reader's own.
    """
    return _stream(_Batches(records, collate, sampler.seed), sampler, workers, pin_memory)


def evaluation_batches(
    records: Records,
    collate: Collate,
    indices: Sequence[int],
    *,
    batch_size: int,
    workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[tuple[Sequence[int], dict[str, Any]]]:
    """Pairs (indices of the records, batch) over ``indices`` in order, the last one possibly smaller."""
    chunks = [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]
    places = [[(0, index) for index in chunk] for chunk in chunks]
    yield from zip(chunks, _stream(_Batches(records, collate, 0), places, workers, pin_memory))


def _stream(
    batches: _Batches, places: Iterable[list[Place]], workers: int, pin_memory: bool
) -> Iterator[dict[str, Any]]:
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=places,
        collate_fn=_unchanged,
        num_workers=workers,
        pin_memory=pin_memory,
        worker_init_fn=_leave_signals_to_the_parent,
        generator=torch.Generator(),  # else each new iterator draws from the global generator
    )
    for batch in loader:
        if isinstance(batch, _Refusal):
            raise UserError(batch.text)
        yield batch


def _unchanged(batch: Any) -> Any:
    return batch


def _leave_signals_to_the_parent(_: int) -> None:
    """A signal to the whole process group must not kill a worker before the parent has saved."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
