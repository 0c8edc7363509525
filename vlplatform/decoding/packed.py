"""Linear maps with weights in oneDNN's own layout, for decoding on a CPU.

A decoder multiplies the same weights with a few rows, step after step. MKL, which PyTorch's ``linear`` calls, packs the
weights anew each time; oneDNN takes them packed once. Measured on two cores (AVX2) for 9487 × 512 weights: 0.4 in place
of 4.7 ms with 3 rows, 10 in place of 18 ms with 150. Maps of one module that are given the same rows, as queries, keys
and values are, become one product: 0.23 in place of 0.39 ms for three of 512 × 512 with 5 rows.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ROWS = 16  # rows that the layout is chosen for; it is as quick as any other for 1 to 250
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
    for family in _families(model) if _available() else ():
        kept = [each for module in family if (each := _KEPT.get(module)) is not None and each.sound()]
        if len(kept) < len(family):
            kept = _made(family)
        for module, each in zip(family, kept):
            vars(module)["forward"] = _KEPT[module] = each  # the instance's own: goes before the class's
            changed.append(module)
    try:
        yield
    finally:
        training = any(parameter.grad is not None for parameter in model.parameters())
        for module in changed:
            del vars(module)["forward"]
            if training:
                _KEPT.pop(module, None)


def _families(model: nn.Module) -> Iterator[list[nn.Linear | nn.LSTMCell]]:
    """The maps and cells of a model that run as they are written, those of one module together."""
    met: set[nn.Module] = set()
    for family in ([model], *(list(module.children()) for module in model.modules())):
        parts = [part for part in dict.fromkeys(family) if isinstance(part, (nn.Linear, nn.LSTMCell))]
        parts = [part for part in parts if type(part) in (nn.Linear, nn.LSTMCell) and "forward" not in vars(part)]
        if new := [part for part in parts if part not in met]:
            met.update(new)
            yield new


def _made(family: Sequence[nn.Linear | nn.LSTMCell]) -> list[_Linear | _Cell]:
    siblings: list[_Together] = []
    return [_Linear(part, siblings) if isinstance(part, nn.Linear) else _Cell(part) for part in family]


class _Map:
    """``x Wᵀ + b``, packed from its second call on."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias, self.called = weight, bias, False
        self.layout: Tensor | None = None
        self.packed_from: _Fingerprint | None = None
        self.fits = _fits(weight)

    def sound(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether these are the tensors, with the values that were packed, if any were."""
        same = weight is self.weight and bias is self.bias and self.fits == _fits(weight)  # model.to(…) moves in place
        return same and (self.packed_from is None or self.packed_from.matches(weight))

    def takes(self, x: Tensor) -> bool:
        """Whether packed weights may serve."""
        plain = not self.fits or torch.is_grad_enabled() or x.dtype != torch.float32 or not x.numel()
        return not (plain or torch.is_autocast_enabled("cpu"))

    def __call__(self, x: Tensor) -> Tensor:
        if not self.called or not self.takes(x):
            self.called = True
            return F.linear(x, self.weight, self.bias)
        if self.layout is None:
            self.layout, self.packed_from = _packed(self.weight), _Fingerprint(self.weight)
        return _times(x, self.layout, self.bias)


class _Together:
    """Maps of one module that were given the same tensor in their first call, as one product."""

    def __init__(self, x: Tensor) -> None:
        self.given = weakref.ref(x)
        self.maps: list[_Map] = []
        self.product: tuple[Tensor, Tensor | None] | None = None
        self.ready: dict[_Map, Tensor] = {}

    def __call__(self, one: _Map, x: Tensor) -> Tensor:
        if self.given() is x and one in self.ready:
            return self.ready.pop(one)
        alone = one is not self.maps[0] or len(self.maps) == 1
        if alone or not one.takes(x) or not all(each.fits for each in self.maps):
            return one(x)
        outs = _times(x, *self._product()).split([len(each.weight) for each in self.maps], -1)
        self.given, self.ready = weakref.ref(x), dict(zip(self.maps[1:], outs[1:]))
        return outs[0]

    def _product(self) -> tuple[Tensor, Tensor | None]:
        if self.product is None:
            members = self.maps
            for member in members:
                member.packed_from = _Fingerprint(member.weight)
            biases = [torch.zeros_like(each.weight[:, 0]) if each.bias is None else each.bias for each in members]
            bias = None if all(each.bias is None for each in members) else torch.cat(biases)
            self.product = _packed(torch.cat([each.weight for each in members])), bias
        return self.product


def _packed(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)


def _times(x: Tensor, layout: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, layout, bias, "none", [], "")


def _fits(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.numel() >= _SMALL


class _Fingerprint:
    """What tells whether weights (n, m) have changed, also behind the version counter's back (``weight.data``)."""

    def __init__(self, weight: Tensor) -> None:
        self.place, self.sums = _place(weight), _sums(weight)

    def matches(self, weight: Tensor) -> bool:
        return self.place == _place(weight) and torch.equal(self.sums, _sums(weight))


def _place(weight: Tensor) -> tuple[int, int | None]:
    return weight.data_ptr(), None if weight.is_inference() else weight._version  # those for inference count none


def _sums(weight: Tensor) -> Tensor:
    """A sum of each row, and one of the first with a factor for each column: order counts, too."""
    weight = weight.detach()
    return torch.cat((weight.sum(1), weight[:1] @ _factors(weight.shape[1])))


@functools.cache
def _factors(columns: int) -> Tensor:
    return torch.linspace(0.5, 1.5, columns, dtype=torch.float32, device="cpu")  # whatever the defaults are


class _Linear:
    def __init__(self, module: nn.Linear, siblings: list[_Together]) -> None:
        self.map, self.of, self.siblings = _Map(module.weight, module.bias), weakref.ref(module), siblings
        self.together: _Together | None = None

    def sound(self) -> bool:
        module = self.of()
        return module is not None and self.map.sound(module.weight, module.bias)

    def __call__(self, input: Tensor) -> Tensor:
        if self.together is not None:
            return self.together(self.map, input)
        self.together = next((each for each in self.siblings if each.given() is input), None) or _Together(input)
        self.together.maps.append(self.map)
        if self.together not in self.siblings:
            self.siblings.append(self.together)
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
