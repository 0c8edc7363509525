"""Linear maps with weights in oneDNN's own layout, for decoding on a CPU.

A decoder multiplies the same weights with a few rows, step after step. MKL, which PyTorch's ``linear`` calls, packs the
weights anew each time; oneDNN takes them packed once. Measured on two cores (AVX2) for 9487 × 512 weights: 0.4 in place
of 4.7 ms with 3 rows, 10 in place of 18 ms with 150.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ROWS = 4  # rows that the layout is chosen for; it is as quick as any other for 1 to 250
_SMALL = 1 << 17  # weights too few to be worth it: 256 × 256 with 5 rows take 34 µs as they are and 60 packed
_KEPT: weakref.WeakKeyDictionary[nn.Module, _Linear | _Cell] = weakref.WeakKeyDictionary()


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Inside the block, every ``nn.Linear`` and ``nn.LSTMCell`` that runs twice or more has its weights packed.

    For float32 on a CPU without gradients; all else runs as it is. The weights must not change inside the block.
    Results differ from the plain ones as sums in another order do. Packed weights take as much memory again. They are
    kept for the next block as long as the module lives and its weights stay what they are, told by PyTorch's version
    counter and by sums; those of a model in training (a parameter has a gradient) go with the block. Blocks may be
    nested: the outer one packs. Where PyTorch was built without oneDNN this does nothing.
    """
    changed: list[nn.Module] = []
    if _available():
        for module in model.modules():
            kind = {nn.Linear: _Linear, nn.LSTMCell: _Cell}.get(type(module))
            if kind is not None and "forward" not in vars(module):
                kept = _KEPT.get(module)
                if kept is None or not kept.sound():
                    kept = _KEPT[module] = kind(module)
                vars(module)["forward"] = kept  # the instance's own: goes before the class's
                changed.append(module)
    try:
        yield
    finally:
        training = any(parameter.grad is not None for parameter in model.parameters())
        for module in changed:
            del vars(module)["forward"]
            if training:
                _KEPT.pop(module, None)


class _Map:
    """``x Wᵀ + b``, packed from its second call on."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias, self.called = weight, bias, False
        self.layout: Tensor | None = None
        self.packed_from: tuple[Any, ...] = ()
        self.fits = _fits(weight)

    def sound(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether these are the tensors, with the values that were packed, if any were."""
        same = weight is self.weight and bias is self.bias and self.fits == _fits(weight)  # model.to(…) moves in place
        return same and (self.layout is None or self.packed_from == _print(weight))

    def __call__(self, x: Tensor) -> Tensor:
        plain = not self.fits or torch.is_grad_enabled() or x.dtype != torch.float32 or not x.numel()
        if plain or not self.called or torch.is_autocast_enabled("cpu"):
            self.called = True
            return F.linear(x, self.weight, self.bias)
        if self.layout is None:
            self.layout = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), _ROWS)
            self.packed_from = _print(self.weight)
        return torch.ops.mkldnn._linear_pointwise(x, self.layout, self.bias, "none", [], "")


def _fits(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.numel() >= _SMALL


def _print(weight: Tensor) -> tuple[Any, ...]:
    """What tells whether weights (n, m) have changed, also behind the version counter's back (``weight.data``)."""
    rows, columns = (torch.arange(1.0, size + 1) for size in weight.shape)
    sums = weight.sum(), weight[:, 0] @ rows, weight[0] @ columns
    version = None if weight.is_inference() else weight._version  # tensors made for inference count no versions
    return (weight.data_ptr(), version, *(value.item() for value in sums))


class _Linear:
    def __init__(self, module: nn.Linear) -> None:
        self.map, self.of = _Map(module.weight, module.bias), weakref.ref(module)

    def sound(self) -> bool:
        module = self.of()
        return module is not None and self.map.sound(module.weight, module.bias)

    def __call__(self, input: Tensor) -> Tensor:
        return self.map(input)


class _Cell:
    """An LSTM cell as two maps (Hochreiter and Schmidhuber 1997); gates in PyTorch's order."""

    def __init__(self, module: nn.LSTMCell) -> None:
        self.of_input, self.of_hidden = _Map(module.weight_ih, module.bias_ih), _Map(module.weight_hh, module.bias_hh)
        self.of = weakref.ref(module)

    def sound(self) -> bool:
        module = self.of()
        if module is None or not self.of_input.sound(module.weight_ih, module.bias_ih):
            return False
        return self.of_hidden.sound(module.weight_hh, module.bias_hh)

    def __call__(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        if hx is None:
            zeros = input.new_zeros(*input.shape[:-1], self.of_hidden.weight.shape[1])
            hx = zeros, zeros
        hidden, cell = hx
        into, forget, new, out = (self.of_input(input) + self.of_hidden(hidden)).chunk(4, -1)
        cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
        return out.sigmoid() * cell.tanh(), cell


def _available() -> bool:
    """Whether this PyTorch has the two operators, which the compiler's frozen graphs use too."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)
