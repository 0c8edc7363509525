"""Slow, obvious fairseq models: one sentence without padding, layer by layer, straight from their descriptions.

Weights are under fairseq's names, in double precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["sa", "dynamic", "light"]


@dataclass(frozen=True)
class Sizes:
    """What a model is made of; one kernel per layer for convolutions."""

    kind: Kind = "sa"
    dim: int = 12
    hidden: int = 20
    heads: tuple[int, int] = (3, 2)
    layers: tuple[int, int] = (2, 3)
    kernels: tuple[tuple[int, ...], tuple[int, ...]] = ((3, 5), (3, 1, 7))
    words: tuple[int, int] = (17, 13)
    pre: bool = False
    glu: bool = True
    shares: Literal["all", "decoder", "none"] = "none"
    learned: int = 0
    norm: bool = False
    pad: int = 1


def official(sizes: Sizes, seed: int = 0) -> dict[str, Tensor]:
    """Random weights under fairseq's names."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}

    def draw(name: str, *shape: int, around: float = 0.0, deviation: float = 0.4) -> None:
        weights[name] = around + deviation * torch.randn(*shape, generator=generator, dtype=torch.float64)

    def linear(name: str, out: int, into: int, bias: bool = True) -> None:
        draw(f"{name}.weight", out, into, deviation=into**-0.5)
        if bias:
            draw(f"{name}.bias", out)

    def norm(name: str) -> None:
        draw(f"{name}.weight", sizes.dim, around=1.0)
        draw(f"{name}.bias", sizes.dim)

    def attention(name: str) -> None:
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(f"{name}.{part}", sizes.dim, sizes.dim)

    for s, side in enumerate(("encoder", "decoder")):
        draw(f"{side}.embed_tokens.weight", sizes.words[s], sizes.dim)
        weights[f"{side}.embed_tokens.weight"][sizes.pad] = 0
        if sizes.learned:
            draw(f"{side}.embed_positions.weight", sizes.learned, sizes.dim)
            weights[f"{side}.embed_positions.weight"][sizes.pad] = 0
        if sizes.norm:
            norm(f"{side}.layernorm_embedding")
        for i in range(sizes.layers[s]):
            below = f"{side}.layers.{i}"
            convolves = sizes.kind != "sa"
            if not convolves:
                attention(f"{below}.self_attn")
            else:
                linear(f"{below}.linear1", sizes.dim * (2 if sizes.glu else 1), sizes.dim)
                linear(f"{below}.linear2", sizes.dim, sizes.dim)
                heads, kernel = sizes.heads[s], sizes.kernels[s][i]
                if sizes.kind == "dynamic":
                    linear(f"{below}.conv.weight_linear", heads * kernel, sizes.dim, bias=False)
                else:
                    draw(f"{below}.conv.weight", heads, 1, kernel)
            if side == "decoder":
                attention(f"{below}.encoder_attn")
                norm(f"{below}.encoder_attn_layer_norm")
            linear(f"{below}.fc1", sizes.hidden, sizes.dim)
            linear(f"{below}.fc2", sizes.dim, sizes.hidden)
            own = "conv_layer_norm" if side == "decoder" else "layer_norm1"
            norm(f"{below}.{own if convolves else 'self_attn_layer_norm'}")
            norm(f"{below}.{'layer_norm2' if convolves and side == 'encoder' else 'final_layer_norm'}")
        if sizes.pre:
            norm(f"{side}.layer_norm")
    if sizes.shares == "all":
        weights["encoder.embed_tokens.weight"] = weights["decoder.embed_tokens.weight"].clone()
    if sizes.shares == "none":
        draw("decoder.output_projection.weight", sizes.words[1], sizes.dim)
    else:
        weights["decoder.output_projection.weight"] = weights["decoder.embed_tokens.weight"].clone()
    return weights


class Slow:
    """A model that reads one sentence at a time."""

    def __init__(self, sizes: Sizes, weights: dict[str, Tensor]) -> None:
        self.sizes, self.weights = sizes, weights

    def linear(self, name: str, x: Tensor) -> Tensor:
        out = x @ self.weights[f"{name}.weight"].T
        return out + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else out

    def norm(self, name: str, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        scaled = (x - mean) / (variance + 1e-5).sqrt()
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def embed(self, side: str, numbers: list[int]) -> Tensor:
        rows = []
        for i, number in enumerate(numbers):
            row = math.sqrt(self.sizes.dim) * self.weights[f"{side}.embed_tokens.weight"][number]
            rows.append(row + self.position(side, self.sizes.pad + 1 + i))
        x = torch.stack(rows)
        return self.norm(f"{side}.layernorm_embedding", x) if self.sizes.norm else x

    def position(self, side: str, place: int) -> Tensor:
        if self.sizes.learned:
            return self.weights[f"{side}.embed_positions.weight"][place]
        half = self.sizes.dim // 2
        angles = [place * math.exp(-k * math.log(10000) / (half - 1)) for k in range(half)]
        return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)

    def attend(self, name: str, query: Tensor, tokens: Tensor, heads: int, causal: bool) -> Tensor:
        q, k, v = (self.linear(f"{name}.{p}_proj", x) for p, x in (("q", query), ("k", tokens), ("v", tokens)))
        width = self.sizes.dim // heads
        rows = []
        for i in range(len(query)):
            seen = i + 1 if causal else len(tokens)
            parts = []
            for h in range(heads):
                own = slice(h * width, (h + 1) * width)
                weights = (k[:seen, own] @ q[i, own] / math.sqrt(width)).softmax(0)
                parts.append(weights @ v[:seen, own])
            rows.append(torch.cat(parts))
        return self.linear(f"{name}.out_proj", torch.stack(rows))

    def convolve(self, below: str, x: Tensor, heads: int, kernel: int, causal: bool) -> Tensor:
        x = self.linear(f"{below}.linear1", x)
        if self.sizes.glu:
            x = x[:, : self.sizes.dim] * x[:, self.sizes.dim :].sigmoid()
        before = kernel - 1 if causal else kernel // 2
        share = self.sizes.dim // heads
        out = torch.zeros_like(x)
        for i in range(len(x)):
            for h in range(heads):
                if self.sizes.kind == "dynamic":
                    logits = self.weights[f"{below}.conv.weight_linear.weight"][h * kernel : (h + 1) * kernel] @ x[i]
                else:
                    logits = self.weights[f"{below}.conv.weight"][h, 0]
                for k, tap in enumerate(logits.softmax(0)):
                    if 0 <= i + k - before < len(x):
                        out[i, h * share : (h + 1) * share] += tap * x[i + k - before, h * share : (h + 1) * share]
        return self.linear(f"{below}.linear2", out)

    def around(self, norm: str, x: Tensor, sublayer) -> Tensor:
        return x + sublayer(self.norm(norm, x)) if self.sizes.pre else self.norm(norm, x + sublayer(x))

    def run(self, side: str, numbers: list[int], memory: Tensor | None) -> Tensor:
        s, x = int(side == "decoder"), self.embed(side, numbers)
        convolves, heads = self.sizes.kind != "sa", self.sizes.heads[s]
        for i in range(self.sizes.layers[s]):
            below = f"{side}.layers.{i}"
            if convolves:
                norms = ("conv_layer_norm", "final_layer_norm") if s else ("layer_norm1", "layer_norm2")
                kernel = self.sizes.kernels[s][i]
                mix = lambda y: self.convolve(below, y, heads, kernel, bool(s))  # noqa: B023, E731
            else:
                norms = ("self_attn_layer_norm", "final_layer_norm")
                mix = lambda y: self.attend(f"{below}.self_attn", y, y, heads, bool(s))  # noqa: B023, E731
            x = self.around(f"{below}.{norms[0]}", x, mix)
            if memory is not None:
                look = lambda y: self.attend(f"{below}.encoder_attn", y, memory, heads, False)  # noqa: B023, E731
                x = self.around(f"{below}.encoder_attn_layer_norm", x, look)
            feed = lambda y: self.linear(f"{below}.fc2", self.linear(f"{below}.fc1", y).relu())  # noqa: B023, E731
            x = self.around(f"{below}.{norms[1]}", x, feed)
        return self.norm(f"{side}.layer_norm", x) if self.sizes.pre else x

    def log_probs(self, source: list[int], tokens: list[int]) -> Tensor:
        """(T, V) after tokens that begin with the end symbol."""
        hidden = self.run("decoder", tokens, self.run("encoder", source, None))
        return (hidden @ self.weights["decoder.output_projection.weight"].T).log_softmax(-1)
