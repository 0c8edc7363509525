"""What an attention layer keeps between the steps of a decoder."""

from __future__ import annotations

import torch
from torch import Tensor

_SPARE = 8  # places made beyond those needed, so that most steps copy nothing to grow


class Cache:
    """Tensors of one attention module, grown along an axis step by step; the batch is axis 0.

    Hand the same object to the same module in every step, with the new tokens alone as the query::

        cache = Cache()
        for step in range(length):
            out = attn(tokens[:, step : step + 1], causal=True, cache=cache)

    In attention to a memory, the memory's keys and values are projected in the first call and kept. A tensor got from
    here holds until the next :meth:`reorder`, which may write into its memory: clone it, or :meth:`copy` the cache.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._rooms: dict[str, Tensor] = {}  # what a tensor is the beginning of; nobody else has what lies behind it
        self._spares: list[Tensor] = []  # rooms that nobody is in, for the next reordering of this and its children
        self._copied: set[str] = set()  # whose rooms a copy looks into
        self.memory = False  # what is kept belongs to a memory, whose items several queries may share
        self.share = 1  # queries side by side that share an item here, as the beams of an image share its memory
        self.length = 0
        self.children: dict[str, Cache] = {}

    def child(self, name: str) -> Cache:
        """The cache of an attention inside the module, the same in every step."""
        return self.children.setdefault(name, Cache())

    def copy(self) -> Cache:
        """A cache of its own with the same contents; what both see is never written into."""
        other = Cache()
        self._copied |= self._rooms.keys()
        other.tensors, other.length = dict(self.tensors), self.length
        other.memory, other.share = self.memory, self.share
        other.children = {name: child.copy() for name, child in self.children.items()}
        return other

    def extend(self, name: str, new: Tensor, axis: int) -> Tensor:
        """What was kept under ``name`` with ``new`` behind it, along an axis."""
        old = self.tensors.get(name)
        if old is None:
            grown = new
        elif torch.is_grad_enabled() or torch.compiler.is_compiling() or old.dtype != new.dtype:
            grown = torch.cat((old, new), axis)
        else:
            length, end = old.shape[axis], old.shape[axis] + new.shape[axis]
            room = self._room(name)
            if room is None or room.shape[axis] < end or room.is_inference() != torch.is_inference_mode_enabled():
                room = old.new_empty([*old.shape[:axis], end + _SPARE, *old.shape[axis + 1 :]])
                room.narrow(axis, 0, length).copy_(old)
            room.narrow(axis, length, end - length).copy_(new)
            self._rooms[name], grown = room, room.narrow(axis, 0, end)
        self.tensors[name] = grown
        return grown

    def _room(self, name: str) -> Tensor | None:
        """What the tensor is the beginning of, if it still is."""
        room = self._rooms.get(name)
        return None if room is None or room.data_ptr() != self.tensors[name].data_ptr() else room

    def expand(self, times: int) -> None:
        """Every batch item becomes ``times`` items side by side, as an image's one hypothesis becomes its beams.

        What belongs to a memory is not copied: more queries share it from now on.
        """
        if self.memory:
            self.share *= times
        else:
            self.tensors = {name: tensor.repeat_interleave(times, 0) for name, tensor in self.tensors.items()}
        for child in self.children.values():
            child.expand(times)

    def reorder(self, index: Tensor, *, same_memory: bool = False) -> None:
        """Choose batch items, as a beam search does after each step; ``index`` (B',) may repeat them.

        Where several queries share an item, as the beams of an image share its memory, they move together: the first of
        each group says where to.

        Args:
            index: The old place of each item.
            same_memory: Items move within their groups only: what belongs to a memory stays as it is, uncopied.
        """
        unused = self._spares
        left = self._move(index, same_memory, unused)
        self._spares = [room for room in left if all(room is not other for other in unused)]

    def _move(self, index: Tensor, same_memory: bool, spares: list[Tensor]) -> list[Tensor]:
        """Reorder into rooms that others have left; the rooms left now.

        Fresh memory costs time: twelve tensors of 320 × 10 240 numbers take 24 ms into a room and 34 into new memory.
        """
        if not (self.memory and same_memory):
            own = index if self.share == 1 else index[:: self.share] // self.share
            for name, tensor in self.tensors.items():
                room = self._room(name)
                if room is None:
                    self.tensors[name] = tensor.index_select(0, own)
                    continue
                shape, rows = (len(own), *room.shape[1:]), room.flatten(1)  # as rows, which is quicker
                spare = next((each for each in spares if _serves(each, shape, room)), None)
                if spare is None:
                    moved = rows.index_select(0, own).view(shape)
                else:
                    moved = torch.index_select(rows, 0, own, out=spare.flatten(1)).view(shape)
                self._rooms[name] = moved
                self.tensors[name] = moved[tuple(map(slice, (len(own), *tensor.shape[1:])))]
                spares = [each for each in spares if each is not spare]
                if len(room) == len(moved) and name not in self._copied:  # one of another size would serve nobody
                    spares.append(room)
                self._copied.discard(name)
        for child in self.children.values():
            spares = child._move(index, same_memory, spares)
        return spares


def _serves(spare: Tensor, shape: tuple[int, ...], room: Tensor) -> bool:
    """Whether what moves from ``room`` may be written there."""
    like = spare.shape == shape and spare.dtype == room.dtype and spare.device == room.device
    free = not torch.is_grad_enabled()  # else a backward pass may still want what stands there
    return like and free and spare.is_inference() == torch.is_inference_mode_enabled()
