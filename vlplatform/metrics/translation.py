"""The scores of translations by name, each with what it depends on.

Tokenised BLEU compares the words a task gives; sacreBLEU and chrF compare texts as people write them, through the
package sacrebleu. A score that could not be had is absent, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import vlplatform
from vlplatform.errors import UserError, nearest
from vlplatform.metrics.multi_bleu import check_sentences, multi_bleu

METRICS = {
    "bleu": "BLEU of tokenised words as multi-bleu.perl computes it, in 0 … 100",
    "bleu_split": "the same with compounds split at their hyphens, as papers on WMT14 have it, in 0 … 100",
    "sacrebleu": "BLEU of plain text, tokenised by sacreBLEU itself (package sacrebleu), in 0 … 100",
    "chrf": "chrF2, F of character 1- to 6-grams of plain text (package sacrebleu), in 0 … 100",
}
_SPLIT = {"bleu": False, "bleu_split": True}  # of tokenised BLEU: are compounds split?


class Sentence(NamedTuple):
    """One sentence in the two forms that scores compare.

    Attributes:
        words: Tokenised, and truecased or lower-cased as the task has it; of ``bleu`` and ``bleu_split``.
        text: As people write it, of ``sacrebleu`` and ``chrf``; of a reference the line of the data set.
    """

    words: Sequence[str]
    text: str


@dataclass(frozen=True)
class Found:
    """Scores of a set of translations.

    Attributes:
        values: Metric → score in 0 … 100.
        signatures: Metric → what its value depends on, in the style of sacreBLEU.
        lines: Metric → the score as its own tool prints it, with precisions and lengths.
        skipped: Metric that was asked for → why it is not there.
    """

    values: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def score(
    hypotheses: Sequence[Sentence],
    references: Sequence[Sequence[Sentence]],
    *,
    metrics: Sequence[str] = tuple(METRICS),
    lowercase: bool = False,
    tokenizer: str = "none (words as given)",
) -> Found:
    """Score one translation per sentence against the sentence's references.

    Args:
        hypotheses: One per sentence; one without words counts as such.
        references: For each hypothesis its references, one at least.
        metrics: Names from :data:`METRICS`.
        lowercase: Compare without case: of ASCII letters in tokenised BLEU, where the script knows no others.
        tokenizer: What made the words, for the signatures of tokenised BLEU: ``moses, truecased``.

    Raises:
        UserError: Unknown metric, unequal counts, no sentence, a sentence without references, or no reference that
            has words.
    """
    if unknown := [name for name in metrics if name not in METRICS]:
        raise UserError(f"there is no translation metric '{unknown[0]}': {nearest(unknown[0], METRICS)}.")
    found = Found()
    if tokenised := [name for name in METRICS if name in metrics and name in _SPLIT]:
        mine = [" ".join(sentence.words) for sentence in hypotheses]
        theirs = [[" ".join(sentence.words) for sentence in group] for group in references]
        counts = sorted({len(group) for group in theirs})
        for name in tokenised:
            result = multi_bleu(mine, theirs, lowercase=lowercase, split=_SPLIT[name])
            found.values[name], found.lines[name] = result.bleu, str(result)
            found.signatures[name] = (
                f"nrefs:{counts[0] if len(counts) == 1 else 'var'}|case:{'lc' if lowercase else 'as given'}"
                f"|tok:{tokenizer}|compounds:{'split' if _SPLIT[name] else 'whole'}|smooth:none"
                f"|version:vlplatform {vlplatform.__version__}"
            )
    if plain := [name for name in METRICS if name in metrics and name not in _SPLIT]:
        lines = [sentence.text for sentence in hypotheses]
        _score_texts(found, lines, [[sentence.text for sentence in group] for group in references], plain, lowercase)
    return found


def _score_texts(
    found: Found, hypotheses: list[str], references: list[list[str]], metrics: list[str], lowercase: bool
) -> None:
    """Add the scores of the package sacrebleu, or why they are not there."""
    check_sentences(hypotheses, references)
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        reason = f"not available: it needs the package sacrebleu ({error}): pip install sacrebleu"
        found.skipped.update(dict.fromkeys(metrics, reason))
        return
    most = max(map(len, references))
    streams = [[group[k] if k < len(group) else None for group in references] for k in range(most)]
    for name in metrics:
        metric = BLEU(lowercase=lowercase) if name == "sacrebleu" else CHRF(lowercase=lowercase)
        result = metric.corpus_score(hypotheses, streams)  # type: ignore[arg-type]  # None: it has fewer references
        signature = str(metric.get_signature())
        found.values[name], found.signatures[name] = result.score, signature
        found.lines[name] = result.format(signature=signature)
