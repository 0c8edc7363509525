"""Translations by beam search, of one model or of several together, and by sampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from vlp_translation.models.source import Given, Source
from vlp_translation.models.unknown import known
from vlplatform.decoding import (
    BeamSettings,
    DiverseSettings,
    Ensemble,
    Hypothesis,
    Limits,
    NoRepeat,
    SamplingSettings,
    Sequences,
    beam_search,
    diverse_beam_search,
    packed,
    sample,
)
from vlplatform.errors import UserError

if TYPE_CHECKING:
    from vlp_translation.models.transformer import Translator

L = TypeVar("L", bound=Limits)


@dataclass(frozen=True)
class Translation:
    """A translation as decoded.

    Attributes:
        text: As people would write it.
        score: What the search ranked it by: its log-probability, over its length to the power of the length penalty.
        tokens: Numbers of its pieces and, if it came to that, of the end symbol.
        log_probs: Log-probability of each of these.
        words: Its words before detokenisation, which tokenised BLEU compares.
    """

    text: str
    score: float
    tokens: list[int]
    log_probs: list[float]
    words: list[str]


@torch.inference_mode()
def translate(
    models: Sequence[Translator],
    source: Given,
    beam: int = 5,
    *,
    length_penalty: float = 1.0,
    max_length_a: float = 0.0,
    max_length_b: int = 200,
    min_length: int = 1,
    unk_penalty: float = 0.0,
    returned: int = 1,
    no_repeat: int = 0,
    groups: int = 1,
    replace_unknown: bool = False,
    dictionary: Mapping[str, str] | None = None,
    **settings: Any,
) -> list[list[Translation]]:
    """Translations by beam search over the mean of the models' probabilities, as fairseq's generator makes them.

    Args:
        models: One, or the members of an ensemble, which have the same target vocabulary and, where numbers are given,
            the same source vocabulary.
        source: B sentences: numbers (B, S) that end with the end symbol, padded on either side, or texts.
        beam: Hypotheses kept; 1 is greedy search.
        length_penalty: α in Σ log p / L^α, L tokens with the end symbol; 0: the plain sum.
        max_length_a: A translation has at most a · S + b tokens and the end, S tokens of the longest source, its end
            counted (fairseq's); fewer where learnt positions end.
        max_length_b: b.
        min_length: Tokens before the end at least.
        unk_penalty: Taken off the log-probability of the unknown word; infinity forbids it.
        returned: Translations per sentence, at most ``beam``.
        no_repeat: No n-gram of so many tokens comes twice; 0: they may.
        groups: Beams in so many groups that avoid each other's words (diverse beam search).
        replace_unknown: In place of an unknown word stands the source word that the last layer looked at most
            (the mean over heads), see :func:`vlp_translation.models.unknown.known`.
        dictionary: Source word → target word, for these.
        settings: Others of :class:`~vlplatform.decoding.BeamSettings`.

    Returns:
        Per sentence its translations, the best first.

    Raises:
        UserError: Sentences, settings or models that do not fit.
    """
    together = Ensemble(models)
    first = models[0]
    for i, model in enumerate(models[1:], 2):
        if model.texts.target.vocabulary != first.texts.target.vocabulary:
            raise UserError(f"member {i} of the ensemble has other target words than the first: use models alike.")
        if isinstance(source, torch.Tensor) and model.texts.source.vocabulary != first.texts.source.vocabulary:
            raise UserError(f"member {i} of the ensemble has other source words than the first: give texts.")
    given = [Source.of(source, model) for model in models]
    if not len(given[0]):
        return []
    if no_repeat < 0:
        raise UserError(f"no_repeat={no_repeat} must not be negative.")
    search: Callable[..., Sequences] = beam_search if groups == 1 else diverse_beam_search
    settings = {"finish": "aside", **settings} | ({} if groups == 1 else {"groups": groups})
    chosen = _limits(
        BeamSettings if groups == 1 else DiverseSettings,
        models,
        _longest(models, given, max_length_a, max_length_b),
        beam=beam,
        length_penalty=length_penalty,
        min_length=min_length,
        unk_penalty=unk_penalty,
        returned=returned,
        **settings,
    )
    rules = (NoRepeat(no_repeat),) if no_repeat else ()
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(packed(model))
        memories = [model.encode(each.numbers).lean() for model, each in zip(models, given)]
        state = together.start(memories)
        found = search(
            together.step, state, len(given[0]), chosen, first.symbols, rules=rules, device=first.device
        ).hypotheses()
    words = (
        known(models, given, memories, found, dictionary or {})
        if replace_unknown
        else [[first.texts.target.decode(each.tokens) for each in item] for item in found]
    )
    return [[_told(first, each, said) for each, said in zip(*item)] for item in zip(found, words)]


@torch.inference_mode()
def drawn(
    model: Translator, source: Given, count: int, *, max_length_a: float, max_length_b: int, **settings: Any
) -> list[list[Translation]]:
    """``count`` random translations per sentence; see :meth:`Translator.sample`."""
    given = Source.of(source, model)
    if not len(given):
        return []
    length = _longest([model], [given], max_length_a, max_length_b)
    chosen = _limits(SamplingSettings, [model], length, samples=count, **settings)
    with packed(model):
        state = model.start(model.encode(given.numbers).lean())
        found = sample(model.step, state, len(given), chosen, model.symbols, device=model.device).hypotheses()
    return [[_told(model, each, model.texts.target.decode(each.tokens)) for each in item] for item in found]


def _longest(models: Sequence[Translator], given: Sequence[Source], a: float, b: int) -> int:
    """Tokens a translation may have, the end counted; what learnt positions allow at most, as in fairseq."""
    if a < 0 or b < 0:
        raise UserError(f"max_length_a={a} and max_length_b={b} must not be negative.")
    length = int(a * max(each.longest for each in given) + b) + 1
    learnt = [model.model_settings.max_length for model in models if model.model_settings.positions == "learned"]
    return min([length, *learnt])


def _limits(kind: Callable[..., L], models: Sequence[Translator], length: int, **settings: Any) -> L:
    """The settings of a search, checked; padding alone is forbidden, as in fairseq."""
    try:
        return kind(**{"forbid": (models[0].symbols.pad,), "max_length": length, **settings})
    except (TypeError, ValueError) as error:
        raise UserError(f"{str(error).rpartition('() ')[2]}.") from error


def _told(model: Translator, hypothesis: Hypothesis, words: list[str]) -> Translation:
    text = model.texts.target.detokenised(words)
    return Translation(text, hypothesis.score, hypothesis.tokens, hypothesis.log_probs, words)
