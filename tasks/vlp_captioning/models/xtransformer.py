"""X-Transformer: X-Linear attention in place of every attention of a Transformer (Pan et al., CVPR 2020, table 1).

The paper says no more than that the blocks are "plugged in"; what stands here is the authors' code,
JDAI-CV/image-captioning. Two streams run through the decoder: the words x, and the queries g.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlp_captioning.models.base import Captioner, InputSettings, Shape
from vlp_captioning.models.images import Images, Memory
from vlp_captioning.models.ranges import check_ranges
from vlp_captioning.models.words import WordEmbedding
from vlplatform.attention.cache import Cache
from vlplatform.attention.xlinear import Activation, XLinear, activation_named
from vlplatform.attention.xlinear_stack import TokenUpdate
from vlplatform.decoding import DecoderState, State
from vlplatform.layers import FeedForward, Residual
from vlplatform.text import Vocabulary


@dataclass(frozen=True)
class XTransformerSettings(InputSettings):
    """Settings of X-Transformer; the defaults are the authors' code.

    Attributes:
        dim: Model width D.
        feature_activation: After the map from features to D channels.
        feature_norm: Layer norm after it: ``none``, or on either side of the dropout.
        feature_dropout: Rate.
        heads: Heads of the X-Linear blocks.
        mid: Middle width c of a head; half of its width unless given.
        encoder_layers: Layers over the image.
        decoder_layers: Layers over the words.
        hidden: Width of the feed-forward networks; 4 D unless given.
        activation: Of the embeddings in the blocks, and of the two sides of the first query's product.
        alpha: Of CELU and ELU there; null: 1.3 (the code's) and 1.
        dropout: Of bilinear features.
        word_dropout: Of word vectors.
        encoder_dropout: Of the encoder's attended vectors and feed-forward networks.
        update_dropout: Of updates of the streams.
        decoder_dropout: Of the decoder's attended vectors and feed-forward networks.
        output_dropout: Before the vocabulary.
    """

    dim: int = 768
    feature_activation: Literal["none", "relu", "celu", "elu"] = "celu"
    feature_norm: Literal["none", "before_dropout", "after_dropout"] = "before_dropout"
    feature_dropout: float = 0.5
    heads: int = 8
    mid: int | None = None
    encoder_layers: int = 6
    decoder_layers: int = 6
    hidden: int | None = None
    activation: Activation = "celu"
    alpha: float | None = None
    dropout: float = 0.1
    word_dropout: float = 0.1
    encoder_dropout: float = 0.5
    update_dropout: float = 0.3
    decoder_dropout: float = 0.5
    output_dropout: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        rates = ("dropout", "word_dropout", "encoder_dropout", "update_dropout", "decoder_dropout", "output_dropout")
        check_ranges(self, *rates, split=True, heads=1, mid=1, encoder_layers=0, decoder_layers=1, hidden=1)


class XTransformerCaptioner(Captioner):
    """X-Linear blocks inside a Transformer encoder and decoder."""

    name = "xtransformer"
    summary = "X-Linear attention inside a Transformer (X-Transformer)"
    Settings = XTransformerSettings
    default_attn = "xlinear"
    fixed_attn = True
    image_attentions = ("of_image",)
    model_settings: XTransformerSettings

    def __init__(
        self, vocabulary: Vocabulary, shape: Shape, attn: Mapping[str, Any], model: XTransformerSettings
    ) -> None:
        super().__init__(vocabulary, shape, attn, model)
        dim, depth = model.dim, model.decoder_layers
        self.encoder = XTransformerEncoder(model)
        self.words = WordEmbedding(len(vocabulary), dim, model.max_length + 1, norm=True, dropout=model.word_dropout)
        self.of_image, self.of_words = _Bilinear(model), _Bilinear(model)
        self.layers = nn.ModuleList(_DecoderLayer(model, last=i == depth - 1) for i in range(depth))
        self.joined = nn.Linear(dim * (depth + 1), 2 * dim)
        self.joined_norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, len(vocabulary))

    def encode(self, images: Images) -> Memory:
        """The enhanced features, and one vector for the whole."""
        images = self.seen(images)
        assert images.features is not None
        whole, tokens = self.encoder(self.features(images.features, images.mask), images.mask)
        return Memory((tokens,), (images.mask,), whole)

    def decode(self, memory: Memory, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Hidden states (R, T, D); padding, by its number, is seen by no word."""
        real = tokens != self.vocabulary.pad
        real[:, :1] = True
        return self._decoded(self.words(tokens), real, memory, None)

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """Logits (…, V)."""
        return self.output(F.dropout(hidden, self.model_settings.output_dropout, self.training))

    def start(self, memory: Memory) -> State:
        """An empty cache for each image."""
        return DecoderState(len(memory), memory=memory.tensors())

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Log-probabilities (R, V)."""
        assert isinstance(state, DecoderState)
        x = self.words(tokens[:, None], state.position)
        hidden = self._decoded(x, None, Memory.of(state.memory), state)
        state.position += 1
        return F.log_softmax(self.vocabulary_logits(hidden[:, 0]), -1)

    def _decoded(self, x: Tensor, real: Tensor | None, memory: Memory, state: DecoderState | None) -> Tensor:
        """Hidden states (R, T, D) of word vectors (R, T, D): all of a caption, or with a state the next one."""
        assert memory.whole is not None
        if state is not None:
            state.rows["sum"] = x + state.rows.get("sum", 0)
            mean = state.rows["sum"] / (state.position + 1)
        else:
            assert real is not None
            weight = real.to(x.dtype)[..., None]
            mean = (x * weight).cumsum(1) / weight.cumsum(1)
        whole = self.of_image(memory.whole)
        query = self.of_words(mean).unflatten(0, (len(memory), -1)) * whole[:, None, None]
        query = F.dropout(query.flatten(0, 1), self.model_settings.decoder_dropout, self.training)
        queries = [query]
        for i, layer in enumerate(self.layers):
            cache = None if state is None else state.cache.child(str(i))
            query, x = layer(query, x, real, memory.tokens[0], memory.masks[0], cache)
            queries.append(query)
        return self.joined_norm(F.glu(self.joined(torch.cat(queries, -1)), -1))


class XTransformerEncoder(nn.Module):
    """Layers of an X-Linear block with an update of the features, and a feed-forward network.

    ``v̂ ← dropout(XLinear(v̂, X))``, ``X ← LN(X + dropout(ReLU(W [v̂ ; x_i])))``, ``X ← LN(X + FFN(X))``; from v̂^0, the
    mean of the real features, and at last ``LN(W [v̂^0 ; … ; v̂^L])`` for the whole.
    """

    def __init__(self, model: XTransformerSettings) -> None:
        super().__init__()
        dim, hidden = model.dim, model.hidden or 4 * model.dim
        self.dropout = model.encoder_dropout
        self.blocks = nn.ModuleList(_block(model) for _ in range(model.encoder_layers))
        self.updates = nn.ModuleList(TokenUpdate(dim, model.update_dropout) for _ in range(model.encoder_layers))
        self.feed_forwards = nn.ModuleList(
            _FeedForward(dim, hidden, model.encoder_dropout) for _ in range(model.encoder_layers)
        )
        self.joined = nn.Linear(dim * (model.encoder_layers + 1), dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The whole (B, D) and the enhanced features (B, N, D) of features (B, N, D), real where ``mask`` (B, N)."""
        if mask is None:
            whole = tokens.mean(1, keepdim=True)
        else:
            total = tokens.masked_fill(~mask[..., None], 0).sum(1, keepdim=True)
            whole = total / mask.sum(1).clamp_min(1)[:, None, None]
        wholes = [whole]
        for block, update, feed_forward in zip(self.blocks, self.updates, self.feed_forwards):
            whole = F.dropout(block(whole, tokens, mask=mask), self.dropout, self.training)
            tokens = feed_forward(update(whole, tokens))
            wholes.append(whole)
        return self.norm(self.joined(torch.cat(wholes, -1).squeeze(1))), tokens


class _DecoderLayer(nn.Module):
    """One layer of both streams; the last one leaves the words as they are."""

    def __init__(self, model: XTransformerSettings, *, last: bool) -> None:
        super().__init__()
        dim = model.dim
        self.dropout = model.decoder_dropout
        self.of_words, self.of_image = _block(model), _block(model)
        self.cross_norm, self.query_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.update = None if last else TokenUpdate(dim, model.update_dropout)
        self.feed_forward = None if last else _FeedForward(dim, model.hidden or 4 * dim, model.decoder_dropout)

    def forward(
        self,
        query: Tensor,
        x: Tensor,
        real: Tensor | None,
        memory: Tensor,
        memory_mask: Tensor | None,
        cache: Cache | None,
    ) -> tuple[Tensor, Tensor]:
        """Query and word streams (R, T, D) → (R, T, D)."""
        own, other = (None, None) if cache is None else (cache.child("self"), cache.child("memory"))
        found = self.of_words(query, x, mask=real, causal=own is None, cache=own, grow=True)
        attended = x + F.dropout(found, self.dropout, self.training)
        found = self.of_image(self.cross_norm(attended), memory, mask=memory_mask, cache=other)
        query = self.query_norm(attended + F.dropout(found, self.dropout, self.training))
        if self.update is None or self.feed_forward is None:
            return query, x
        return query, self.feed_forward(self.update(query, x))


class _FeedForward(nn.Module):
    """A feed-forward network with residual and norm."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.inside, self.around = FeedForward(dim, hidden, dropout=dropout), Residual(dim, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(R, T, D) → (R, T, D)."""
        return self.around(x, self.inside)


class _Bilinear(nn.Module):
    """``LN(CELU(W x))``, one side of the first query's product."""

    def __init__(self, model: XTransformerSettings) -> None:
        super().__init__()
        self.map, self.norm = nn.Linear(model.dim, model.dim), nn.LayerNorm(model.dim)
        self.activation = activation_named(model.activation, model.alpha)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        return self.norm(self.activation(self.map(x)))


def _block(model: XTransformerSettings) -> XLinear:
    chosen: dict[str, Any] = {"activation": model.activation, "alpha": model.alpha}
    return XLinear(model.dim, heads=model.heads, mid=model.mid, dropout=model.dropout, **chosen)
