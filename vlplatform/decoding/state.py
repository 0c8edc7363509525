"""The state of a decoder that has attention caches, tensors of its own per row, and a memory per item."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from vlplatform.attention.cache import Cache


class DecoderState:
    """Named tensors, an attention cache and the number of steps made; serves Transformers and LSTMs alike.

    An LSTM keeps ``rows={"h": …, "c": …}`` and its regions as memory; a Transformer its cache and the memory, which it
    reads from here in every step, because items leave::

        state = DecoderState(len(regions), memory={"regions": regions, "mask": mask})
        out = decoder(x, state.memory["regions"], memory_mask=state.memory.get("mask"), cache=state.cache)
        state.position += 1

    Args:
        items: Number of items I; there is one row per item until :meth:`expand`.
        rows: Tensors (R, …) of the hypotheses; a step may replace, add and remove some.
        memory: Tensors (I, …) of the items. Never copied by :meth:`expand`.

    Attributes:
        share: Rows per item.
        position: Steps made, hence the position of the next token; the decoder's step counts it.
    """

    def __init__(
        self, items: int, *, rows: Mapping[str, Tensor] | None = None, memory: Mapping[str, Tensor] | None = None
    ) -> None:
        self.items, self.share, self.position = items, 1, 0
        self.rows, self.memory, self.cache = dict(rows or {}), dict(memory or {}), Cache()
        for kind, tensors in (("rows", self.rows), ("memory", self.memory)):
            for name, tensor in tensors.items():
                if tensor.shape[0] != items:
                    raise ValueError(f"{kind}[{name!r}] has shape {tuple(tensor.shape)}; expected {items} items first")

    def expand(self, times: int) -> None:
        """Every row becomes ``times`` rows; the memory and its keys and values stay."""
        self.rows = {name: tensor.repeat_interleave(times, 0) for name, tensor in self.rows.items()}
        self.cache.expand(times)
        self.share *= times

    def reorder(self, index: Tensor) -> None:
        """Row i becomes row ``index[i]``; where items left, their memory goes too.

        Raises:
            ValueError: Not the same number of rows for every item.
        """
        left, odd = divmod(len(index), self.share)
        if odd or left > self.items:
            raise ValueError(f"{len(index)} rows are not {self.share} for each of at most {self.items} items")
        self.rows = {name: tensor.index_select(0, index) for name, tensor in self.rows.items()}
        self.cache.reorder(index, same_memory=left == self.items)
        if left < self.items:
            own = index[:: self.share] // self.share
            self.memory = {name: tensor.index_select(0, own) for name, tensor in self.memory.items()}
            self.items = left
