"""ETA-Transformer: a dual-way encoder of regions and attribute words, a decoder that reads both entangled.

Attention thesis, chapter 2; Li et al., "Entangled Transformer for Image Captioning" (ICCV 2019). No public code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vlp_captioning.models.base import Given, InputSettings, Shape
from vlp_captioning.models.cached import CachedCaptioner
from vlp_captioning.models.images import Images, Memory
from vlp_captioning.models.initialise import initialise
from vlp_captioning.models.ranges import check_ranges
from vlp_captioning.models.transformer import Attn
from vlp_captioning.models.words import WordEmbedding
from vlplatform.attention.cache import Cache
from vlplatform.errors import UserError
from vlplatform.layers import Decoder, Encoder
from vlplatform.text import Vocabulary


@dataclass(frozen=True)
class EtaSettings(InputSettings):
    """Settings of the ETA-Transformer; the defaults are the thesis' (§2.5.2). How both memories are read is ``attn``.

    Attributes:
        feature_activation: After the map from features to D channels; the thesis has a linear map.
        heads: Heads.
        encoder_layers: Layers of each way of the encoder; 0 is "−Encoder" of table 2.4.
        decoder_layers: Layers over the words.
        encoder_attn: Attention of both ways of the encoder; one for all layers or a list.
        decoder_attn: Attention of the words to each other, likewise.
        hidden: Width of the feed-forward networks.
        dropout: Of sublayers' outputs, hidden units and embeddings.
        share_words: The semantic way and the decoder share their word vectors.
    """

    feature_activation: Literal["none", "relu", "celu", "elu"] = "none"
    heads: int = 8
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attn: Attn = "sa"
    decoder_attn: Attn = "sa"
    hidden: int = 2048
    dropout: float = 0.1
    share_words: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, "dropout", encoder_layers=0, decoder_layers=1, hidden=1, heads=1)


class EtaCaptioner(CachedCaptioner):
    """Regions and attribute words, each through its own encoder; the decoder reads both.

    ``attn.variant`` gives the models of tables 2.2, 2.4 and 2.5: ``eta``, ``parallel``, ``stacked_v``, ``stacked_s``,
    ``visual``, ``semantic``; ``attn.activation`` those of table 2.6. Late fusion ("T_s & T_v fuse") is an ensemble of a
    visual and a semantic model at decoding.
    """

    name = "eta"
    summary = "two encoders, over regions and over attribute words, read entangled (ETA-Transformer)"
    Settings = EtaSettings
    default_attn = "eta"
    socket = "fusion"
    reads_attributes = True
    # regions have steps of their own in the fusions of the thesis; any other reads them side by side with the words
    image_attentions = ("cross.visual.attention", "cross.guide_visual.attention", "cross")
    model_settings: EtaSettings

    def __init__(self, vocabulary: Vocabulary, shape: Shape, attn: Mapping[str, Any], model: EtaSettings) -> None:
        super().__init__(vocabulary, shape, attn, model)
        common: dict[str, Any] = {"heads": model.heads, "hidden": model.hidden, "dropout": model.dropout}
        self.visual = Encoder(model.dim, model.encoder_layers, attn=model.encoder_attn, **common)
        self.semantic = Encoder(model.dim, model.encoder_layers, attn=model.encoder_attn, **common)
        self.words = WordEmbedding(len(vocabulary), model.dim, model.max_length + 1, dropout=model.dropout)
        self.attributes = self.words.words if model.share_words else nn.Embedding(len(vocabulary), model.dim)
        self.decoder = Decoder(
            model.dim, model.decoder_layers, attn=model.decoder_attn, cross=self.attn, fusion=True, **common
        )
        self.output = nn.Linear(model.dim, len(vocabulary))
        initialise(self, self.output)

    def encode(self, images: Images) -> Memory:
        """Regions and attribute words through their encoders.

        Raises:
            UserError: No attributes.
        """
        images = self.seen(images)
        assert images.features is not None
        if images.attributes is None:
            raise UserError("model=eta reads attribute words and the images came without: give images['attributes'].")
        visual, _ = self.visual(self.features(images.features, images.mask), geometry=images.geometry, mask=images.mask)
        rate = self.model_settings.dropout
        words = F.dropout(self.attributes(images.attributes) * self.words.scale, rate, self.training)
        semantic, _ = self.semantic(words, mask=images.attribute_mask)
        return Memory((visual, semantic), (images.mask, images.attribute_mask))  # the image first

    def checked(self, images: Given) -> Images:
        """The images on the model's device, their attributes among its words.

        Raises:
            UserError: They do not fit the model.
        """
        batch, size = super().checked(images), len(self.vocabulary)
        if (words := batch.attributes) is not None and words.numel() and not 0 <= words.min() <= words.max() < size:
            raise UserError(f"attributes has numbers outside the vocabulary of {size} words.")
        return batch

    def decoded(self, x: Tensor, memory: Memory, cache: Cache | None) -> Tensor:
        """Hidden states (R, T, D)."""
        return self.decoder(x, memory.tokens, memory_mask=memory.masks, cache=cache)
