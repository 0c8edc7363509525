"""What an attention keeps between steps grows, moves and is copied like plain tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from vlplatform.attention.cache import Cache

Mode = Callable[[], AbstractContextManager[object]]


def grown(cache: Cache, steps: list[Tensor]) -> Tensor:
    for step in steps:
        cache.extend("key", step, 2)
    return cache.tensors["key"]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_growing_and_moving(mode: Mode) -> None:
    torch.manual_seed(0)
    steps = [torch.randn(3, 2, n, 4) for n in (1, 1, 3, 1, 20, 1)]
    order = torch.tensor([2, 0, 0, 1])
    with mode():
        cache, wanted = Cache(), torch.cat(steps, 2)
        assert torch.equal(grown(cache, steps), wanted)
        cache.reorder(order)
        assert torch.equal(cache.tensors["key"], wanted[order])
        more = [torch.randn(4, 2, 1, 4) for _ in range(12)]
        wanted = torch.cat([wanted[order], *more], 2)
        assert torch.equal(grown(cache, more), wanted)
        cache.expand(2)
        assert torch.equal(cache.tensors["key"], wanted.repeat_interleave(2, 0))
        new = torch.randn(8, 2, 1, 4)
        assert torch.equal(grown(cache, [new]), torch.cat((wanted.repeat_interleave(2, 0), new), 2))


@torch.no_grad()
def test_copies_grow_apart() -> None:
    steps = [torch.randn(1, 1, 1, 2) for _ in range(5)]
    one = Cache()
    before = grown(one, steps[:3])
    kept, two = before.clone(), one.copy()
    of_one, of_two = grown(one, [steps[3]]), grown(two, [steps[4]])
    assert torch.equal(of_one, torch.cat((*steps[:3], steps[3]), 2))
    assert torch.equal(of_two, torch.cat((*steps[:3], steps[4]), 2))
    assert torch.equal(before, kept)


@torch.no_grad()
def test_most_steps_copy_nothing_that_was_there() -> None:
    cache = Cache()
    places = {grown(cache, [torch.zeros(1, 1, 1, 2)]).data_ptr() for _ in range(18)}
    assert len(places) <= 4


def test_from_one_mode_into_another() -> None:
    cache, steps = Cache(), [torch.randn(1, 1, 1, 2) for _ in range(6)]
    with torch.inference_mode():
        grown(cache, steps[:3])
    with torch.no_grad():
        grown(cache, steps[3:5])
    assert torch.equal(grown(cache, steps[5:]), torch.cat(steps, 2))


def test_gradients_reach_every_step() -> None:
    steps = [torch.randn(2, 1, 1, 2, requires_grad=True) for _ in range(4)]
    cache = Cache()
    grown(cache, steps[:2])
    cache.reorder(torch.tensor([1, 1]))
    (grown(cache, steps[2:]) ** 2).sum().backward()
    assert steps[0].grad is not None
    torch.testing.assert_close(steps[0].grad, torch.stack((torch.zeros(1, 1, 2), 4 * steps[0][1].detach())))
    assert all(step.grad is not None for step in steps)


class Plain:
    """What a cache with children must hold, as tensors that nobody shares."""

    def __init__(self, of: dict[tuple[str, str], Tensor]) -> None:
        self.of = of

    def same(self, cache: Cache) -> bool:
        return all(torch.equal(cache.child(child).tensors[name], of) for (child, name), of in self.of.items())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_layers_that_use_each_others_memory_stay_apart(mode: Mode, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)

    def number(most: int) -> int:
        return int(torch.randint(most, (), generator=draw))

    with mode():
        rows, places = 3, [(child, name) for child in "abc" for name in ("key", "value", "small")]
        pairs = [(Cache(), Plain({place: torch.zeros(rows, 2, 0, 3) for place in places}))]
        for step in range(40):
            for cache, plain in pairs:
                for child, name in places:
                    new = torch.randn(len(plain.of[child, name]), 2, 1, 3, generator=draw)
                    cache.child(child).extend(name, new, 2)
                    plain.of[child, name] = torch.cat((plain.of[child, name], new), 2)
            cache, plain = pairs[number(len(pairs))]
            there = len(plain.of["a", "key"])
            if number(8) == 0 and len(pairs) < 4:
                pairs.append((cache.copy(), Plain(dict(plain.of))))
            if number(3):
                index = torch.randint(there, (there if number(3) else 1 + number(5),), generator=draw)
                cache.reorder(index)
                plain.of = {place: of[index] for place, of in plain.of.items()}
            assert all(plain.same(cache) for cache, plain in pairs), step


@torch.no_grad()
def test_moving_takes_no_new_memory_each_time() -> None:
    cache = Cache()
    for child in "ab":
        for name in ("key", "value"):
            for _ in range(3):
                cache.child(child).extend(name, torch.zeros(2, 1, 1, 2), 2)
    found: set[int] = set()
    for _ in range(10):
        cache.reorder(torch.tensor([1, 0]))
        found |= {cache.child(child).tensors[name].data_ptr() for child in "ab" for name in ("key", "value")}
    assert len(found) == 5  # the four and one more


@torch.no_grad()
def test_fewer_items_leave_no_memory_behind() -> None:
    cache = Cache()
    for name in ("key", "value"):
        for _ in range(3):
            cache.child("a").extend(name, torch.zeros(4, 1, 1, 2), 2)
    cache.reorder(torch.tensor([1, 0, 3, 2]))
    rooms = [weakref.ref(room) for room in (*cache.child("a")._rooms.values(), *cache._spares)]
    assert len(rooms) == 3
    cache.reorder(torch.tensor([0, 2]))
    assert not any(room() is not None for room in rooms)
