"""Bi-SA: bilateral multi-head self-attention (attention thesis, §3.4, eq. 3.8–3.12; tables 3.6 and 3.7).

No public code was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import torch
from torch import Tensor, nn

from vlplatform.attention.kernels.band import add_band, dense, inside
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.position_logits import Padding, Smoothing
from vlplatform.attention.score_term import Block, Call, Operand, ScoreTerm, Sizes
from vlplatform.errors import UserError


class Bilateral(ScoreTerm):
    """``softmax_j(q_i k_jᵀ / √d + δ_p(x_i, i, j) / σ_p)`` with position logits f(x_i) in a window around query i.

    f is two linear maps of the query's token, k logits per head (eq. 3.11); keys outside the window get a padding
    value v_i (eq. 3.12). A causal call turns the window to the k keys that end with the query, as dynamic convolutions
    do in a decoder. A softmax is blind to a constant per query, so logits are given relative to the padding value: a
    key outside the window gets 0 (or, with ``padding=inf``, is invisible), and no mean has to be subtracted.

    Smoothing divides them by σ_p: ``sqrt`` by √d, ``zscore`` by the deviation (biased, ε = 1e-5 in the root) of a
    query's realigned logits over the keys it may attend to, padded ones included; with ``padding=inf`` over
    the window's. The thesis takes ``sqrt`` and zero padding in translation, where z-scores kept its models from ending
    sentences.

    Where we differ: eq. 3.12 lets |i − j| reach ⌈(k+1)/2⌉, one more than a window of k has; here (k−1)/2. The thesis
    names no width for f's embedding: here it is one head's, which keeps f at a twentieth of the projections.

    Args:
        sizes: Of the attention.
        window: k; odd, unless every call is causal.
        padding: v_i: −∞, 0, the least of f(x_i), or one more logit of f.
        smoothing: σ_p.
        hidden: Width of f's embedding; one head's unless given.

    Raises:
        ValueError: A window below 1, unknown padding or smoothing.
    """

    name = "bilateral_sa"

    def __init__(
        self,
        sizes: Sizes,
        *,
        window: int = 31,
        padding: Padding = "zero",
        smoothing: Smoothing = "sqrt",
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        if padding not in get_args(Padding):
            raise ValueError(f"padding={padding} is not one of {', '.join(get_args(Padding))}")
        if smoothing not in get_args(Smoothing):
            raise ValueError(f"smoothing={smoothing} is not one of {', '.join(get_args(Smoothing))}")
        if window < 1 or (hidden is not None and hidden < 1):
            raise ValueError(f"window={window} and hidden={hidden} must be at least 1")
        self.window, self.heads, self.key_dim = window, sizes.heads, sizes.key_dim
        self.padding, self.smoothing, self.hidden = padding, smoothing, hidden or sizes.key_dim
        self.causal_calls = True if window % 2 == 0 else None
        self.embedding = nn.Linear(sizes.dim, self.hidden)
        self.logits = nn.Linear(self.hidden, sizes.heads * (window + (padding == "learned")))

    def prepare(self, call: Call, query: Tensor, key: Tensor) -> Mapping[str, Operand]:
        """The smoothed logits of the window's places, relative to the padding value: (B, h, N, k)."""
        call.needs_own_sequence(self.title)
        if not call.causal and self.window % 2 == 0:
            raise UserError(f"attn.window={self.window} is even: a window without causal=True is centred, hence odd.")
        taps = self.logits(self.embedding(call.query)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if self.padding == "learned":
            taps = taps[..., :-1] - taps[..., -1:]
        elif self.padding == "min":
            taps = taps - taps.amin(-1, keepdim=True)
        taps = taps * self.key_dim**-0.5 if self.smoothing == "sqrt" else self._standardised(taps, call)
        return {"taps": Operand(taps, rows=2)}

    def add(self, logits: Tensor, block: Block) -> Tensor:
        """The logits with the window's, in place."""
        return add_band(logits, block.operands["taps"], block.start, self._left(block.causal))

    def bias(self, block: Block) -> Tensor:
        """The realigned logits (b, h, R, M)."""
        return dense(block.operands["taps"], block.start, self._left(block.causal), block.keys)

    def visible(self, block: Block) -> Tensor | None:
        """With ``padding=inf`` the window, (R, M), else everything."""
        taps = block.operands["taps"]
        if self.padding != "inf":
            return None
        return inside(block.rows, block.keys, self.window, block.start, self._left(block.causal), taps.device)

    def _left(self, causal: bool) -> int:
        """Window places before the query's own."""
        return self.window - 1 if causal else self.window // 2

    def _standardised(self, taps: Tensor, call: Call) -> Tensor:
        """Logits over their query's σ_p, over the keys that it may attend to."""
        queries, left = call.query.shape[1], self._left(call.causal)
        wide = taps.to(torch.promote_types(taps.dtype, torch.float32))
        place = torch.arange(self.window, device=taps.device) - left
        key = torch.arange(call.first, call.first + queries, device=taps.device)[:, None] + place  # (N, k)
        exists = (key >= 0) & (key < call.keys)
        if call.allowed is None:
            present, count = exists[None, None], call.keys
        else:
            allowed = call.allowed.expand(*call.allowed.shape[:2], queries, call.keys)
            index = key.clamp(0, call.keys - 1).expand(*allowed.shape[:2], -1, -1)
            present = allowed.gather(-1, index) & exists
            count = allowed.sum(-1, keepdim=True)
        if self.padding == "inf":
            count = present.sum(-1, keepdim=True)
        values = wide.masked_fill(~present, 0)
        count = count.clamp_min(1) if isinstance(count, Tensor) else count
        mean = values.sum(-1, keepdim=True) / count
        variance = (values * values).sum(-1, keepdim=True) / count - mean * mean
        if self.padding == "inf":  # nothing else keeps these logits near 0
            wide = wide - mean
        return (wide * torch.rsqrt(variance.clamp_min(0) + 1e-5)).to(taps.dtype)

    def macs(self, queries: int, keys: int) -> int:
        """The two maps of f."""
        return queries * (self.embedding.weight.numel() + self.logits.weight.numel())


MECHANISMS = (
    Mechanism(
        name="bilateral_sa",
        build=Bilateral,
        term=True,
        sockets=("token",),
        summary="content logits and position logits of a window around the query",
        paper="attention thesis, chapter 3",
        equations="3.8–3.12",
        families={"token": "bilateral"},
    ),
)
