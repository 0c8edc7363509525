"""Captioners whose decoder is a stack over all words at once, which a cache turns into steps."""

from __future__ import annotations

from abc import abstractmethod

import torch.nn.functional as F
from torch import Tensor, nn

from vlp_captioning.models.base import Captioner
from vlp_captioning.models.images import Memory
from vlp_captioning.models.words import WordEmbedding
from vlplatform.attention.cache import Cache
from vlplatform.decoding import DecoderState, State


class CachedCaptioner(Captioner):
    """Words through an embedding, a decoder stack, and a linear map to the vocabulary.

    A subclass makes ``words`` and ``output`` and says what its stack does (:meth:`decoded`).
    """

    words: WordEmbedding
    output: nn.Linear

    @abstractmethod
    def decoded(self, x: Tensor, memory: Memory, cache: Cache | None) -> Tensor:
        """Hidden states (R, T, D) of word vectors (R, T, D): of whole captions, or with a cache of the next words."""

    def decode(self, memory: Memory, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Hidden states (R, T, D); padding stands behind the words, where no word looks."""
        return self.decoded(self.words(tokens), memory, None)

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """Logits (…, V)."""
        return self.output(hidden)

    def start(self, memory: Memory) -> State:
        """An empty cache for each image."""
        return DecoderState(len(memory), memory=memory.tensors())

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Log-probabilities (R, V)."""
        assert isinstance(state, DecoderState)
        x = self.decoded(self.words(tokens[:, None], state.position), Memory.of(state.memory), state.cache)
        state.position += 1
        return F.log_softmax(self.vocabulary_logits(x[:, 0]), -1)
