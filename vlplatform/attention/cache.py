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

    In attention to a memory, the memory's keys and values are projected in the first call and kept.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._rooms: dict[str, Tensor] = {}  # what a tensor is the beginning of; nobody else has what lies behind it
        self.memory = False  # what is kept belongs to a memory, whose items several queries may share
        self.share = 1  # queries side by side that share an item here, as the beams of an image share its memory
        self.length = 0
        self.children: dict[str, Cache] = {}

    def child(self, name: str) -> Cache:
        """The cache of an attention inside the module, the same in every step."""
        return self.children.setdefault(name, Cache())

    def copy(self) -> Cache:
        """A cache of its own with the same contents; the tensors are shared, nothing changes them in place."""
        other = Cache()
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
        if not (self.memory and same_memory):
            own = index if self.share == 1 else index[:: self.share] // self.share
            for name, tensor in self.tensors.items():
                room = self._room(name)
                if room is None:
                    self.tensors[name] = tensor.index_select(0, own)
                else:  # as rows, which is quicker
                    room = room.flatten(1).index_select(0, own).view(len(own), *room.shape[1:])
                    self._rooms[name] = room
                    self.tensors[name] = room[tuple(map(slice, (len(own), *tensor.shape[1:])))]
        for child in self.children.values():
            child.reorder(index, same_memory=same_memory)
