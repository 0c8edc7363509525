"""What all captioners share: images in, word probabilities and captions out, settings that rebuild them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlp_captioning.models.images import Images, Memory
from vlp_captioning.models.vision import Vision, VisionSettings
from vlplatform import settings
from vlplatform.attention import Socket
from vlplatform.attention.xlinear import activation_named
from vlplatform.decoding import (
    BeamSettings,
    DiverseSettings,
    Hypothesis,
    Limits,
    NoRepeat,
    SamplingSettings,
    Sequences,
    State,
    Symbols,
    beam_search,
    diverse_beam_search,
    packed,
    sample,
)
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry
from vlplatform.hub import SaveMixin
from vlplatform.text import Vocabulary

Given = Images | Tensor | Mapping[str, Any]
L = TypeVar("L", bound=Limits)

LENGTH = 20
"""Words of the longest caption that is written where nobody says more, the end symbol counted."""


@dataclass(frozen=True)
class InputSettings:
    """How features of images enter, the same in every model.

    Attributes:
        dim: Model width D.
        feature_activation: After the map from features to D channels.
        feature_alpha: Of CELU and ELU there; null: 1.3 (X-LAN's code) and 1.
        feature_norm: Layer norm after it: ``none``, or on either side of the dropout.
        feature_dropout: Rate.
        max_length: Words of the longest caption the model can read or write.
        vision: How pixels become features, for models that see pixels.
    """

    dim: int = 512
    feature_activation: Literal["none", "relu", "celu", "elu"] = "relu"
    feature_alpha: float | None = None
    feature_norm: Literal["none", "before_dropout", "after_dropout"] = "none"
    feature_dropout: float = 0.1
    max_length: int = 64
    vision: VisionSettings = field(default_factory=VisionSettings)

    def __post_init__(self) -> None:
        if self.dim < 1 or self.max_length < 1:
            raise ValueError(f"dim={self.dim} and max_length={self.max_length} must be at least 1")
        if self.feature_alpha is not None and self.feature_alpha <= 0:
            raise ValueError(f"feature_alpha={self.feature_alpha} must be above 0")
        if not 0 <= self.feature_dropout < 1:
            raise ValueError(f"feature_dropout={self.feature_dropout} must be at least 0 and below 1")


@dataclass(frozen=True)
class Shape:
    """What the data and not the settings decide, and a checkpoint keeps.

    Attributes:
        feature_dim: Width F of the features.
        forbidden: Numbers of words that decoding never chooses; None: all special symbols but the end.
        extractor: What the features were made with where ``vlp prepare`` made them, so that it can make more of them.
    """

    feature_dim: int
    forbidden: tuple[int, ...] | None = None
    extractor: dict[str, Any] | None = None


@dataclass(frozen=True)
class Caption:
    """A caption as decoded.

    Attributes:
        text: Its words.
        score: What the search ranked it by: its log-probability, over its length to the power of the length penalty.
        tokens: Numbers of its words and, if it came to that, of the end symbol.
        log_probs: Log-probability of each of these.
    """

    text: str
    score: float
    tokens: list[int]
    log_probs: list[float]


class Features(nn.Module):
    """``activation(W x)`` with norm and dropout, (B, N, F) → (B, N, D); rows of padding become zeros."""

    def __init__(self, feature_dim: int, model: InputSettings) -> None:
        super().__init__()
        self.map = nn.Linear(feature_dim, model.dim)
        name = model.feature_activation
        self.activation = None if name == "none" else activation_named(name, model.feature_alpha)
        self.dropout, self.order = model.feature_dropout, model.feature_norm
        self.norm = None if model.feature_norm == "none" else nn.LayerNorm(model.dim)

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """(B, N, F) → (B, N, D)."""
        if mask is not None:  # whatever stands in padding, NaN even, must reach neither output nor gradients
            features = features.masked_fill(~mask[..., None], 0)
        x = self.map(features)
        x = x if self.activation is None else self.activation(x)
        if self.norm is not None and self.order == "before_dropout":
            x = self.norm(x)
        x = F.dropout(x, self.dropout, self.training)
        if self.norm is not None and self.order == "after_dropout":
            x = self.norm(x)
        return x if mask is None else x.masked_fill(~mask[..., None], 0)


class Captioner(SaveMixin, nn.Module, ABC):
    """A model that writes captions.

    ``model.log_probs(images, tokens)`` and ``model.generate(images, beam=3)`` are all that a user needs; training
    goes through :meth:`encode`, :meth:`decode` and :meth:`vocabulary_logits`, decoding through :meth:`start` and
    :meth:`step`, which any search of :mod:`vlplatform.decoding` takes.
    """

    task = "captioning"
    name: ClassVar[str]
    summary: ClassVar[str]
    Settings: ClassVar[type[InputSettings]]
    """The dataclass of the model's settings."""
    default_attn: ClassVar[str]
    """The mechanism unless the user chooses one: of the encoder's layers, or of the attention to several memories."""
    socket: ClassVar[Socket] = "token"
    """The socket it sits in."""
    fixed_attn: ClassVar[bool] = False
    """The mechanism is what the model consists of: no other fits."""
    reads_attributes: ClassVar[bool] = False
    """The model reads detected attribute words."""
    image_attentions: ClassVar[tuple[str, ...]] = ("cross",)
    """Ends of the dotted paths of the modules through which words look at the image, :attr:`Memory.tokens` [0]."""

    def __init__(self, vocabulary: Vocabulary, shape: Shape, attn: Mapping[str, Any], model: InputSettings) -> None:
        super().__init__()
        self.vocabulary, self.shape, self.attn, self.model_settings = vocabulary, shape, dict(attn), model
        self.vision = Vision(model.vision) if model.vision.sees else None
        self.features = Features(shape.feature_dim, model)

    def settings(self) -> dict[str, Any]:
        """All that the plugin's ``rebuild`` needs, JSON-ready."""
        return {
            "model": {"name": self.name, **settings.as_dict(self.model_settings)},
            "attn": self.attn,
            "vocabulary": self.vocabulary.as_dict(),
            "shape": settings.as_dict(self.shape),
            "dtype": str(next(self.parameters()).dtype).removeprefix("torch."),
        }

    def seen(self, images: Images) -> Images:
        """The same with features (B, N, F) and their places in the grid in place of pixels; every encoder begins so.

        Raises:
            UserError: Pixels, and the model has no backbone.
        """
        if images.features is not None or images.pixels is None:
            return images
        if self.vision is None:
            raise UserError("this model reads features and not pixels: give features, or train one that sees pixels.")
        maps = self.vision(images.pixels)
        place = Geometry.from_grid(maps.shape[1], maps.shape[2]).to(images.pixels)
        return replace(images, features=maps.flatten(1, 2), pixels=None, mask=None, geometry=place)

    @abstractmethod
    def encode(self, images: Images) -> Memory:
        """What the decoder reads of B images."""

    @abstractmethod
    def decode(self, memory: Memory, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Hidden states (R, T, D), each of the words up to its own, from which the next word is told.

        Args:
            memory: Of B images.
            tokens: (R, T) numbers of begin and words, R = r · B: the r captions of an image side by side.
            lengths: (R,) how many of the T tokens are real, for models to which padding is not simply what comes later.
        """

    @abstractmethod
    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """Logits (…, V) of hidden states (…, D)."""

    @abstractmethod
    def start(self, memory: Memory) -> State:
        """The state before the first word, a row per image."""

    @abstractmethod
    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Log-probabilities (R, V) of the next words after the tokens (R,), which the state takes in."""

    @torch.no_grad()
    def log_probs(self, images: Given, tokens: Tensor) -> Tensor:
        """Log-probabilities of each next word, (R, T, V).

        Args:
            images: B images: features (B, N, F) whose rows of zeros are padding, or what :meth:`Images.of` takes:
                ``{"features": …, "mask": …, "boxes": …}``.
            tokens: (R, T) whole numbers, each row the begin symbol and words; R = r · B, the captions of an image side
                by side. Padding comes last.

        Raises:
            UserError: A shape, type or number that does not fit.
        """
        batch = self.checked(images)
        if not isinstance(tokens, Tensor):
            raise UserError(f"tokens is a {type(tokens).__name__}; expected a tensor of whole numbers (r · B, T).")
        if tokens.ndim != 2 or tokens.is_floating_point() or not len(batch) or len(tokens) % len(batch):
            raise UserError(
                f"tokens has shape {tuple(tokens.shape)} and type {tokens.dtype}; expected whole numbers of shape "
                f"(r · {len(batch)}, T): begin symbol and words of r captions for each image."
            )
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(self.vocabulary):
            raise UserError(f"tokens has numbers outside the vocabulary of {len(self.vocabulary)} words.")
        tokens = tokens.to(self.device, torch.long)
        hidden = self.decode(self.encode(batch), tokens, self._lengths(tokens))
        return F.log_softmax(self.vocabulary_logits(hidden), -1)

    @torch.inference_mode()
    def generate(
        self,
        images: Given,
        beam: int = 3,
        *,
        max_length: int | None = None,
        returned: int = 1,
        no_repeat: int = 0,
        groups: int = 1,
        required: Sequence[Sequence[str]] | None = None,
        **settings: Any,
    ) -> list[list[Caption]]:
        """Captions by beam search: per image the ``returned`` best, the best first.

        Args:
            images: As in :meth:`log_probs`.
            beam: Hypotheses kept; 1 is greedy search.
            max_length: Words at most, the end symbol counted; 20 unless given, or as many as the model can write.
            returned: Captions per image, at most ``beam``.
            no_repeat: No n-gram of so many words comes twice in a caption; 0: they may.
            groups: Beams in so many groups that avoid each other's words (diverse beam search).
            required: Words that must appear, per image.
            settings: Others of :class:`~vlplatform.decoding.BeamSettings` (``length_penalty``, ``min_length``, …).

        Raises:
            UserError: Images or settings that do not fit.
        """
        batch = self.checked(images)
        if not len(batch):
            return []
        if required is not None and groups != 1:
            raise UserError(f"required words and groups={groups} do not go together: use one group.")
        given: dict[str, Any] = {"rules": _rules(no_repeat), "device": self.device}
        search: Callable[..., Sequences] = beam_search if groups == 1 else diverse_beam_search
        kind = BeamSettings if groups == 1 else DiverseSettings
        settings |= {} if groups == 1 else {"groups": groups}
        if required is not None:
            settings = {"finish": "aside", **settings}
            given["required"] = [self._known(words) for words in required]
        chosen = self.limits(kind, beam=beam, max_length=max_length, returned=returned, **settings)
        with packed(self):
            found = search(self.step, self.start(self.encode(batch).lean()), len(batch), chosen, self.symbols, **given)
        return self.captions(found)

    @torch.inference_mode()
    def sample(
        self,
        images: Given,
        count: int = 1,
        *,
        max_length: int | None = None,
        no_repeat: int = 0,
        draws: Tensor | None = None,
        **settings: Any,
    ) -> list[list[Caption]]:
        """``count`` captions per image, drawn word by word, the likeliest first.

        Args:
            images: As in :meth:`log_probs`.
            count: Per image.
            max_length: As in :meth:`generate`.
            no_repeat: As in :meth:`generate`.
            draws: (B, count, max_length) numbers in [0, 1) that choose the words; torch's generator makes them if None.
            settings: Others of :class:`~vlplatform.decoding.SamplingSettings` (``temperature``, ``top_k``, ``top_p``).

        Raises:
            UserError: Images or settings that do not fit.
        """
        batch = self.checked(images)
        if not len(batch):
            return []
        chosen = self.limits(SamplingSettings, samples=count, max_length=max_length, **settings)
        with packed(self):
            state = self.start(self.encode(batch).lean())
            given: dict[str, Any] = {"rules": _rules(no_repeat), "device": self.device}
            given["draws"] = None if draws is None else draws.to(self.device)
            found = self.captions(sample(self.step, state, len(batch), chosen, self.symbols, **given))
        return [sorted(each, key=lambda caption: -caption.score) for each in found]

    def _known(self, words: Sequence[str]) -> list[int]:
        """Numbers of words that must appear; an unknown one must not silently become another demand, or none."""
        words = [words] if isinstance(words, str) else words
        for word in words:
            if self.vocabulary.encode([word]) in ([], [self.vocabulary.unk]):
                raise UserError(f"the word '{word}' is required, and this model does not know it: leave it out.")
        return self.vocabulary.encode(words)

    def limits(self, kind: type[L], **given: Any) -> L:
        """The settings of a search, checked."""
        longest = self.model_settings.max_length + 1  # the end symbol is no word
        if given["max_length"] is None:
            given["max_length"] = min(LENGTH, longest)
        try:
            made = settings.parse(kind, {"forbid": self.forbidden, **given}, "decoding")
        except UserError as error:
            raise UserError(
                f"{str(error).removeprefix('decoding: ').removeprefix('decoding.').rstrip('.')}."
            ) from error
        if made.max_length > longest:
            raise UserError(f"max_length={made.max_length} is beyond this model's {longest}: lower it.")
        return made

    def captions(self, found: Sequences) -> list[list[Caption]]:
        """What a search found, in words."""
        return [[self.caption(hypothesis) for hypothesis in each] for each in found.hypotheses()]

    def caption(self, hypothesis: Hypothesis) -> Caption:
        """A hypothesis in words."""
        text = " ".join(self.vocabulary.decode(hypothesis.tokens))
        return Caption(text, hypothesis.score, hypothesis.tokens, hypothesis.log_probs)

    @property
    def symbols(self) -> Symbols:
        """The special symbols of the vocabulary."""
        return Symbols(self.vocabulary.pad, self.vocabulary.bos, self.vocabulary.eos, self.vocabulary.unk)

    @property
    def forbidden(self) -> tuple[int, ...]:
        """Numbers of the words that decoding never chooses."""
        if self.shape.forbidden is not None:
            return self.shape.forbidden
        return tuple(sorted(self.vocabulary.specials - {self.vocabulary.eos}))

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.parameters()).device

    def checked(self, images: Given) -> Images:
        """The images on the model's device.

        Raises:
            UserError: They do not fit the model.
        """
        batch = Images.of(images).to(next(self.parameters()))
        if batch.features is not None and batch.features.shape[-1] != self.shape.feature_dim:
            raise UserError(
                f"features are {batch.features.shape[-1]} wide; this model was made for {self.shape.feature_dim}."
            )
        return batch

    def _lengths(self, tokens: Tensor) -> Tensor:
        """How many tokens of each row (R, T) come before the padding behind it; the begin symbol always counts."""
        real = tokens != self.vocabulary.pad
        places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        return (real * places).amax(1).clamp_min(1) if tokens.shape[1] else real.sum(1)


def _rules(no_repeat: int) -> tuple[NoRepeat, ...]:
    if no_repeat < 0:
        raise UserError(f"no_repeat={no_repeat} must not be negative.")
    return (NoRepeat(no_repeat),) if no_repeat else ()
