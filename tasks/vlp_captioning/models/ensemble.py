"""Captions of several models together, by the mean of their word probabilities (MD-SAN, table II; X-LAN, table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vlp_captioning.models.base import Caption, Captioner, Given
from vlp_captioning.models.images import Images, Memory
from vlplatform.decoding import BeamSettings, Ensemble, State, beam_search, packed
from vlplatform.errors import UserError


@torch.inference_mode()
def generate(
    models: Sequence[Captioner],
    images: Sequence[Given],
    beam: int = 3,
    *,
    max_length: int | None = None,
    **settings: Any,
) -> list[list[Caption]]:
    """Captions by beam search over the mean of the models' probabilities: per image the best, the best first.

    The models may be of different kinds and see different features; they must have the same words. Where all see the
    same, :class:`EnsembleCaptioner` is a captioner like any other.

    Args:
        models: The members.
        images: What each member sees of the same images, as :meth:`Captioner.generate` takes it; one: all see the same.
        beam: Hypotheses kept.
        max_length: Words at most, the end symbol counted; 20 unless given, or as many as the first model can write.
        settings: Others of :class:`~vlplatform.decoding.BeamSettings`.

    Raises:
        UserError: Other words or other numbers of images than the first member has, or what a member refuses.
    """
    together = Ensemble(models)
    _check_words(models)
    if len(images) not in (1, len(models)):
        raise UserError(f"{len(images)} batches of images came for {len(models)} models: give one, or one each.")
    seen = list(images) * (len(models) if len(images) == 1 else 1)
    memories = [model.encode(model.checked(each)).lean() for model, each in zip(models, seen)]
    if len({len(memory) for memory in memories}) > 1:
        raise UserError(f"the members see {[len(memory) for memory in memories]} images: give all of them the same.")
    first = models[0]
    chosen = first.limits(BeamSettings, beam=beam, max_length=max_length, **settings)
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(packed(model))
        state = together.start(memories)
        found = beam_search(together.step, state, len(memories[0]), chosen, first.symbols, device=first.device)
    return first.captions(found)


class EnsembleCaptioner(Captioner):
    """Captioners of any kinds that see the same features, or all see pixels, as one; it is not trained or saved.

    Its probabilities are the mean of theirs; what :meth:`decode` gives in place of hidden states is their logarithm.

    Args:
        members: The captioners.

    Raises:
        UserError: None, or members with other words or other features than the first.
    """

    name: ClassVar[str] = "ensemble"
    summary: ClassVar[str] = "the mean of several captioners' probabilities"

    def __init__(self, members: Sequence[Captioner]) -> None:
        nn.Module.__init__(self)  # a member's layer of features is its own
        self.together = Ensemble(members)
        _check_words(members)
        _check_features(members)
        first, self.members = members[0], nn.ModuleList(members)
        self.vocabulary, self.attn, self.vision = first.vocabulary, first.attn, first.vision
        self.shape = replace(first.shape, forbidden=tuple(sorted({n for each in members for n in each.forbidden})))
        longest = min(each.model_settings.max_length for each in members)
        sizes = {each.model_settings.vision.size for each in members}
        vision = first.model_settings.vision if len(sizes) == 1 else replace(first.model_settings.vision, size=None)
        # members of other sizes resize pictures each for itself
        self.model_settings = replace(first.model_settings, max_length=longest, vision=vision)
        self.reads_attributes = any(each.reads_attributes for each in members)  # pyright: ignore[reportAttributeAccessIssue]

    def encode(self, images: Images) -> Memory:
        """What each member reads of B images."""
        memories = tuple(member.encode(images) for member in self._captioners())
        return _Memories(memories[0].tokens, memories[0].masks, memories[0].whole, of_members=memories)

    def decode(self, memory: Memory, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Logarithms (R, T, V) of the mean probabilities of the next words."""
        members = zip(self._captioners(), _of_members(memory))
        each = [member.vocabulary_logits(member.decode(own, tokens, lengths)) for member, own in members]
        total = torch.stack([logits.log_softmax(-1) for logits in each])
        return total.logsumexp(0) - torch.tensor(len(each)).log()

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """What :meth:`decode` gave."""
        return hidden

    def start(self, memory: Memory) -> State:
        """The members' states before the first word."""
        return self.together.start(_of_members(memory))

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Logarithms (R, V) of the mean probabilities of the next words."""
        return self.together.step(tokens, state)

    def _captioners(self) -> list[Captioner]:
        return [member for member in self.members if isinstance(member, Captioner)]


@dataclass(frozen=True)
class _Memories(Memory):
    """The first member's memory, and those of all."""

    of_members: tuple[Memory, ...] = ()

    def lean(self) -> Memory:
        lean = tuple(memory.lean() for memory in self.of_members)
        return _Memories(lean[0].tokens, lean[0].masks, lean[0].whole, of_members=lean)


def _of_members(memory: Memory) -> tuple[Memory, ...]:
    assert isinstance(memory, _Memories)
    return memory.of_members


def _check_words(models: Sequence[Captioner]) -> None:
    for i, model in enumerate(models[1:], 2):
        if model.vocabulary != models[0].vocabulary:
            raise UserError(
                f"model {i} of the ensemble has other words than the first: use models trained with the same data and "
                "task.text."
            )


def _check_features(models: Sequence[Captioner]) -> None:
    told = [_seen_by(model) for model in models]
    for i, (seen, made) in enumerate(told[1:], 2):
        (first, first_made) = told[0]
        if seen != first or (made and first_made and made != first_made):
            raise UserError(
                f"model {i} of the ensemble sees {seen}, the first {first}{' made otherwise' * (seen == first)}: the "
                "same inputs must serve all; use models trained on the same features."
            )


def _seen_by(model: Captioner) -> tuple[str, Any]:
    """In words what a model reads, and the settings by which it was made, where these are known."""
    if model.vision is not None:
        return "pixels", None
    made = {key: value for key, value in (model.shape.extractor or {}).items() if not key.endswith("_path")}
    return f"features {model.shape.feature_dim} wide", made
