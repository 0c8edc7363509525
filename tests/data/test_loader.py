"""Batches: a record looks the same whoever makes it; errors keep their sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import pytest
import torch

from vlplatform.data.loader import evaluation_batches, train_batches
from vlplatform.data.sampler import StreamSampler
from vlplatform.errors import UserError


class Noise:
    def __init__(self, bad: int = -1) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        if index == self.bad:
            raise UserError("Record 3 is broken.")
        return {"id": str(index), "noise": torch.rand(2)}


def collate(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"ids": [r["id"] for r in records], "noise": torch.stack([r["noise"] for r in records])}


def test_workers_processes_and_place_change_nothing() -> None:
    def stream(workers: int, **place: int) -> Any:
        return train_batches(Noise(), collate, StreamSampler(5, 4, seed=7, **place), workers=workers)

    before = torch.get_rng_state()
    alone = list(islice(stream(0), 5))
    assert torch.equal(torch.get_rng_state(), before)
    helped = list(islice(stream(2), 5))
    halves = [list(islice(stream(0, rank=r, world=2), 5)) for r in range(2)]
    later = next(stream(0, epoch=1, position=3))
    for a, b, first, second in zip(alone, helped, *halves):
        assert a["ids"] == b["ids"] == first["ids"] + second["ids"]
        assert torch.equal(a["noise"], b["noise"])
        assert torch.equal(a["noise"], torch.cat([first["noise"], second["noise"]]))
    assert later["ids"] == alone[2]["ids"]
    assert torch.equal(later["noise"], alone[2]["noise"])
    seen = {(name, tuple(noise.tolist())) for batch in alone for name, noise in zip(batch["ids"], batch["noise"])}
    assert len(seen) == 20  # another epoch, another augmentation


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_record_keeps_its_sentence(workers: int) -> None:
    with pytest.raises(UserError, match=r"^Record 3 is broken\.$"):
        list(islice(train_batches(Noise(3), collate, StreamSampler(5, 5, seed=0), workers=workers), 2))


def test_evaluation_keeps_the_order_and_the_rest() -> None:
    pairs = list(evaluation_batches(Noise(), collate, range(0, 5, 2), batch_size=2))
    assert [list(indices) for indices, _ in pairs] == [[0, 2], [4]]
    assert [batch["ids"] for _, batch in pairs] == [["0", "2"], ["4"]]
    assert list(evaluation_batches(Noise(), collate, [], batch_size=2)) == []
