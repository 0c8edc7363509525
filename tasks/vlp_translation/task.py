"""The translation task as the engine sees it: token batches, model, loss, scores and sample translations."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vlp_translation.batches import BatchSettings, SentenceRecords, TokenBatches, collate
from vlp_translation.corpus import Corpus
from vlp_translation.ensemble import best_translations, log_likelihoods, members_of
from vlp_translation.models import TransformerSettings, Translator
from vlp_translation.readers import ParallelData
from vlp_translation.texts import Texts, TextSettings
from vlp_translation.texts.placeholders import notes_of
from vlplatform.data import cache_folder
from vlplatform.decoding import BeamSettings, SamplingSettings
from vlplatform.errors import UserError, nearest
from vlplatform.losses import linear_cross_entropy
from vlplatform.metrics import translation as metrics
from vlplatform.task import Exhibit, Loss, Records, Score

if TYPE_CHECKING:
    from vlplatform.engine import TrainerSettings

OWN_METRICS = {
    "nll": "mean negative log-likelihood of the reference's tokens, nats",
    "perplexity": "exp of nll, per token of the vocabulary: compare it only between runs with the same one",
    "length_ratio": "words written over words of the references",
}
"""Score → what it is, beside those of :mod:`vlplatform.metrics.translation`."""


@dataclass(frozen=True)
class DecodeSettings:
    """How sentences are translated in evaluation and by ``vlp predict``.

    Attributes:
        beam: Hypotheses kept; 1 is greedy.
        length_penalty: α in Σ log p / L^α with L tokens, the end counted (fairseq's, not GNMT's); 0: the plain sum.
        max_length_a: A translation has at most a · S + b tokens beside the end, S those of the longest source that is
            translated together with it (fairseq's): only one that does not end by itself depends on these others …
        max_length_b: … b.
        min_length: Tokens at least.
        unk_penalty: Taken off the log-probability of the unknown word, at least 0.
        no_repeat: Forbid n-grams of so many tokens to come twice; 0: allow.
        replace_unknown: Put the source word that got the most attention in place of an unknown word.
        returned: Translations of a sentence that ``vlp predict`` writes; more than one as an n-best list, see there.
        samples: Draw so many translations at random, the likeliest first, in place of a beam search, whose ``beam``,
            ``length_penalty`` and ``returned`` have no part then: all are written; 0: search.
        temperature: Of drawing; log-probabilities are divided by it.
        top_k: Draw among so many best words; 0: among all.
        top_p: Draw among the best words that have this probability together (nucleus).
        seed: Of drawing; what is drawn for a sentence follows from it and the sentence alone.
        max_source: Longer sources, in pieces, and longer references are refused: time and memory grow with the square.
    """

    beam: int = 5
    length_penalty: float = 1.0
    max_length_a: float = 1.2
    max_length_b: int = 10
    min_length: int = 1
    unk_penalty: float = 0.0
    no_repeat: int = 0
    replace_unknown: bool = False
    returned: int = 1
    samples: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_source: int = 1024

    def __post_init__(self) -> None:
        sizes = {"beam": self.beam, "returned": self.returned, "length_penalty": self.length_penalty}
        BeamSettings(10**6, self.min_length, **sizes)  # checks them
        for name in ("max_length_a", "max_length_b", "unk_penalty", "no_repeat", "samples"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if self.min_length > int(2 * self.max_length_a + self.max_length_b):  # the shortest source: a word and its end
            raise ValueError(
                f"min_length={self.min_length} is more than the translation of a short source may have by max_length_b="
                f"{self.max_length_b}: raise max_length_b to {self.min_length}"
            )
        if self.max_source < 1:
            raise ValueError(f"max_source={self.max_source} must be at least 1")
        SamplingSettings(samples=max(1, self.samples), **self._drawing)
        if not self.samples and self._drawing != {"temperature": 1.0, "top_k": 0, "top_p": 1.0}:
            raise ValueError("temperature, top_k and top_p are about drawing words: say how often with samples=N")

    @property
    def written(self) -> int:
        """So many translations of a sentence ``vlp predict`` writes."""
        return self.samples or self.returned

    @property
    def of_search(self) -> dict[str, Any]:
        """What :func:`vlp_translation.models.translate` takes of them."""
        names = ("beam", "length_penalty", "returned")
        return {**self._common, **{name: getattr(self, name) for name in names}}

    @property
    def of_drawing(self) -> dict[str, Any]:
        """What :func:`vlp_translation.models.drawn` takes of them."""
        return {**self._common, **self._drawing, "count": self.samples, "seed": self.seed}

    @property
    def _common(self) -> dict[str, Any]:
        names = ("max_length_a", "max_length_b", "min_length", "unk_penalty", "no_repeat", "replace_unknown")
        return {name: getattr(self, name) for name in names}

    @property
    def _drawing(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("temperature", "top_k", "top_p")}

    def check_length(self, length: int, where: str, places: float = math.inf) -> None:
        """See that a source of ``length`` pieces can be translated, or a reference scored.

        Args:
            length: Pieces, the end not counted.
            where: Where it stands, for the message.
            places: Positions that the model has for it and its end.

        Raises:
            UserError: It is too long.
        """
        if length >= places:
            raise UserError(
                f"{where} has {length} words or pieces, but this model has {places} learnt positions, one of them for "
                "the end: divide it into sentences, or train with a greater model.max_length."
            )
        if length > self.max_source:
            raise UserError(
                f"{where} has {length} words or pieces, more than task.decode.max_source={self.max_source}: divide it "
                "into sentences, or raise that."
            )


@dataclass(frozen=True)
class TranslationSettings:
    """Settings of the section ``task``.

    Attributes:
        name: ``translation``.
        text: How lines become numbers.
        batches: How sentence pairs become batches: ``trainer.batch_size`` counts batches of ``max_tokens`` tokens.
        label_smoothing: ε of cross-entropy (fairseq's: ε / (V − 1) for each wrong word).
        decode: Of evaluation.
        scores: Scores of an evaluation; sacrebleu and chrf need the package sacrebleu.
        best: The score that chooses the best checkpoint and ends training early, computed also where ``scores`` lacks
            it; -NAME: the least (``-nll``: no sentence is translated then, unless ``scores`` asks for it). Of nll and
            perplexity only the least can be wanted.
    """

    name: str = "translation"
    text: TextSettings = field(default_factory=TextSettings)
    batches: BatchSettings = field(default_factory=BatchSettings)
    label_smoothing: float = 0.1
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    scores: list[str] = field(default_factory=lambda: ["bleu", "sacrebleu", "chrf"])
    best: str = "bleu"

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be at least 0 and below 1")
        if unknown := [name for name in self.scores if name not in metrics.METRICS]:
            raise ValueError(f"scores has '{unknown[0]}', which is no score: {nearest(unknown[0], metrics.METRICS)}")
        named = (*metrics.METRICS, *OWN_METRICS)
        if self.best.removeprefix("-") not in named:
            raise ValueError(f"best={self.best} is no score: {nearest(self.best, named)}")
        if self.best in ("nll", "perplexity"):
            raise ValueError(f"best={self.best} would keep the worst checkpoint, as less is better: write -{self.best}")

    @property
    def translates(self) -> bool:
        """Whether a score asks for translations."""
        return bool(self.wanted) or self.best.removeprefix("-") == "length_ratio"

    @property
    def wanted(self) -> tuple[str, ...]:
        """The scores of translations that are asked for, by ``scores`` or by ``best``."""
        return tuple(name for name in metrics.METRICS if name in {*self.scores, self.best.removeprefix("-")})


class TranslationTask:
    """One configured translation task; made by the plugin, which has checked its parts."""

    name = "translation"
    stages: tuple[str, ...] = ("cross_entropy",)
    predict_hint = '"a sentence"'

    def __init__(
        self,
        sections: Mapping[str, Mapping[str, Any]],
        settings: TranslationSettings,
        data: ParallelData,
        model_settings: TransformerSettings,
    ) -> None:
        self.sections = {group: dict(section) for group, section in sections.items()}
        self.settings, self.data, self.model_settings = settings, data, model_settings
        self.best_metric = settings.best
        self._corpora: dict[str, Corpus] = {}
        self._batches: TokenBatches | None = None
        self._places = model_settings.places
        self._training = True

    def enter(self, stage: str) -> None:
        """There is one stage."""

    @functools.cached_property
    def texts(self) -> Texts:
        """Between lines and numbers: learnt from the training text once, then cached."""
        return Texts.learn(self.data, self.settings.text, cache_folder() / "translation")

    def use(self, model: nn.Module) -> None:
        """Read data as a loaded model does, with its words, to evaluate it; ``train`` then has single sentences, too.

        Raises:
            UserError: The data are of other languages.
        """
        models = members_of(model)
        texts = models[0].texts
        for side, given in zip((texts.source, texts.target), self.data.languages):
            if side.language not in (given, "xx"):  # xx: vlp convert was not told
                raise UserError(
                    f"data={self.data.name} goes from {' to '.join(self.data.languages)}, the model from "
                    f"{texts.source.language} to {texts.target.language}: set data.source and data.target."
                )
        self.texts, self._training = texts, False
        source, target = zip(*(each.model_settings.places for each in models))
        self._places = min(source), min(target)
        self._corpora.clear()
        self._batches = None

    def corpus(self, split: str) -> Corpus:
        """A split as numbers."""
        if split not in self._corpora:
            self._corpora[split] = Corpus.open(
                self.data, split, self.texts, self.settings.batches, cache_folder() / "translation"
            )
        return self._corpora[split]

    def records(self, split: str) -> Records:
        """Batches for ``train``, single sentences for the others."""
        if split == "train" and self._training:
            if self._batches is None:
                self._batches = TokenBatches(self.corpus("train"), self.settings.batches)
            return self._batches
        return self.evaluation_records(split)

    def evaluation_records(self, split: str) -> SentenceRecords:
        """The sentences of any split one by one.

        Raises:
            UserError: None has a translation to compare with, or one is too long.
        """
        corpus = self.corpus(split)
        if split == "train":
            return SentenceRecords(corpus, self.texts)
        if all(corpus.reference(i) is None for i in range(len(corpus))):
            raise UserError(f"data={self.data.name} has no translations to score {split} against: use vlp predict.")
        for lengths, places, what in zip(corpus.lengths.T, self._places, ("the line", "the translation of the line")):
            longest = int(lengths.argmax())
            where = f"data={self.data.name}, {split}: {what} of id {corpus[longest][0]}"
            self.settings.decode.check_length(int(lengths[longest]), where, places)
        return SentenceRecords(corpus)

    def collate(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Padded tensors, see :func:`vlp_translation.batches.collate`; of evaluation also ``places`` in the corpus."""
        places = {"places": [record["index"] for record in records]} if "index" in records[0] else {}
        return {**collate(records, self.texts), **places}

    def before_training(self, trainer: TrainerSettings) -> list[str]:
        """What was left out of the pairs, and the batches; what would fail later is refused.

        Raises:
            UserError: Fewer positions are to be learnt than the training sentences have, or ``best`` needs a package
                that is not there.
        """
        longest, places = self.settings.batches.max_length, min(self._places)
        if places <= longest:
            raise UserError(
                f"model.positions=learned has {places} positions, and training sentences up to task.batches.max_length="
                f"{longest} need one more for the end: set model.max_length={longest + 1}, or lower that."
            )
        judged = trainer.average > 0 or any(trainer.for_stage(stage).eval_every for stage in self.stages)
        best, word = self.settings.best.removeprefix("-"), metrics.Sentence(("a",), "a")
        if judged and best in metrics.METRICS:
            reason = metrics.score([word], [[word]], metrics=(best,)).skipped.get(best)
            if reason is not None:
                raise UserError(f"task.best={self.settings.best} is {reason}, or choose another score.")
        return self._counted()

    def build_model(self, *, pretrained: bool = True) -> Translator:
        """A fresh model for the words of the training text."""
        return Translator(self.texts, self.sections["attn"], self.model_settings)

    def parameter_groups(self, model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
        """Matrices with weight decay, vectors (biases and norms) without; fairseq decays these, too."""
        matrices = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
        vectors = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
        named = (("weights", matrices, weight_decay), ("vectors (no decay)", vectors, 0.0))
        return [
            {"name": name, "params": params, "lr": learning_rate, "weight_decay": decay}
            for name, params, decay in named
            if params
        ]

    def loss(self, model: nn.Module, batch: Mapping[str, Any]) -> Loss:
        """Label-smoothed cross-entropy, summed over tokens."""
        translator = members_of(model)[0]
        targets = batch["targets"]
        real = targets != translator.texts.target.vocabulary.pad
        hidden = translator.decode(translator.encode(batch["source"]), batch["read"])
        weight, smoothing = translator.output.weight, self.settings.label_smoothing
        loss, nll = linear_cross_entropy(hidden[real], weight, targets[real], smoothing)
        return Loss(loss, real.sum(), {"nll": nll})

    def predict(self, model: nn.Module, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Per sentence its ``translation`` and ``words``, where scores ask for them, and the reference's likelihood."""
        models = members_of(model)
        found = best_translations(models, batch["source"], self.settings.decode) if self.settings.translates else []
        translations = found or [None] * len(batch["ids"])
        predictions: list[dict[str, Any]] = []
        likelihoods, real = log_likelihoods(models, batch["source"], batch["read"], batch["targets"])
        nlls, counts = (-likelihoods.double().sum(1)).tolist(), real.sum(1).tolist()
        read = zip(batch["ids"], batch["places"], batch["lines"], batch["references"], strict=True)
        for (id, place, line, reference), found, nll, count in zip(read, translations, nlls, counts, strict=True):
            prediction: dict[str, Any] = {"id": id, "place": place, "source": line, "reference": reference}
            if found is not None:
                prediction |= {"translation": found.text, "words": found.words, "score": found.score}
            if reference is not None:
                prediction |= {"nll": nll, "tokens": count}
            predictions.append(prediction)
        return predictions

    def score(self, predictions: Sequence[Mapping[str, Any]]) -> Score:
        """Scores against the references, with their signatures; likelihood of the references."""
        judged = [p for p in predictions if p["reference"] is not None]
        tokens = sum(p["tokens"] for p in judged)
        values = {"nll": sum(p["nll"] for p in judged) / tokens}
        values["perplexity"] = math.exp(min(values["nll"], 700.0))
        notes: list[str] = []
        if self.settings.translates:
            target = self.texts.target
            hypotheses = [metrics.Sentence(p["words"], p["translation"]) for p in judged]
            references = [[metrics.Sentence(target.words(p["reference"]), p["reference"])] for p in judged]
            found = metrics.score(
                hypotheses,
                references,
                metrics=self.settings.wanted,
                lowercase=target.wording.lower,
                tokenizer=target.wording.signature,
            )
            values = {**found.values, **values}
            written = sum(len(h.words) for h in hypotheses)
            values["length_ratio"] = written / max(1, sum(len(r[0].words) for r in references))
            decode = self.settings.decode
            searched = f"decoded with beam={decode.beam}, length_penalty={decode.length_penalty:g}"
            notes = [f"the likeliest of {decode.samples} drawn translations" if decode.samples else searched]
            of_script = [name for name in found.values if name.startswith("bleu")]  # the others' lines say no more
            notes += [f"{name}, as multi-bleu.perl: {found.lines[name]}" for name in of_script]
            notes += [f"{name}: {found.signatures[name]}" for name in found.values]
            notes += [f"{name}: {reason}" for name, reason in found.skipped.items()]
            if none := sum(p["score"] == -math.inf for p in judged):
                notes.append(f"no translation ends within the lengths and rules of task.decode for {none} sentences")
        notes += notes_of(self.texts)
        if len(judged) < len(predictions):
            notes.append(f"{len(predictions) - len(judged)} sentences without a reference are not in the scores")
        shown = ("id", "source", "translation", "reference", "score")
        in_order = sorted(predictions, key=lambda p: p["place"])  # of the data: evaluation begins with the longest
        rows = [{key: p[key] for key in shown if key in p} for p in in_order]
        return Score(values, notes=tuple(notes), files={"translations": rows})

    @torch.no_grad()
    def show(self, model: nn.Module, split: str, count: int) -> list[Exhibit]:
        """Sentences with their translation and what people wrote, spread evenly over the split."""
        from vlp_translation.show import exhibits

        return exhibits(self, members_of(model)[0], split, count)

    @torch.no_grad()
    def attention_exhibits(self, model: nn.Module, split: str) -> list[Exhibit]:
        """Where each token looked: at the source, at other tokens by content and by position."""
        from vlp_translation.show import attention_exhibits

        return attention_exhibits(self, members_of(model)[0], split)

    def describe(self) -> dict[str, Any]:
        """Data set, languages, licence, citation, model and attention."""
        notes = [*self.data.notes, *self._counted()]
        return {
            "data": {"name": self.data.name, "languages": list(self.data.languages), "notes": notes},
            "licence": self.data.licence,
            "citation": [self.data.citation] if self.data.citation else [],
            "model": Translator.name,
            "attention": self.sections["attn"]["name"],
        }

    def _counted(self) -> list[str]:
        """What is to be said of the splits and batches made so far."""
        notes = [note for corpus in self._corpora.values() for note in corpus.notes]
        return notes + list(self._batches.notes if self._batches is not None else ())
