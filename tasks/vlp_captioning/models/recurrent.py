"""Captioners that read a caption word by word, in training too: their decoders are LSTMs."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vlp_captioning.models.base import Captioner
from vlp_captioning.models.images import Memory
from vlplatform.decoding import DecoderState, State


class RecurrentCaptioner(Captioner):
    """A state per caption that starts at zero; a subclass says how a word moves it on."""

    kept: ClassVar[tuple[str, ...]]
    """Names of the state's tensors, (R, D) each."""

    @abstractmethod
    def embedded(self, tokens: Tensor) -> Tensor:
        """Word vectors (…, D) of word numbers (…)."""

    @abstractmethod
    def advance(self, word: Tensor, state: DecoderState) -> Tensor:
        """The hidden state (R, D) after one more word vector (R, D), which ``state.rows`` takes in."""

    def decode(self, memory: Memory, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Hidden states (R, T, D)."""
        state = self._zeros(memory)
        state.expand(len(tokens) // len(memory))
        vectors = self.embedded(tokens)
        return torch.stack([self.advance(vectors[:, t], state) for t in range(tokens.shape[1])], 1)

    def start(self, memory: Memory) -> State:
        """Zeros for each image."""
        return self._zeros(memory)

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Log-probabilities (R, V)."""
        assert isinstance(state, DecoderState)
        return F.log_softmax(self.vocabulary_logits(self.advance(self.embedded(tokens), state)), -1)

    def _zeros(self, memory: Memory) -> DecoderState:
        zeros = memory.tokens[0].new_zeros(len(memory), self.model_settings.dim)
        rows: dict[str, Tensor] = dict.fromkeys(self.kept, zeros)
        return DecoderState(len(memory), rows=rows, memory=memory.tensors())
