"""Non-localized position attention: the logits f(x_i) of a window around pixel i (thesis eq. 3.11–3.12).

They read the query pixel alone, so any map size works; keys outside the window get a padding value v_i.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Padding = Literal["inf", "zero", "min", "learned"]
Smoothing = Literal["sqrt", "zscore"]


class PositionLogits(nn.Module):
    """Two 1×1 convolutions, an embedding and then the logits, padded and smoothed (thesis eq. 3.9, table 3.3).

    A softmax over keys is blind to a constant per query. So logits are given **relative to the padding value**:
    a key outside the window gets 0 whatever v_i is (−∞ for ``padding="inf"``), and the mean that a z-score
    subtracts never has to be known.

    Smoothing divides them by σ_p: ``sqrt`` by √d; ``zscore`` by the standard deviation (biased, ε = 1e-5 inside
    the root, so constant logits give 0) of each query's **realigned** logits over the keys it attends to, padded
    ones included; with −∞ padding, over the window's keys.

    Where we differ: the thesis has no z-score with −∞ padding. It names no activation between the layers, nor
    have we; the embedding's width is ours.

    Args:
        dim: Channels C of the map.
        hidden: Width of the embedding.
        heads: Attention heads, each with logits of its own.
        places: Window places T per head.
        channels: d of the √d.
        padding: v_i: −∞, 0, the least of f(x_i), or one more logit of f.
        smoothing: σ_p.

    Raises:
        ValueError: Unknown padding or smoothing.
    """

    def __init__(
        self,
        dim: int,
        *,
        hidden: int,
        heads: int,
        places: int,
        channels: int,
        padding: Padding,
        smoothing: Smoothing,
    ) -> None:
        super().__init__()
        if padding not in get_args(Padding):
            raise ValueError(f"padding={padding} is not one of {', '.join(get_args(Padding))}")
        if smoothing not in get_args(Smoothing):
            raise ValueError(f"smoothing={smoothing} is not one of {', '.join(get_args(Smoothing))}")
        self.heads, self.places, self.channels = heads, places, channels
        self.padding, self.smoothing = padding, smoothing
        self.embedding = nn.Conv2d(dim, hidden, 1)
        self.logits = nn.Conv2d(hidden, heads * (places + (padding == "learned")), 1)

    @property
    def fill(self) -> float:
        """The relative logit of keys outside the window."""
        return float("-inf") if self.padding == "inf" else 0.0

    def forward(self, x: Tensor, inside: Tensor, keys: int) -> Tensor:
        """Smoothed logits relative to the padding value, (B, heads, H, W, T).

        Args:
            x: (B, C, H, W).
            inside: (H, W, T) booleans: the key of this window place lies on the map.
            keys: How many keys a query attends to, the padded ones included.
        """
        embedded = self.embedding(x)
        logits = self._relative(embedded) if self.padding == "learned" else self.logits(embedded)
        logits = logits.permute(0, 2, 3, 1).unflatten(3, (self.heads, -1)).movedim(3, 1)
        if self.padding == "min":
            logits = logits - logits.amin(-1, keepdim=True)
        if self.smoothing == "sqrt":
            return logits * self.channels**-0.5
        return self._standardise(logits, inside, keys)

    def _relative(self, embedded: Tensor) -> Tensor:
        """Logits less the learned padding: the difference of two linear maps is one, so no map is subtracted."""
        rows = (parameter.unflatten(0, (self.heads, -1)) for parameter in self.logits.parameters())
        weight, bias = ((of[:, :-1] - of[:, -1:]).flatten(0, 1) for of in rows)
        return F.conv2d(embedded, weight, bias)

    def _standardise(self, logits: Tensor, inside: Tensor, keys: int) -> Tensor:
        """Logits over σ_p of their query; a key outside the window counts there as a relative logit of 0."""
        wide = torch.promote_types(logits.dtype, torch.float32)
        present = inside.to(wide)
        local = self.padding == "inf"
        count = present.sum(-1, keepdim=True) if local else keys
        values = logits.to(wide) * present
        mean = values.sum(-1, keepdim=True) / count
        variance = (values * values).sum(-1, keepdim=True) / count - mean * mean
        if local:  # nothing else keeps these logits near 0
            logits = logits - mean.to(logits.dtype)
        return logits * torch.rsqrt(variance.clamp_min(0) + 1e-5).to(logits.dtype)

    def macs(self, height: int, width: int) -> int:
        """Multiply–adds of the two convolutions, without biases; a learned padding costs none of its own."""
        hidden = self.embedding.out_channels
        return height * width * hidden * (self.embedding.in_channels + self.heads * self.places)


def check_window(window: int) -> None:
    """Refuse a window without a middle (``ValueError``)."""
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window={window} must be odd and positive: it is centred on the query")
