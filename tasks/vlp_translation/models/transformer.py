"""The Transformer for translation: fairseq's, with any attention over tokens on either side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlp_translation.models import attentions
from vlp_translation.models.embedding import Embedding
from vlp_translation.models.initialise import initialise
from vlp_translation.models.memory import Memory
from vlp_translation.models.settings import TransformerSettings
from vlp_translation.models.source import Given, Source
from vlp_translation.models.translate import Translation, drawn, translate
from vlp_translation.texts import Texts
from vlplatform import settings
from vlplatform.decoding import DecoderState, State, Symbols
from vlplatform.errors import UserError
from vlplatform.hub import SaveMixin


class Translator(SaveMixin, nn.Module):
    """Encoder over the source, decoder over what is written (Vaswani et al. 2017; fairseq's ``TransformerModel``).

    ``model.log_probs(source, tokens)`` and ``model.generate(source, beam=5)`` are all that a user needs; training goes
    through :meth:`encode`, :meth:`decode` and :meth:`vocabulary_logits`, decoding through :meth:`start` and
    :meth:`step`, which any search of :mod:`vlplatform.decoding` takes. The decoder begins with the end symbol.

    Args:
        texts: Both languages' ways between lines and numbers.
        attn: The section ``attn``: the encoder's mechanism, ``name`` and settings.
        model: Sizes and the rest.

    Raises:
        UserError: An attention that does not fit its place, or languages that share vectors and no vocabulary.
        ValueError: Sizes that do not go together.
    """

    task = "translation"
    name = "transformer"
    summary = "Transformer encoder and decoder with any token attention on either side (fairseq's)"

    def __init__(self, texts: Texts, attn: Mapping[str, Any], model: TransformerSettings) -> None:
        super().__init__()
        model = model.resolved(texts.shared)
        sizes = model.sizes
        of_encoder, of_decoder = attentions.encoder_layers(attn, model), attentions.decoder_layers(attn, model)
        self.texts = texts
        one = attentions.together(of_encoder)
        self.attn = one if isinstance(one, dict) else dict(attn)
        self.model_settings = replace(
            model,
            encoder_attn=None if isinstance(one, dict) else of_encoder,
            decoder_attn=attentions.together(of_decoder),
        )
        shares = model.share_embeddings
        if shares == "all" and texts.source.vocabulary != texts.target.vocabulary:
            raise UserError(
                f"model.share_embeddings=all needs one vocabulary for both languages, and these have "
                f"{len(texts.source.vocabulary)} and {len(texts.target.vocabulary)} words of their own: set it to "
                "decoder, or task.text.joint=true."
            )
        embed: dict[str, Any] = {
            "positions": model.positions,
            "scaled": model.scale_embeddings,
            "norm": model.embedding_norm,
            "dropout": sizes.dropout,
        }
        source, target = texts.source.vocabulary, texts.target.vocabulary
        longest = model.longest_target or model.max_length
        self.source = Embedding(len(source), sizes.dim, source.pad, length=model.max_length, **embed)
        self.target = Embedding(len(target), sizes.dim, target.pad, length=longest, **embed)
        self.encoder, self.decoder = attentions.stacks(of_encoder, of_decoder, model)
        self.output = nn.Linear(sizes.dim, len(target), bias=False)
        initialise(self)
        nn.init.normal_(self.output.weight, std=sizes.dim**-0.5)
        if shares == "all":
            self.target.tokens = self.source.tokens
        if shares != "none":
            self.output.weight = self.target.tokens.weight
        self._masks_target = not any(spec["name"] in attentions.CONVOLUTIONS for spec in of_decoder)

    def settings(self) -> dict[str, Any]:
        """All that the plugin's ``rebuild`` needs, JSON-ready."""
        return {
            "model": {"name": self.name, **settings.as_dict(self.model_settings)},
            "attn": self.attn,
            "texts": self.texts.as_dict(),
            "dtype": str(self.output.weight.dtype).removeprefix("torch."),
        }

    def encode(self, source: Tensor) -> Memory:
        """What the decoder reads of B sentences.

        Args:
            source: (B, S) numbers, the end symbol last, padded on either side.
        """
        mask = source != self.texts.source.vocabulary.pad
        x = self.source(source).masked_fill(~mask[..., None], 0)
        return Memory(self.encoder(x, mask=mask)[0], mask)

    def decode(self, memory: Memory, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden states (R, T, D), each of the words up to its own, from which the next word is told.

        Args:
            memory: Of B sentences.
            tokens: (R, T) numbers, the end symbol first; R = r · B: the r translations of a sentence side by side.
            mask: (R, T) booleans, true for real tokens. Padding behind a sentence needs none: no real word looks there.
        """
        return self.decoder(self.target(tokens), memory.tokens, memory_mask=memory.mask, mask=mask)

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """Logits (…, V)."""
        return self.output(hidden)

    def start(self, memory: Memory) -> State:
        """An empty cache for each sentence."""
        return DecoderState(len(memory), memory=memory.tensors())

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Log-probabilities (R, V) of the next words after the tokens (R,), which the state takes in."""
        assert isinstance(state, DecoderState)
        memory = Memory.of(state.memory)
        x = self.target(tokens[:, None], state.position)
        x = self.decoder(x, memory.tokens, memory_mask=memory.mask, cache=state.cache)
        state.position += 1
        return self._log_softmax(self.vocabulary_logits(x[:, 0]))

    @torch.no_grad()
    def log_probs(self, source: Given, tokens: Tensor) -> Tensor:
        """Log-probabilities of each next word, (R, T, V).

        Args:
            source: B sentences: numbers (B, S) that end with the end symbol, padded on either side, or texts.
            tokens: (R, T) numbers, each row the end symbol and then words; R = r · B, the translations of a sentence
                side by side.

        Raises:
            UserError: A shape, type or number that does not fit.
        """
        given = Source.of(source, self)
        rows = len(given)
        if tokens.ndim != 2 or tokens.is_floating_point() or not rows or len(tokens) % rows:
            raise UserError(
                f"tokens has shape {tuple(tokens.shape)} and type {tokens.dtype}; expected whole numbers of shape "
                f"(r · {rows}, T): the end symbol and the words of r translations of each sentence."
            )
        vocabulary = self.texts.target.vocabulary
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(vocabulary):
            raise UserError(f"tokens has numbers outside the vocabulary of {len(vocabulary)} words.")
        tokens = tokens.to(self.device, torch.long)
        real = tokens != vocabulary.pad
        mask = real if self._masks_target and not bool(real.all()) else None  # fairseq's convolutions mask no target
        hidden = self.decode(self.encode(given.numbers).lean(), tokens, mask)
        return self._log_softmax(self.vocabulary_logits(hidden))

    def generate(self, source: Given, beam: int = 5, **settings: Any) -> list[list[Translation]]:
        """Translations by beam search, per sentence the ``returned`` best, the best first; fairseq's search.

        Args:
            source: As in :meth:`log_probs`.
            beam: Hypotheses kept; 1 is greedy search.
            settings: ``length_penalty``, ``max_length_a``, ``max_length_b``, ``min_length``, ``unk_penalty``,
                ``returned``, ``no_repeat``, ``groups``, ``replace_unknown``, ``dictionary`` and others of
                :func:`vlp_translation.models.translate.translate`, which this calls with the one model.

        Raises:
            UserError: Sentences or settings that do not fit.
        """
        return translate([self], source, beam, **settings)

    def sample(self, source: Given, count: int = 1, **settings: Any) -> list[list[Translation]]:
        """``count`` translations per sentence, drawn word by word, the likeliest first.

        Args:
            source: As in :meth:`log_probs`.
            count: Per sentence.
            settings: ``temperature``, ``top_k``, ``top_p``, ``seed``, ``max_length_a``, ``max_length_b``,
                ``min_length`` and others of :func:`vlp_translation.models.translate.drawn`, which this calls with the
                one model.

        Raises:
            UserError: Sentences or settings that do not fit.
        """
        return drawn([self], source, count, **settings)

    @property
    def symbols(self) -> Symbols:
        """The special symbols of the target; its sentences begin with the end symbol, as fairseq's do."""
        words = self.texts.target.vocabulary
        return Symbols(words.pad, words.eos, words.eos, words.unk)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.output.weight.device

    @staticmethod
    def _log_softmax(logits: Tensor) -> Tensor:
        return F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
