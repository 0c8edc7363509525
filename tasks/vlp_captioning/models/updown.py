"""Up-Down: conventional additive attention between two LSTMs, the baseline of X-LAN (table 3).

Anderson et al., "Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering" (CVPR 2018),
§3.2; the attention is X-Linear's equation 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlp_captioning.models.base import InputSettings, Shape
from vlp_captioning.models.images import Images, Memory
from vlp_captioning.models.ranges import check_ranges
from vlp_captioning.models.recurrent import RecurrentCaptioner
from vlplatform.decoding import DecoderState
from vlplatform.text import Vocabulary


@dataclass(frozen=True)
class UpDownSettings(InputSettings):
    """Settings of Up-Down.

    Attributes:
        dim: Width of features, words and both LSTMs.
        feature_dropout: Rate.
        attention_dim: Width in which query and features are added.
        dropout: Of word vectors, and before the vocabulary.
    """

    dim: int = 1000
    feature_dropout: float = 0.5
    attention_dim: int = 512
    dropout: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, "dropout", attention_dim=1)


class UpDownCaptioner(RecurrentCaptioner):
    """An LSTM that attends and one that speaks.

    With the mean feature v̄::

        h¹_t = LSTM¹([h²_{t−1} ; v̄ ; E[y_t]])           a_i = w · tanh(W_v v_i + W_h h¹_t)
        h²_t = LSTM²([Σ_i softmax(a)_i v_i ; h¹_t])       logits = W_o h²_t
    """

    name = "updown"
    summary = "additive attention between two LSTMs (Up-Down)"
    Settings = UpDownSettings
    default_attn = "additive"
    fixed_attn = True
    image_attentions = ("attention",)
    kept = ("hidden1", "cell1", "hidden2", "cell2")
    model_settings: UpDownSettings

    def __init__(self, vocabulary: Vocabulary, shape: Shape, attn: Mapping[str, Any], model: UpDownSettings) -> None:
        super().__init__(vocabulary, shape, attn, model)
        dim = model.dim
        self.words = nn.Embedding(len(vocabulary), dim)
        self.attending, self.speaking = nn.LSTMCell(3 * dim, dim), nn.LSTMCell(2 * dim, dim)
        self.attention = AdditiveAttention(dim, model.attention_dim)
        self.output = nn.Linear(dim, len(vocabulary))

    def encode(self, images: Images) -> Memory:
        """Features with their attention keys, and their mean."""
        images = self.seen(images)
        assert images.features is not None
        features = self.features(images.features, images.mask)
        count = features.shape[1] if images.mask is None else images.mask.sum(1).clamp_min(1)[:, None]
        return Memory((features, self.attention.of_features(features)), (images.mask, None), features.sum(1) / count)

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """Logits (…, V)."""
        return self.output(F.dropout(hidden, self.model_settings.dropout, self.training))

    def embedded(self, tokens: Tensor) -> Tensor:
        """Word vectors (…, D)."""
        return F.dropout(self.words(tokens), self.model_settings.dropout, self.training)

    def advance(self, word: Tensor, state: DecoderState) -> Tensor:
        """The speaking LSTM's state (R, D) after one more word vector (R, D)."""
        rows, memory = state.rows, Memory.of(state.memory)
        assert memory.whole is not None
        seen = torch.cat((rows["hidden2"], memory.whole.repeat_interleave(state.share, 0), word), 1)
        hidden1, cell1 = self.attending(seen, (rows["hidden1"], rows["cell1"]))
        found = self.attention(hidden1, *memory.tokens, memory.masks[0])
        hidden2, cell2 = self.speaking(torch.cat((found, hidden1), 1), (rows["hidden2"], rows["cell2"]))
        rows.update(hidden1=hidden1, cell1=cell1, hidden2=hidden2, cell2=cell2)
        return hidden2


class AdditiveAttention(nn.Module):
    """``a_i = w · tanh(W_v v_i + W_h h)`` and the mean of the v_i weighed by its softmax (X-Linear, eq. 1).

    Args:
        dim: Width D of queries and features.
        width: Width in which they are added.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.of_features = nn.Linear(dim, width)
        self.of_query = nn.Linear(dim, width, bias=False)
        self.weight = nn.Linear(width, 1)

    def forward(self, query: Tensor, features: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weighted means (R, D); zeros where an image has no feature.

        Args:
            query: (R, D), the r queries of an image side by side.
            features: (B, N, D), R = r · B.
            keys: ``of_features(features)``, (B, N, width).
            mask: (B, N) booleans, true for real features.
        """
        return (self._weights(query, keys, mask) @ features).flatten(0, 1)

    def attention_weights(self, query: Tensor, features: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """The weights, (R, 1, 1, N)."""
        return self._weights(query, keys, mask).flatten(0, 1)[:, None, None]

    def _weights(self, query: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """(B, r, N)."""
        queries = self.of_query(query).unflatten(0, (len(keys), -1))
        logits = self.weight(torch.tanh(keys[:, None] + queries[:, :, None])).squeeze(-1)
        if mask is None:
            return logits.softmax(-1)
        return logits.masked_fill(~mask[:, None], torch.finfo(logits.dtype).min).softmax(-1) * mask[:, None]
