"""Translations by beam search, of one model or of several together, and by sampling."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from vlp_translation.models.source import Given, Source
from vlp_translation.models.unknown import known
from vlplatform.decoding import (
    BeamSettings,
    DiverseSettings,
    Ensemble,
    Limits,
    NoRepeat,
    Rule,
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
    source: Given | Sequence[Source],
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
        source: B sentences: numbers (B, S) that end with the end symbol, padded on either side, or texts; or what each
            model read of them.
        beam: Hypotheses kept; 1 is greedy search.
        length_penalty: α in Σ log p / L^α, L tokens with the end symbol; 0: the plain sum.
        max_length_a: A translation has at most a · S + b tokens and the end, S tokens of the longest source, its end
            counted (fairseq's); fewer where learnt positions end, or a converted model's ``max_target_positions``.
        max_length_b: b.
        min_length: Tokens before the end at least.
        unk_penalty: Taken off the log-probability of the unknown word, at least 0; infinity forbids it.
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
    given = _read(models, source)
    if not len(given[0]):
        return []
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
    return _in_words(models, given, search, chosen, _rules(no_repeat), (dictionary or {}) if replace_unknown else None)


@torch.inference_mode()
def drawn(
    models: Sequence[Translator],
    source: Given | Sequence[Source],
    count: int = 1,
    *,
    max_length_a: float = 0.0,
    max_length_b: int = 200,
    min_length: int = 1,
    no_repeat: int = 0,
    replace_unknown: bool = False,
    dictionary: Mapping[str, str] | None = None,
    seed: int | None = None,
    **settings: Any,
) -> list[list[Translation]]:
    """Translations drawn word by word from the mean of the models' probabilities.

    The end symbol comes last in any case, after a · S + b tokens without a draw, as in fairseq.

    Args:
        models: As in :func:`translate`, as are the arguments that are not named here.
        source: As there.
        count: Translations per sentence.
        max_length_a: As there.
        max_length_b: As there.
        min_length: As there.
        no_repeat: As there.
        replace_unknown: As there.
        dictionary: As there.
        seed: What is drawn for a sentence follows from it and the sentence's numbers alone; None: torch's generator.
        settings: Others of :class:`~vlplatform.decoding.SamplingSettings` (``temperature``, ``top_k``, ``top_p``).

    Returns:
        Per sentence its translations, the likeliest first; their scores are Σ log p.

    Raises:
        UserError: Sentences, settings or models that do not fit.
    """
    given = _read(models, source)
    if not len(given[0]):
        return []
    length = _longest(models, given, max_length_a, max_length_b)
    settings = {"close": True, "min_length": min_length, "samples": count, **settings}
    chosen = _limits(SamplingSettings, models, length, **settings)
    search: Callable[..., Sequences] = sample
    if seed is not None:
        search = functools.partial(sample, draws=_draws(seed, given[0], chosen).to(models[0].device))
    found = _in_words(models, given, search, chosen, _rules(no_repeat), (dictionary or {}) if replace_unknown else None)
    return [sorted(each, key=lambda translation: -translation.score) for each in found]


def _read(models: Sequence[Translator], source: Given | Sequence[Source]) -> list[Source]:
    """What each model reads."""
    if not models:
        raise UserError("there is no model to translate with: give at least one.")
    for i, model in enumerate(models[1:], 2):
        if model.texts.target.vocabulary != models[0].texts.target.vocabulary:
            raise UserError(f"member {i} of the ensemble has other target words than the first: use models alike.")
        if isinstance(source, Tensor) and model.texts.source.vocabulary != models[0].texts.source.vocabulary:
            raise UserError(f"member {i} of the ensemble has other source words than the first: give texts.")
    read = [] if isinstance(source, Tensor) else [each for each in source if isinstance(each, Source)]
    return read or [Source.of(cast(Given, source), model) for model in models]


def _longest(models: Sequence[Translator], given: Sequence[Source], a: float, b: int) -> int:
    """Tokens a translation may have, the end counted; what every model can write at most, as in fairseq."""
    if a < 0 or b < 0:
        raise UserError(f"max_length_a={a} and max_length_b={b} must not be negative.")
    length = int(a * max(each.longest for each in given) + b) + 1
    return min([length, *(most for model in models if (most := model.model_settings.longest_target) is not None)])


def _limits(kind: Callable[..., L], models: Sequence[Translator], length: int, **settings: Any) -> L:
    """The settings of a search, checked; padding alone is forbidden, as in fairseq."""
    try:
        return kind(**{"forbid": (models[0].symbols.pad,), "max_length": length, **settings})
    except (TypeError, ValueError) as error:
        raise UserError(f"{str(error).rpartition('() ')[2]}.") from error


def _rules(no_repeat: int) -> tuple[Rule, ...]:
    if no_repeat < 0:
        raise UserError(f"no_repeat={no_repeat} must not be negative.")
    return (NoRepeat(no_repeat),) if no_repeat else ()


def _draws(seed: int, source: Source, chosen: SamplingSettings) -> Tensor:
    """Numbers in [0, 1), (B, samples, T); a sentence's are the same in any batch, and for any T as far as it goes."""
    drawn: list[Tensor] = []
    for row, mask in zip(source.numbers.cpu(), source.mask.cpu()):
        digest = hashlib.sha256(f"{seed}:{row[mask].tolist()}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        drawn.append(torch.rand(chosen.max_length, chosen.samples, generator=generator, dtype=torch.float64).T)
    return torch.stack(drawn)


def _in_words(
    models: Sequence[Translator],
    given: Sequence[Source],
    search: Callable[..., Sequences],
    chosen: Limits,
    rules: Sequence[Rule],
    dictionary: Mapping[str, str] | None,
) -> list[list[Translation]]:
    """What a search finds, in words; unknown ones are replaced where there is a dictionary."""
    together, first = Ensemble(models), models[0]
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(packed(model))
        memories = [model.encode(each.numbers).lean() for model, each in zip(models, given)]
        state = together.start(memories)
        found = search(
            together.step, state, len(given[0]), chosen, first.symbols, rules=rules, device=first.device
        ).hypotheses()
    target = first.texts.target
    words = (
        [[target.decode(each.tokens) for each in item] for item in found]
        if dictionary is None
        else known(models, given, memories, found, dictionary)
    )
    return [
        [
            Translation(target.detokenised(said), each.score, each.tokens, each.log_probs, said)
            for each, said in zip(*item)
        ]
        for item in zip(found, words)
    ]
