"""The stream of samples: complete, continued exactly, alike for any number of processes."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlplatform.data.sampler import StreamSampler, advance, mix, permutation


def places(sampler: StreamSampler, batches: int) -> list[tuple[int, int]]:
    return [place for batch in islice(sampler, batches) for place in batch]


@given(size=st.integers(1, 30), batch=st.integers(1, 40), taken=st.integers(0, 5), world=st.integers(1, 4))
def test_stream(size: int, batch: int, taken: int, world: int) -> None:
    batch = max(batch, world)
    whole = places(StreamSampler(size, batch, seed=1), taken + 3)
    for epoch in range(len(whole) // size):
        chunk = whole[epoch * size : (epoch + 1) * size]
        assert {e for e, _ in chunk} == {epoch}
        assert sorted(index for _, index in chunk) == list(range(size))
    epoch, position = advance(0, 0, taken * batch, size)
    ranks = [
        list(islice(StreamSampler(size, batch, seed=1, epoch=epoch, position=position, rank=r, world=world), 3))
        for r in range(world)
    ]
    assert all(ranks[r][b] for r in range(world) for b in range(3))
    joined = [place for b in range(3) for r in range(world) for place in ranks[r][b]]
    assert joined == whole[taken * batch :]


def test_seeds_and_epochs_differ() -> None:
    orders = [tuple(permutation(50, seed, epoch)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9
    assert permutation(50, 1, 2) == permutation(50, 1, 2)
    assert mix("a", 1, 12) != mix("a", 11, 2)


@pytest.mark.parametrize("bad", [{"size": 0}, {"position": 5}, {"rank": 1}, {"world": 3}])
def test_impossible_streams_are_refused(bad: dict[str, int]) -> None:
    values = {"size": 5, "batch_size": 2, "seed": 0, **bad}
    with pytest.raises(ValueError, match=r"position|shared"):
        StreamSampler(values.pop("size"), values.pop("batch_size"), **values)
