"""The scores of generated captions against human ones, each with what it depends on.

Captions are tokenised as in the official evaluation, then scored: BLEU-1 … 4, ROUGE-L, CIDEr and CIDEr-D here, METEOR
and SPICE by their Java programs, which run meanwhile. A score that could not be had is absent, with the reason.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import vlplatform
from vlplatform.errors import UserError, nearest
from vlplatform.metrics import meteor, spice
from vlplatform.metrics.bleu import Bleu
from vlplatform.metrics.cider import Cider, CiderD, numbered
from vlplatform.metrics.rouge import RougeL
from vlplatform.text.ptb import PYTHON, tokenize

METRICS = {
    "bleu1": "share of a caption's words that references have, with the brevity penalty, in 0 … 1",
    "bleu2": "geometric mean of the shares of words and of pairs, in 0 … 1",
    "bleu3": "geometric mean of the shares of 1- to 3-grams, in 0 … 1",
    "bleu4": "geometric mean of the shares of 1- to 4-grams, in 0 … 1",
    "rouge_l": "F of the longest common subsequence, in 0 … 1",
    "cider_d": "what papers call CIDEr: tf-idf similarity of clipped 1- to 4-grams with length penalty, in 0 … 10",
    "cider": "plain CIDEr, without clipping and length penalty, in 0 … 10",
    "meteor": "words, stems, synonyms and paraphrases matched, less a penalty for order (Java), in 0 … 1",
    "spice": "F of the tuples of scene graphs (Java and Stanford's models), in 0 … 1",
}
BLEU = ("bleu1", "bleu2", "bleu3", "bleu4")
_JAVA = {"meteor": (meteor.missing, meteor.Meteor), "spice": (spice.missing, spice.Spice)}

_TOKENIZERS: dict[str, Literal["auto", "require", "never"]] = {"auto": "auto", "java": "require", "python": "never"}

Tokenizer = Literal["auto", "java", "python", "none"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CaptionScores:
    """Scores of a set of captions.

    Attributes:
        values: Metric → score of all captions together. `cider_d` is what the literature reports as CIDEr (there ×100).
        per_image: Metric → image id → score of its caption. The values of BLEU and METEOR are no means of these.
        signature: What the values depend on: tokeniser, document frequencies, references, images, version.
        missing: Metric that was asked for → why it is not there.
    """

    values: dict[str, float]
    per_image: dict[str, dict[Hashable, float]] = field(repr=False)
    signature: dict[str, str]
    missing: dict[str, str]


class Scoring:
    """Scores on their way: the Java programs are at work.

    Attributes:
        ready: The scores so far, those of Java not among them.
    """

    def __init__(self, ready: CaptionScores, ids: list[Hashable], runs: dict[str, meteor.Meteor | spice.Spice]) -> None:
        self.ready, self._ids, self._runs = ready, ids, runs

    @property
    def awaited(self) -> tuple[str, ...]:
        """The scores that are on their way."""
        return tuple(self._runs)

    def wait(self) -> CaptionScores:
        """All scores, when the Java programs have finished or their time is up."""
        while self._runs:
            name, run = self._runs.popitem()
            try:
                value, each = run.wait()
            except UserError as error:
                self.ready.missing[name] = str(error)
            else:
                self.ready.values[name] = value
                self.ready.per_image[name] = dict(zip(self._ids, each.tolist()))
        return self.ready

    def stop(self) -> None:
        """End the Java programs without their scores."""
        while self._runs:
            name, run = self._runs.popitem()
            run.stop()
            self.ready.missing[name] = "it was stopped before it had finished"


def score(
    candidates: Mapping[Any, str],
    references: Mapping[Any, Sequence[str]],
    *,
    metrics: Sequence[str] = tuple(METRICS),
    tokenizer: Tokenizer = "auto",
    seconds: float = 900,
) -> CaptionScores:
    """Score one caption per image against the image's references; arguments and errors as for :func:`start`."""
    return start(candidates, references, metrics=metrics, tokenizer=tokenizer, seconds=seconds).wait()


def start(
    candidates: Mapping[Any, str],
    references: Mapping[Any, Sequence[str]],
    *,
    metrics: Sequence[str] = tuple(METRICS),
    tokenizer: Tokenizer = "auto",
    seconds: float = 900,
) -> Scoring:
    """Start METEOR and SPICE, compute the other scores, and return without waiting for Java.

    Document frequencies of CIDEr and CIDEr-D are counted over the references of the images given, as in the official
    evaluation: scores of a part of a split are not comparable with those of the whole, and one image alone scores 0.

    Args:
        candidates: Image id → its generated caption, raw text.
        references: Image id → its human captions, one at least; the same ids. Their order is the order of the images.
        metrics: Names from :data:`METRICS`; ``bleu`` stands for the four BLEU scores.
        tokenizer: ``auto``: the official one where Java and pycocoevalcap are there, else our own rules; ``java``,
            ``python``: that one; ``none``: the captions are tokens with single blanks between them already.
        seconds: Time limit of each Java program.

    Raises:
        UserError: Unknown metric or tokeniser, no image, different ids, an image without references, a caption that is
            no text, or ``java`` where it cannot run.
    """
    wanted = _wanted(metrics)
    ids = _checked(candidates, references)
    counts = [len(references[i]) for i in ids]
    captions, texts, tokenized = _tokenized(candidates, references, ids, tokenizer)
    signature = {
        "tokenizer": tokenized,
        "document_frequencies": f"references of these {len(ids)} images",
        "references": f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}–{max(counts)}",
        "images": f"{len(ids)}",
        "version": f"vlplatform {vlplatform.__version__}",
    }
    if tokenized == PYTHON:
        signature["note"] = "not the official tokeniser: where its tokens differ, scores are not comparable"
    scores = CaptionScores({}, {}, signature, {})
    runs: dict[str, meteor.Meteor | spice.Spice] = {}
    for name, (missing, program) in _JAVA.items():
        if name in wanted and (reason := missing()):
            scores.missing[name] = f"not available: {reason}"
        elif name in wanted:
            runs[name] = program(captions, texts, seconds=seconds)
    scoring = Scoring(scores, ids, runs)
    try:
        for name, (value, each) in _own(captions, texts, wanted).items():
            scores.values[name] = value
            scores.per_image[name] = dict(zip(ids, each.tolist()))
    except BaseException:
        scoring.stop()
        raise
    return scoring


def _own(captions: list[str], texts: list[list[str]], wanted: set[str]) -> dict[str, tuple[float, Floats]]:
    """The scores that need no Java: of all captions, of each."""
    places = range(len(captions))
    found: dict[str, tuple[float, Floats]] = {}
    if wanted & set(BLEU):
        bleu = Bleu([[t.split() for t in group] for group in texts])
        corpus, each = bleu.scores(places, [c.split() for c in captions])
        found |= {name: (float(corpus[i]), each[:, i]) for i, name in enumerate(BLEU) if name in wanted}
    if "rouge_l" in wanted:
        # Only this metric's tool splits at blanks alone: the others also split a token like "2\xa01/2".
        rouge = RougeL([[t.split(" ") for t in group] for group in texts])
        each = rouge.scores(places, [c.split(" ") for c in captions])
        found["rouge_l"] = float(each.mean()), each
    if wanted & {"cider", "cider_d"}:
        *references, mine = numbered([[t.split() for t in group] for group in [*texts, captions]])
        for name, metric in (("cider_d", CiderD), ("cider", Cider)):
            if name in wanted:
                each = metric(references).scores(places, mine)
                found[name] = float(each.mean()), each
    return found


def missing(name: str) -> str | None:
    """Why a metric cannot be had here; None if it can."""
    return _JAVA[name][0]() if name in _JAVA else None


def expanded(metrics: Iterable[str]) -> set[str]:
    """The names, with the four BLEU scores in place of ``bleu``."""
    return {each for name in metrics for each in (BLEU if name == "bleu" else (name,))}


def _wanted(metrics: Sequence[str]) -> set[str]:
    names = expanded(metrics)
    if unknown := sorted(names - set(METRICS)):
        raise UserError(f"there is no caption metric '{unknown[0]}': {nearest(unknown[0], [*METRICS, 'bleu'])}.")
    return names


def _checked(candidates: Mapping[Any, str], references: Mapping[Any, Sequence[str]]) -> list[Any]:
    """The ids, in the order of the references."""
    if not references:
        raise UserError("there is no image to score: give references and captions of one at least.")
    if without := [i for i in references if i not in candidates]:
        raise UserError(f"image {without[0]!r} has references but no caption ({len(without)} such images).")
    if without := [i for i in candidates if i not in references]:
        raise UserError(f"image {without[0]!r} has a caption but no references ({len(without)} such images).")
    for i, texts in references.items():
        if isinstance(texts, str) or not len(texts):
            raise UserError(f"the references of image {i!r} must be a list of one caption or more, not {texts!r}.")
        if odd := [text for text in (candidates[i], *texts) if not isinstance(text, str)]:
            raise UserError(f"image {i!r} has a caption that is no text: {odd[0]!r}.")
    return list(references)


def _tokenized(
    candidates: Mapping[Any, str], references: Mapping[Any, Sequence[str]], ids: list[Any], tokenizer: str
) -> tuple[list[str], list[list[str]], str]:
    """Captions, references and the tokeniser's name; both sides apart and in order, as the official evaluation does."""
    mine, theirs = [candidates[i] for i in ids], [list(references[i]) for i in ids]
    if tokenizer == "none":
        return mine, theirs, "none (captions given as tokens)"
    if tokenizer not in _TOKENIZERS:
        raise UserError(f"there is no tokeniser '{tokenizer}': {nearest(tokenizer, [*_TOKENIZERS, 'none'])}.")
    own = tokenize(mine, java=_TOKENIZERS[tokenizer])
    flat = iter(tokenize([text for texts in theirs for text in texts], java=_TOKENIZERS[tokenizer]).captions)
    return own.captions, [[next(flat) for _ in texts] for texts in theirs], own.tokenizer
