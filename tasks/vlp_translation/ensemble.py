"""One translator, or several as one by the mean of their probabilities: what evaluation and ``vlp predict`` use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from vlp_translation.models import Translation, Translator, drawn, translate
from vlp_translation.models.source import Source
from vlp_translation.texts import Texts
from vlplatform.errors import UserError
from vlplatform.wrapped import bare

if TYPE_CHECKING:
    from vlp_translation.task import DecodeSettings


class TranslatorEnsemble(nn.Module):
    """Translators that answer together, by the mean of their probabilities; neither trained nor saved.

    Args:
        members: The translators.

    Raises:
        UserError: One that has other words than the first.
    """

    def __init__(self, members: Sequence[Translator]) -> None:
        super().__init__()
        first = members[0].texts
        for i, member in enumerate(members[1:], 2):
            for side in ("source", "target"):
                if getattr(member.texts, side).vocabulary != getattr(first, side).vocabulary:
                    raise UserError(
                        f"model {i} of the ensemble has other {side} words than the first: use models trained with the "
                        "same data and task.text."
                    )
        self.members = nn.ModuleList(members)

    @property
    def texts(self) -> Texts:
        """Those of all members."""
        return members_of(self)[0].texts


def members_of(model: nn.Module) -> list[Translator]:
    """The translators in an ensemble, or the one inside the wrappers of compilation and data parallelism."""
    found = bare(model, Translator, TranslatorEnsemble)
    return [found] if isinstance(found, Translator) else [cast(Translator, member) for member in found.members]


def n_best(
    models: Sequence[Translator], source: Tensor | Sequence[str], decode: DecodeSettings
) -> list[list[Translation]]:
    """The ``decode.written`` best translations of each sentence, the best first; of an empty one a single empty one.

    Where a search finds none that ends (rules and lengths may leave no way), it is an empty one with score −∞.

    Args:
        models: The translator, or the members of an ensemble.
        source: Numbers (B, S), or lines.
        decode: How.
    """
    read = [Source.of(source, model) for model in models]
    filled = read[0].filled
    kept = [each.only(filled) for each in read]
    found = iter(
        drawn(models, kept, **decode.of_drawing) if decode.samples else translate(models, kept, **decode.of_search)
    )
    return [
        (next(found) or [Translation("", -math.inf, [], [], [])]) if full else [Translation("", 0.0, [], [], [])]
        for full in filled.tolist()
    ]


def best_translations(
    models: Sequence[Translator], source: Tensor | Sequence[str], decode: DecodeSettings
) -> list[Translation]:
    """The best translation of each sentence, as :func:`n_best` finds them."""
    return [each[0] for each in n_best(models, source, decode)]


def log_likelihoods(
    models: Sequence[Translator], source: Tensor, read: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Logarithms (B, T) of the mean probability of each word of given translations, 0 at padding; and which are real.

    Args:
        models: The translator, or the members of an ensemble.
        source: (B, S).
        read: (B, T), the end symbol and the words.
        targets: (B, T), the words and the end symbol, padded.
    """
    real = targets != models[0].texts.target.vocabulary.pad
    logits = [model.vocabulary_logits(model.decode(model.encode(source), read)[real]).float() for model in models]
    each = torch.stack([x.log_softmax(-1).gather(1, targets[real][:, None]).squeeze(1) for x in logits])
    of_words = torch.zeros(targets.shape, device=targets.device)
    of_words[real] = each.logsumexp(0) - torch.tensor(float(len(models))).log()
    return of_words, real
