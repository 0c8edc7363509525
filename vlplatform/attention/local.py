"""Localised bilateral attention: k×k attention in place of a k×k convolution (attention thesis, chapter 4).

``y_i = W_M [… Σ_{j∈Ω_i} softmax_j(σ(x_i)·φ(x_j) + γ(σ(x_i), j)) β(x_j) …]`` per head, Ω_i the k×k window around
pixel i (eq. 4.2, 4.6–4.9). The content part compares query and key (eq. 4.3–4.4), the geometric part predicts
one logit per place and head from the projected query (eq. 4.5, 4.9), as a dynamic convolution in two dimensions does.

Read from table 4.2, whose parameter counts are met exactly: query, key, value, output and the predictor are 1×1
convolutions with bias, each followed by batch norm. The predictor's channel t·M + m is place t of head m.

Where the text is silent: neighbours outside the image take no part (``border="mask"``), or are zeros that do
(``"zero"``). The thesis has no factor on the content logits; ``scale="sqrt"`` divides them by the root of the head
width.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vlplatform.attention import kernels
from vlplatform.attention.kernels import layer, window
from vlplatform.attention.mechanism import Mechanism

Border = Literal["mask", "zero"]
Scale = Literal["none", "sqrt"]


def pointwise(inputs: int, outputs: int, *, plain: bool = False) -> nn.Sequential:
    """A 1×1 convolution ``conv`` with bias and then a batch norm ``norm``; neither bias nor norm where ``plain``."""
    conv = nn.Conv2d(inputs, outputs, 1, bias=not plain)
    return nn.Sequential(OrderedDict(conv=conv) if plain else OrderedDict(conv=conv, norm=nn.BatchNorm2d(outputs)))


class LocalAttention(nn.Module):
    """What the local operators have in common: (B, C, H, W) → (B, C', H, W) for any H, W ≥ 1.

    Args:
        dim: Input channels C.
        out_dim: Output channels C', also the width of query, key and value; ``dim`` by default.
        heads: Number of heads M; they split C'.
        kernel: Side k of the window, odd.
        border: What neighbours outside the image are: masked, or zeros.
        scale: Factor of the content logits: 1, or 1/√(C'/M).
        content: With content logits.
        geometric: With position logits.
        shared: One projection is query, key and value; predictor and output then have neither bias nor norm.
        iterations: Softmax passes T; all but the last refine the content logits.

    Raises:
        ValueError: Heads that do not split the channels, an even kernel, an unknown border or scale, or
            a number below 1.
    """

    def __init__(
        self,
        dim: int,
        *,
        out_dim: int | None,
        heads: int,
        kernel: int,
        border: Border,
        scale: Scale,
        content: bool,
        geometric: bool,
        shared: bool = False,
        iterations: int = 1,
    ) -> None:
        super().__init__()
        width = dim if out_dim is None else out_dim
        if min(dim, width, heads, iterations) < 1:
            raise ValueError(f"dim={dim}, out_dim={width}, heads={heads}, iterations={iterations} must be at least 1.")
        if width % heads:
            raise ValueError(f"heads={heads} must divide the {width} output channels.")
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"kernel={kernel} must be odd and at least 1.")
        if border not in get_args(Border):
            raise ValueError(f"border={border} is not one of {', '.join(get_args(Border))}.")
        if scale not in get_args(Scale):
            raise ValueError(f"scale={scale} is not one of {', '.join(get_args(Scale))}.")
        self.width, self.heads, self.kernel, self.border, self.iterations = width, heads, kernel, border, iterations
        self.factor = (width // heads) ** -0.5 if scale == "sqrt" else 1.0
        self.shared, self.content = shared, content
        names = ("projection",) if shared else ("query", "key", "value") if content else ("query", "value")
        self.projections = nn.ModuleDict({name: pointwise(dim, width) for name in names})
        self.position = pointwise(width, kernel**2 * heads, plain=shared) if geometric else None
        self.output = pointwise(width, width, plain=shared)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` (B, C, H, W), of any memory format → (B, C', H, W)."""
        if kernels.fused_wanted(x) and layer.fits(self, x):
            return layer.run(self, x)
        query, keys, values, position, mask = self._parts(x)
        attended, _ = window.attend(query, keys, values, position, mask, self.factor, self.iterations)
        return self.output(attended.flatten(1, 2))

    def _parts(self, x: Tensor) -> tuple[Tensor | None, list[Tensor], list[Tensor], Tensor | None, Tensor | None]:
        """Query (B, M, D, H, W), taps of keys and values, position logits (k², B, M, H, W), border mask."""
        projected = {name: module(x) for name, module in self.projections.items()}
        query = projected["projection" if self.shared else "query"]
        heads = {name: feature.unflatten(1, (self.heads, -1)) for name, feature in projected.items()}
        taps = {name: window.taps_of(heads[name], self.kernel) for name in heads if name != "query"}
        position = None
        if self.position is not None:
            position = self.position(query).unflatten(1, (self.kernel**2, self.heads)).movedim(1, 0)
        height, columns = x.shape[2:]
        mask = window.border_mask(height, columns, self.kernel, query) if self.border == "mask" else None
        values = taps["projection" if self.shared else "value"]
        if not self.content:
            return None, [], values, position, mask
        if self.shared:
            return heads["projection"], values, values, position, mask
        return heads["query"], taps["key"], values, position, mask

    def macs(self, height: int, width: int) -> int:
        """Multiply–adds for one H×W map: convolutions without bias, affinities, weighted sums; norms left out.

        A pass of the softmax costs one affinity where there is content, and one weighted sum.
        """
        convolutions = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Conv2d))
        window_products = self.iterations * (1 + self.content) * self.kernel**2 * self.width
        return height * width * (convolutions + window_products)

    @torch.no_grad()
    def attention_maps(self, x: Tensor, row: int, col: int) -> dict[str, Tensor]:
        """The weights of the pixel (``row``, ``col``) over the map, with the running statistics of the norms.

        Returns:
            ``content``, ``position`` and ``bilateral``, those that the operator has, (B, heads, H, W) each. They
            sum to 1 per head, or to less where zeros beyond the border took part.

        Raises:
            IndexError: The pixel lies outside the map.
        """
        height, width = x.shape[2:]
        if not (0 <= row < height and 0 <= col < width):
            raise IndexError(f"pixel ({row}, {col}) lies outside the {height}×{width} map.")
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            query, keys, _, position, mask = self._parts(x)
        finally:
            for module in training:
                module.training = True

        def here(tensor: Tensor) -> Tensor:
            return tensor[..., row : row + 1, col : col + 1]

        logits: dict[str, Tensor] = {}
        inside = None if mask is None else here(mask)
        if query is not None:
            near = [here(key) for key in keys]
            logits["content"] = window.content_logits(here(query), near, inside, self.factor, self.iterations)[0]
        if position is not None:
            logits["position"] = here(position) if inside is None else here(position) + inside
        if len(logits) == 2:
            logits["bilateral"] = logits["content"] + here(position) if position is not None else logits["content"]
        return {name: self._on_map(value.softmax(0), height, width, row, col) for name, value in logits.items()}

    def _on_map(self, weights: Tensor, height: int, width: int, row: int, col: int) -> Tensor:
        """(k², B, M, 1, 1) → (B, M, H, W), each weight on the pixel that it belongs to."""
        border, side = self.kernel // 2, self.kernel
        out = weights.new_zeros(*weights.shape[1:3], height + side - 1, width + side - 1)
        out[..., row : row + side, col : col + side] = weights.movedim(0, -1).reshape(*weights.shape[1:3], side, side)
        return out[..., border : border + height, border : border + width]


class LocalContent(LocalAttention):
    """Content attention over the window (eq. 4.3–4.4; table 4.2 a). Arguments: :class:`LocalAttention`."""

    def __init__(
        self,
        dim: int,
        *,
        out_dim: int | None = None,
        heads: int = 8,
        kernel: int = 3,
        border: Border = "mask",
        scale: Scale = "none",
    ) -> None:
        super().__init__(
            dim, out_dim=out_dim, heads=heads, kernel=kernel, border=border, scale=scale, content=True, geometric=False
        )


class LocalGeometric(LocalAttention):
    """Geometric attention over the window (eq. 4.5; table 4.2 b). Arguments: :class:`LocalAttention`."""

    def __init__(
        self, dim: int, *, out_dim: int | None = None, heads: int = 8, kernel: int = 3, border: Border = "mask"
    ) -> None:
        super().__init__(
            dim, out_dim=out_dim, heads=heads, kernel=kernel, border=border, scale="none", content=False, geometric=True
        )


class LocalBilateral(LocalAttention):
    """Content and position in one softmax (eq. 4.6–4.9; table 4.2 c–f). Arguments: :class:`LocalAttention`."""

    def __init__(
        self,
        dim: int,
        *,
        out_dim: int | None = None,
        heads: int = 8,
        kernel: int = 3,
        border: Border = "mask",
        scale: Scale = "none",
    ) -> None:
        super().__init__(
            dim, out_dim=out_dim, heads=heads, kernel=kernel, border=border, scale=scale, content=True, geometric=True
        )


_THESIS = "Attention thesis, chapter 4"
MECHANISMS = (
    Mechanism(
        name="local_content",
        build=LocalContent,
        sockets=("local",),
        summary="k×k attention by content",
        paper=_THESIS,
        equations="eq. 4.1–4.4, table 4.2 a",
    ),
    Mechanism(
        name="local_geometric",
        build=LocalGeometric,
        sockets=("local",),
        summary="k×k attention by predicted position weights",
        paper=_THESIS,
        equations="eq. 4.5, table 4.2 b",
    ),
    Mechanism(
        name="local_bilateral",
        build=LocalBilateral,
        sockets=("local",),
        summary="k×k attention by content and position in one softmax",
        paper=_THESIS,
        equations="eq. 4.6–4.9, table 4.2 c–f",
        families={"local": "bilateral"},
    ),
)
