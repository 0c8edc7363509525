"""Captions of several models together, by the mean of their word probabilities (MD-SAN, table II; X-LAN, table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch

from vlp_captioning.models.base import Caption, Captioner, Given
from vlplatform.decoding import BeamSettings, Ensemble, beam_search, packed
from vlplatform.errors import UserError


@torch.inference_mode()
def generate(
    models: Sequence[Captioner], images: Sequence[Given], beam: int = 3, *, max_length: int = 20, **settings: Any
) -> list[list[Caption]]:
    """Captions by beam search over the mean of the models' probabilities: per image the best, the best first.

    The models may be of different kinds and see different features; they must have the same words.

    Args:
        models: The members.
        images: What each member sees of the same images, as :meth:`Captioner.generate` takes it; one: all see the same.
        beam: Hypotheses kept.
        max_length: Words at most, the end symbol counted.
        settings: Others of :class:`~vlplatform.decoding.BeamSettings`.

    Raises:
        UserError: Other words or other numbers of images than the first member has, or what a member refuses.
    """
    together = Ensemble(models)
    for i, model in enumerate(models[1:], 2):
        if model.vocabulary != models[0].vocabulary:
            raise UserError(f"member {i} of the ensemble has other words than the first: use models with the same.")
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
