"""The Transformer captioner: any token attention in encoder, decoder and between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from vlp_captioning.models.base import InputSettings, Shape
from vlp_captioning.models.cached import CachedCaptioner
from vlp_captioning.models.images import Images, Memory
from vlp_captioning.models.initialise import initialise
from vlp_captioning.models.ranges import check_ranges
from vlp_captioning.models.words import WordEmbedding
from vlplatform.attention.cache import Cache
from vlplatform.layers import Decoder, Encoder
from vlplatform.text import Vocabulary

Attn = str | dict[str, Any] | list[str | dict[str, Any]]


@dataclass(frozen=True)
class TransformerSettings(InputSettings):
    """Settings of a Transformer captioner; the defaults are NG-SAN's plain one (SAN, L = 4).

    Attributes:
        heads: Heads.
        encoder_layers: Layers over the image; 0: the features as they are.
        decoder_layers: Layers over the words.
        encoder_attn: Attention of each encoder layer where they differ, as a list (MD-SAN, table XII); else ``attn``.
        decoder_attn: Attention of the words to each other; one for all layers or a list.
        cross_attn: Attention of the words to the image, likewise.
        hidden: Width of the feed-forward networks.
        dropout: Of sublayers' outputs, hidden units and embeddings.
        attention_dropout: Of attention weights.
        order: Norms after the sublayers or before them.
        tie_embeddings: Input and output share their word vectors.
        output_bias: The output map has a bias.
    """

    heads: int = 8
    encoder_layers: int = 4
    decoder_layers: int = 4
    encoder_attn: list[str | dict[str, Any]] | None = None
    decoder_attn: Attn = "sa"
    cross_attn: Attn = "sa"
    hidden: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    order: Literal["post", "pre"] = "post"
    tie_embeddings: bool = False
    output_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        rates = ("dropout", "attention_dropout")
        check_ranges(self, *rates, encoder_layers=0, decoder_layers=1, hidden=1, heads=1)


class TransformerCaptioner(CachedCaptioner):
    """Encoder over features, decoder over words (Vaswani et al. 2017; the SAN of NG-SAN, Guo et al. 2020, §3.1)."""

    name = "transformer"
    summary = "Transformer encoder and decoder with any token attention (SAN of the NG-SAN paper)"
    Settings = TransformerSettings
    default_attn = "sa"
    model_settings: TransformerSettings

    def __init__(
        self, vocabulary: Vocabulary, shape: Shape, attn: Mapping[str, Any], model: TransformerSettings
    ) -> None:
        super().__init__(vocabulary, shape, attn, model)
        self.encoder = Encoder(
            model.dim,
            model.encoder_layers,
            attn=self.attn if model.encoder_attn is None else model.encoder_attn,
            heads=model.heads,
            hidden=model.hidden,
            dropout=model.dropout,
            attention_dropout=model.attention_dropout,
            order=model.order,
        )
        self.words = self.make_words()
        self.decoder = self.make_decoder()
        self.output = nn.Linear(model.dim, len(vocabulary), bias=model.output_bias)
        initialise(self, self.output)
        if model.tie_embeddings:
            self.output.weight = self.words.words.weight

    def make_words(self) -> WordEmbedding:
        """The embedding of words and positions."""
        model = self.model_settings
        return WordEmbedding(len(self.vocabulary), model.dim, model.max_length + 1, dropout=model.dropout)

    def make_decoder(self) -> nn.Module:
        """The stack over the words."""
        model = self.model_settings
        return Decoder(
            model.dim,
            model.decoder_layers,
            attn=model.decoder_attn,
            cross=model.cross_attn,
            heads=model.heads,
            hidden=model.hidden,
            dropout=model.dropout,
            attention_dropout=model.attention_dropout,
            order=model.order,
        )

    def encode(self, images: Images) -> Memory:
        """Features through the encoder's layers."""
        images = self.seen(images)
        assert images.features is not None
        tokens = self.features(images.features, images.mask)
        tokens, _ = self.encoder(tokens, geometry=images.geometry, mask=images.mask)
        return Memory((tokens,), (images.mask,))

    def decoded(self, x: Tensor, memory: Memory, cache: Cache | None) -> Tensor:
        """Hidden states (R, T, D)."""
        return self.decoder(x, memory.tokens[0], memory_mask=memory.masks[0], cache=cache)
