"""The order of training samples: an endless stream that knows its place, the same for any number of processes.

Position p of the stream is sample ``p mod N`` of the permutation seeded by ``(seed, p div N)``. A global batch is the
next ``batch_size`` positions; rank r of W takes its contiguous r-th slice. The place in the stream is the pair
(epoch, position): two numbers in a checkpoint continue it exactly, also on another number of processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

Place = tuple[int, int]
"""(epoch, index of the record): what a worker needs to make a record and its augmentation."""


def mix(*parts: int | str) -> int:
    """A 63-bit seed from ``parts``; any two different lists give unrelated seeds."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def permutation(size: int, seed: int, epoch: int) -> list[int]:
    """The order of the ``size`` records in ``epoch``."""
    generator = torch.Generator().manual_seed(mix("order", seed, epoch))
    return torch.randperm(size, generator=generator).tolist()


def advance(epoch: int, position: int, taken: int, size: int) -> tuple[int, int]:
    """The (epoch, position) after ``taken`` more samples of a stream over ``size`` records."""
    epochs, position = divmod(position + taken, size)
    return epoch + epochs, position


def share(batch_size: int, rank: int, world: int) -> slice:
    """Rank ``rank``'s contiguous slice of a global batch; slices differ by one sample at most."""
    return slice(batch_size * rank // world, batch_size * (rank + 1) // world)


class StreamSampler(Sampler[list[Place]]):
    """Endless batches of places, from (``epoch``, ``position``) on; a data set may be smaller than a batch.

    Args:
        size: Number of records N ≥ 1.
        batch_size: Samples of a global batch, over all processes.
        seed: Seed of the run.
        epoch: Where to begin: whole passes already made …
        position: … and samples of this pass already taken, 0 ≤ position < N.
        rank: This process, 0 ≤ rank < world.
        world: Number of processes, ≤ ``batch_size``.
    """

    def __init__(
        self, size: int, batch_size: int, *, seed: int, epoch: int = 0, position: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        if size < 1 or not 0 <= position < size:
            raise ValueError(f"position {position} does not exist among {size} records")
        if not 0 <= rank < world <= batch_size:
            raise ValueError(f"a batch of {batch_size} cannot be shared by {world} processes")
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.epoch, self.position = epoch, position
        self.share = share(batch_size, rank, world)

    def __iter__(self) -> Iterator[list[Place]]:
        places = self._places()
        while True:
            yield [next(places) for _ in range(self.batch_size)][self.share]

    def _places(self) -> Iterator[Place]:
        epoch, position = self.epoch, self.position
        while True:
            order = permutation(self.size, self.seed, epoch)
            yield from ((epoch, index) for index in order[position:])
            epoch, position = epoch + 1, 0
