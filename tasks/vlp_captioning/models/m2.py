"""M²: memory slots in the encoder, a decoder that reads all of its layers (Cornia et al., CVPR 2020).

Original repository: aimagelab/meshed-memory-transformer. MD-SAN grew out of its code; the baseline "MMTransformer" of
md-san's tables I and II.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlp_captioning.models.base import InputSettings, Shape
from vlp_captioning.models.cached import CachedCaptioner
from vlp_captioning.models.images import Images, Memory
from vlp_captioning.models.ranges import check_ranges
from vlp_captioning.models.words import WordEmbedding
from vlplatform.attention import MultiHeadAttention
from vlplatform.attention.cache import Cache
from vlplatform.layers import FeedForward, Residual
from vlplatform.losses import real_words
from vlplatform.text import Vocabulary


@dataclass(frozen=True)
class M2Settings(InputSettings):
    """Settings of the M² Transformer; the defaults are the published ones.

    Attributes:
        feature_norm: Layer norm after the map of features: ``none``, or on either side of the dropout.
        heads: Heads.
        encoder_layers: Layers over the image; the decoder reads each.
        decoder_layers: Layers over the words.
        slots: Memory slots m of each encoder layer.
        hidden: Width of the feed-forward networks.
        dropout: Of sublayers' outputs and hidden units.
    """

    feature_norm: Literal["none", "before_dropout", "after_dropout"] = "after_dropout"
    heads: int = 8
    encoder_layers: int = 3
    decoder_layers: int = 3
    slots: int = 40
    hidden: int = 2048
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, "dropout", split=True, heads=1, encoder_layers=1, decoder_layers=1, slots=0, hidden=1)


class M2Captioner(CachedCaptioner):
    """The meshed-memory Transformer.

    Encoder layer l attends to the features and to m learnt keys and values (eq. 4–5); a decoder layer attends to the
    outputs X^l of all of them and gates each (eq. 8–10)::

        c_l = A(s, X^l)      α_l = σ(W_l [s ; c_l])      out = Σ_l α_l ⊙ c_l / √L

    A is one module for all layers l, its residual and norm included, in the authors' code.

    Where we differ from the code: the positions of a fresh model are sinusoids and stay so, and padded features are
    masked (there the encoder looks for rows whose sum is 0 behind a layer norm, which finds none but by accident).
    """

    name = "m2"
    summary = "memory slots in the encoder, a decoder meshed with all its layers (M²)"
    Settings = M2Settings
    default_attn = "memory_slots"
    fixed_attn = True
    model_settings: M2Settings

    def __init__(self, vocabulary: Vocabulary, shape: Shape, attn: Mapping[str, Any], model: M2Settings) -> None:
        super().__init__(vocabulary, shape, attn, model)
        self.encoder = nn.ModuleList(_EncoderLayer(model) for _ in range(model.encoder_layers))
        self.words = WordEmbedding(len(vocabulary), model.dim, model.max_length + 1, scaled=False, dropout=0.0, first=1)
        self.layers = nn.ModuleList(_MeshedLayer(model) for _ in range(model.decoder_layers))
        self.output = nn.Linear(model.dim, len(vocabulary), bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1 and not name.startswith("vision."):
                nn.init.xavier_uniform_(parameter)

    def encode(self, images: Images) -> Memory:
        """The outputs of all layers, one memory each."""
        images = self.seen(images)
        assert images.features is not None
        tokens, every = self.features(images.features, images.mask), []
        for layer in self.encoder:
            tokens = layer(tokens, images.mask)
            every.append(tokens)
        return Memory(tuple(every), (images.mask,) * len(every))

    def decode(self, memory: Memory, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Hidden states (R, T, D); those of padding are zeros, as in the authors' code."""
        hidden = super().decode(memory, tokens, lengths)
        return hidden if lengths is None else hidden.masked_fill(~real_words(lengths, tokens.shape[1])[..., None], 0)

    def decoded(self, x: Tensor, memory: Memory, cache: Cache | None) -> Tensor:
        """Hidden states (R, T, D)."""
        for i, layer in enumerate(self.layers):
            x = layer(x, memory, None if cache is None else cache.child(str(i)))
        return x


class MemorySlots(nn.Module):
    """Self-attention whose keys and values are joined by m learnt ones: ``[W_k X ; √d_k M_k]``, ``[W_v X ; √m M_v]``.

    Args:
        dim: Model width D.
        heads: Heads.
        slots: m.
    """

    def __init__(self, dim: int, heads: int, slots: int) -> None:
        super().__init__()
        self.heads, self.slots = heads, slots
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))
        self.key_slots = nn.Parameter(torch.empty(1, slots, dim).normal_(std=heads / dim))
        self.value_slots = nn.Parameter(torch.empty(1, slots, dim).normal_(std=1 / max(1, slots)))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, N, D) → (B, N, D); the slots are never masked."""
        batch, _, dim = x.shape
        keys = torch.cat((self.key(x), (math.sqrt(dim // self.heads) * self.key_slots).expand(batch, -1, -1)), 1)
        values = torch.cat((self.value(x), (math.sqrt(self.slots) * self.value_slots).expand(batch, -1, -1)), 1)
        allowed = None
        if mask is not None:
            allowed = torch.cat((mask, mask.new_ones(batch, self.slots)), 1)[:, None, None]
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.query(x), keys, values))
        return self.output(F.scaled_dot_product_attention(q, k, v, allowed).transpose(1, 2).flatten(2))


class _EncoderLayer(nn.Module):
    def __init__(self, model: M2Settings) -> None:
        super().__init__()
        self.attention = MemorySlots(model.dim, model.heads, model.slots)
        self.feed_forward = FeedForward(model.dim, model.hidden, dropout=model.dropout)
        self.around_attention = Residual(model.dim, dropout=model.dropout)
        self.around_feed_forward = Residual(model.dim, dropout=model.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, N, D) → (B, N, D)."""
        x = self.around_attention(x, lambda y: self.attention(y, mask))
        return self.around_feed_forward(x, self.feed_forward)


class _MeshedLayer(nn.Module):
    """Attention of the words to each other, gated attention to every layer of the encoder, feed-forward network."""

    def __init__(self, model: M2Settings) -> None:
        super().__init__()
        dim = model.dim
        self.attention = MultiHeadAttention(dim, heads=model.heads)
        self.cross = MultiHeadAttention(dim, heads=model.heads)
        self.gates = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(model.encoder_layers))
        self.feed_forward = FeedForward(dim, model.hidden, dropout=model.dropout)
        self.around_attention = Residual(dim, dropout=model.dropout)
        self.around_cross = Residual(dim, dropout=model.dropout)
        self.around_feed_forward = Residual(dim, dropout=model.dropout)

    def forward(self, x: Tensor, memory: Memory, cache: Cache | None) -> Tensor:
        """(R, T, D) → (R, T, D)."""
        own = None if cache is None else cache.child("self")
        x = self.around_attention(x, lambda y: self.attention(y, causal=True, cache=own))
        total = torch.zeros_like(x)
        for i, gate in enumerate(self.gates):
            found = self._look(
                x, memory.tokens[i], memory.masks[i], None if cache is None else cache.child(f"memory{i}")
            )
            total = total + torch.sigmoid(gate(torch.cat((x, found), -1))) * found
        return self.around_feed_forward(total / math.sqrt(len(self.gates)), self.feed_forward)

    def _look(self, x: Tensor, tokens: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        return self.around_cross(x, lambda y: self.cross(y, tokens, mask=mask, cache=cache))
