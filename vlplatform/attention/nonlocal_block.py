"""Non-local block: each pixel attends to all of them (Wang et al., CVPR 2018).

Paper: "Non-local Neural Networks", eq. 1–6. Public code: mmcv's NonLocal2d, whose parameter names, modes and
initialisation these are.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform.attention.mechanism import Mechanism

Mode = Literal["embedded_gaussian", "gaussian", "dot_product", "concatenation"]


class NonLocal(nn.Module):
    """``y_i = x_i + W_out Σ_j w_ij g(x_j)`` over all M keys j, with w by mode:

    * ``embedded_gaussian``: softmax_j(θ_i·φ_j / √d), d the query channels of a head; without ``scale``, no √d
    * ``gaussian``: softmax_j(x_i·x_j)
    * ``dot_product``: θ_i·φ_j / M, multiplied in the order θ(φᵀg), so that memory is O(HW)
    * ``concatenation``: ReLU(w·[θ_i ; φ_j]) / M, one w per head

    θ, φ and g are 1×1 convolutions C → C/r. W_out starts at 0, so a fresh operator is the identity.

    Where we differ: ``heads`` are ours (default one), and on a map one pixel high or wide the sub-sampling pools
    along the other axis only, where mmcv fails.

    Args:
        dim: Channels C.
        mode: The weights.
        heads: Heads; they split the channels.
        reduction: r; the inner maps have max(1, ⌊C/r⌋) channels.
        scale: Divide the logits of ``embedded_gaussian`` by √d.
        sub_sample: Max-pool keys and values 2×2.
        norm: Batch norm after W_out, which then has no bias; its gain starts at 0.

    Raises:
        ValueError: Unknown mode, channels that the heads cannot split, or a number below 1.
    """

    def __init__(
        self,
        dim: int,
        *,
        mode: Mode = "embedded_gaussian",
        heads: int = 1,
        reduction: int = 2,
        scale: bool = True,
        sub_sample: bool = False,
        norm: bool = False,
    ) -> None:
        super().__init__()
        if mode not in get_args(Mode):
            raise ValueError(f"mode={mode} is not one of {', '.join(get_args(Mode))}")
        if min(heads, reduction) < 1:
            raise ValueError(f"heads={heads} and reduction={reduction} must be at least 1")
        inner = max(1, dim // reduction)
        if inner % heads or (mode == "gaussian" and dim % heads):
            raise ValueError(f"heads={heads} must divide the {inner} inner channels (of {dim})")
        self.mode, self.heads, self.sub_sample = mode, heads, sub_sample
        channels = (dim if mode == "gaussian" else inner) // heads
        self.logit_scale = channels**-0.5 if mode == "embedded_gaussian" and scale else 1.0
        self.g = nn.Conv2d(dim, inner, 1)
        embedded = mode != "gaussian"
        self.theta = nn.Conv2d(dim, inner, 1) if embedded else nn.Identity()
        self.phi = nn.Conv2d(dim, inner, 1) if embedded else nn.Identity()
        if mode == "concatenation":
            self.concat_project = nn.Conv2d(2 * inner, heads, 1, groups=heads, bias=False)
        output, normalise = nn.Conv2d(inner, dim, 1, bias=not norm), nn.BatchNorm2d(dim)
        self.conv_out = nn.Sequential(output, normalise) if norm else output
        for convolution in (self.g, self.theta, self.phi):
            if isinstance(convolution, nn.Conv2d) and convolution.bias is not None:
                nn.init.normal_(convolution.weight, std=0.01)
                nn.init.zeros_(convolution.bias)
        for parameter in (normalise if norm else output).parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C, H, W)."""
        query, key, value = self._project(x)
        if self.mode == "dot_product":
            mixed = query @ (key.transpose(2, 3) @ value / key.shape[2])
        elif self.mode == "concatenation":
            mixed = self._concatenation_weights(query, key) @ value
        else:
            bias = self.position_bias(x, query)
            bias = bias if bias is None else bias.to(query.dtype)
            mixed = F.scaled_dot_product_attention(query, key, value, bias, scale=self.logit_scale)
        return x + self.conv_out(mixed.transpose(2, 3).flatten(1, 2).unflatten(2, x.shape[-2:]))

    def position_bias(self, x: Tensor, query: Tensor) -> Tensor | None:
        """What is added to the scaled logits by where the keys are: none here.

        Args:
            x: (B, C, H, W).
            query: (B, heads, HW, d).

        Returns:
            (B, heads, HW, HW), query by key.
        """
        return None

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query (B, heads, HW, d), key (B, heads, M, d) and value (B, heads, M, d')."""
        key, value = self.phi(x), self.g(x)
        if self.sub_sample:
            pool = (min(2, x.shape[2]), min(2, x.shape[3]))
            key, value = F.max_pool2d(key, pool), F.max_pool2d(value, pool)
        query, key, value = (
            tensor.flatten(2).unflatten(1, (self.heads, -1)).transpose(2, 3) for tensor in (self.theta(x), key, value)
        )
        return query, key, value

    def _concatenation_weights(self, query: Tensor, key: Tensor) -> Tensor:
        weight = self.concat_project.weight.reshape(self.heads, 2, -1, 1)  # a head's halves for θ and φ
        pair = query @ weight[:, 0] + (key @ weight[:, 1]).transpose(2, 3)
        return pair.relu() / key.shape[2]

    @torch.no_grad()
    def attention_maps(self, x: Tensor, row: int, col: int) -> dict[str, Tensor]:
        """The weights of the pixel (row, col) over the map, (B, heads, H, W).

        Key ``content``; with a position term also ``position`` (alone) and ``bilateral`` (both together). They
        are probabilities in the softmax modes; in the others as the block uses them, ``dot_product`` of any
        sign. A sub-sampled key shares its weight equally among its pixels. Raises ``IndexError`` outside the map.
        """
        height, width = x.shape[-2:]
        query, key, _ = self._project(x)
        pixel = query.unflatten(2, (height, width))[:, :, row, col].unsqueeze(2)
        if self.mode == "concatenation":
            return {"content": self._on_map(self._concatenation_weights(pixel, key), height, width)}
        content = pixel @ key.transpose(2, 3)
        if self.mode == "dot_product":
            return {"content": self._on_map(content / key.shape[2], height, width)}
        logits = {"content": content * self.logit_scale}
        if (bias := self.position_bias(x, query)) is not None:
            position = bias.unflatten(2, (height, width))[:, :, row, col].unsqueeze(2)
            logits |= {"position": position, "bilateral": logits["content"] + position}
        return {name: self._on_map(values.softmax(-1), height, width) for name, values in logits.items()}

    def _on_map(self, weights: Tensor, height: int, width: int) -> Tensor:
        """Weights of one query (B, heads, 1, M) over the pixels, (B, heads, H, W)."""
        if not self.sub_sample:
            return weights.squeeze(2).unflatten(2, (height, width))
        pool = (min(2, height), min(2, width))
        cells = weights.squeeze(2).unflatten(2, (height // pool[0], width // pool[1])) / (pool[0] * pool[1])
        spread = cells.repeat_interleave(pool[0], 2).repeat_interleave(pool[1], 3)
        return F.pad(spread, (0, width - spread.shape[3], 0, height - spread.shape[2]))

    def macs(self, height: int, width: int) -> int:
        """Multiply–adds of a map: convolutions without biases, affinity and aggregation."""
        pixels, inner = height * width, self.g.out_channels
        keys = (height // min(2, height)) * (width // min(2, width)) if self.sub_sample else pixels
        dim = self.g.in_channels
        projections = pixels * dim * inner * (2 if self.mode == "gaussian" else 4)
        if self.mode == "dot_product":
            return projections + (keys + pixels) * inner * inner // self.heads
        affinity = {
            "embedded_gaussian": pixels * keys * inner,
            "gaussian": pixels * keys * dim,
            "concatenation": (pixels + keys) * inner,
        }
        return projections + affinity[self.mode] + pixels * keys * inner


MECHANISMS = (
    Mechanism(
        name="nonlocal",
        build=NonLocal,
        sockets=("context",),
        summary="every pixel to every other",
        paper="Wang et al., CVPR 2018",
        equations="1–6",
    ),
)
