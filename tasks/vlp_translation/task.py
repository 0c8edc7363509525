"""The translation task as the engine sees it: token batches, model, loss, scores and sample translations."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from vlp_translation.batches import BatchSettings, SentenceRecords, TokenBatches, collate
from vlp_translation.corpus import Corpus
from vlp_translation.models import TransformerSettings, Translation, Translator
from vlp_translation.readers import ParallelData
from vlp_translation.texts import Texts, TextSettings
from vlplatform.data import cache_folder
from vlplatform.decoding import BeamSettings
from vlplatform.errors import UserError, nearest
from vlplatform.losses import smoothed_cross_entropy
from vlplatform.metrics import translation as metrics
from vlplatform.task import Exhibit, Loss, Records, Score

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
        max_length_a: A translation has at most a · S + b tokens beside the end, S those of its source …
        max_length_b: … b.
        min_length: Tokens at least.
        unk_penalty: Taken off the log-probability of the unknown word.
        no_repeat: Forbid n-grams of so many tokens to come twice; 0: allow.
        replace_unknown: Put the source word that got the most attention in place of an unknown word.
    """

    beam: int = 5
    length_penalty: float = 1.0
    max_length_a: float = 1.2
    max_length_b: int = 10
    min_length: int = 1
    unk_penalty: float = 0.0
    no_repeat: int = 0
    replace_unknown: bool = False

    def __post_init__(self) -> None:
        BeamSettings(10**6, self.min_length, beam=self.beam, length_penalty=self.length_penalty)  # checks them
        for name in ("max_length_a", "max_length_b", "unk_penalty", "no_repeat"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")


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
            it; -NAME: the least (``-nll``: no sentence is translated then, unless ``scores`` asks for it).
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

    @property
    def wanted(self) -> tuple[str, ...]:
        """The scores of translations that are asked for, by ``scores`` or by ``best``."""
        return tuple(name for name in metrics.METRICS if name in {*self.scores, self.best.removeprefix("-")})


class TranslationTask:
    """One configured translation task; made by the plugin, which has checked its parts."""

    name = "translation"
    stages: tuple[str, ...] = ("cross_entropy",)

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

    def enter(self, stage: str) -> None:
        """There is one stage."""

    @functools.cached_property
    def texts(self) -> Texts:
        """Between lines and numbers: learnt from the training text once, then cached."""
        return Texts.learn(self.data, self.settings.text, cache_folder() / "translation")

    def use(self, model: Translator) -> None:
        """Read data as a loaded model does, with its words."""
        self.texts = model.texts
        self._corpora.clear()

    def corpus(self, split: str) -> Corpus:
        """A split as numbers."""
        if split not in self._corpora:
            self._corpora[split] = Corpus.open(
                self.data, split, self.texts, self.settings.batches, cache_folder() / "translation"
            )
        return self._corpora[split]

    def records(self, split: str) -> Records:
        """Batches for ``train``, single sentences for the others."""
        if split == "train":
            return TokenBatches(self.corpus("train"), self.settings.batches)
        return self.evaluation_records(split)

    def evaluation_records(self, split: str) -> SentenceRecords:
        """The sentences of any split one by one."""
        return SentenceRecords(self.corpus(split))

    def collate(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Padded tensors, see :func:`vlp_translation.batches.collate`."""
        return collate(records, self.texts)

    def build_model(self, *, pretrained: bool = True) -> Translator:
        """A fresh model for the words of the training text."""
        return Translator(self.texts, self.sections["attn"], self.model_settings)

    def parameter_groups(self, model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
        """Matrices with weight decay, vectors without."""
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
        translator = bare_model(model)
        targets = batch["targets"]
        real = targets != translator.texts.target.vocabulary.pad
        hidden = translator.decode(translator.encode(batch["source"]), batch["read"])
        logits = translator.vocabulary_logits(hidden[real])
        loss, nll = smoothed_cross_entropy(logits.float(), targets[real], self.settings.label_smoothing)
        return Loss(loss, real.sum(), {"nll": nll})

    def predict(self, model: nn.Module, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Per sentence its ``translation`` and ``words``, where scores ask for them, and the reference's likelihood."""
        translator = bare_model(model)
        translations = self._translations(translator, batch) if self.settings.wanted else [None] * len(batch["ids"])
        predictions: list[dict[str, Any]] = []
        references = self._likelihoods(translator, batch)
        rows = zip(batch["ids"], batch["lines"], batch["references"], translations, references, strict=True)
        for id, line, reference, found, (nll, count) in rows:
            prediction: dict[str, Any] = {"id": id, "source": line, "reference": reference}
            if found is not None:
                prediction |= {"translation": found.text, "words": found.words, "score": found.score}
            if reference is not None:
                prediction |= {"nll": nll, "tokens": count}
            predictions.append(prediction)
        return predictions

    def _translations(self, model: Translator, batch: Mapping[str, Any]) -> list[Translation]:
        """The best translation of each sentence; that of an empty line is empty."""
        return best_translations(model, batch["source"], self.settings.decode)

    def _likelihoods(self, model: Translator, batch: Mapping[str, Any]) -> list[tuple[float, int]]:
        """Per sentence the negative log-likelihood of its reference, in nats, and its number of tokens."""
        targets = batch["targets"]
        real = targets != model.texts.target.vocabulary.pad
        hidden = model.decode(model.encode(batch["source"]), batch["read"])
        log_probs = model.vocabulary_logits(hidden[real]).float().log_softmax(-1)
        of_words = torch.zeros(targets.shape, device=targets.device)
        of_words[real] = -log_probs.gather(1, targets[real][:, None]).squeeze(1)
        return list(zip(of_words.double().sum(1).tolist(), real.sum(1).tolist(), strict=True))

    def score(self, predictions: Sequence[Mapping[str, Any]]) -> Score:
        """Scores against the references, with their signatures; likelihood of the references.

        Raises:
            UserError: No sentence has a reference.
        """
        judged = [p for p in predictions if p["reference"] is not None]
        if not judged:
            raise UserError(f"data={self.data.name} has no translations to score against: translate with vlp predict.")
        tokens = sum(p["tokens"] for p in judged)
        values = {"nll": sum(p["nll"] for p in judged) / tokens}
        values["perplexity"] = math.exp(min(values["nll"], 700.0))
        notes: list[str] = []
        if self.settings.wanted:
            target = self.texts.target
            hypotheses = [metrics.Sentence(p["words"], p["translation"]) for p in judged]
            references = [[metrics.Sentence(target.words(p["reference"]), p["reference"])] for p in judged]
            lower = self.settings.text.lower
            found = metrics.score(
                hypotheses,
                references,
                metrics=self.settings.wanted,
                lowercase=lower,
                tokenizer=target.wording.signature,
            )
            values = {**found.values, **values}
            written = sum(len(h.words) for h in hypotheses)
            values["length_ratio"] = written / max(1, sum(len(r[0].words) for r in references))
            notes = [f"{name}: {found.signatures[name]}" for name in found.values]
            notes += [f"{name}: {reason}" for name, reason in found.skipped.items()]
        if len(judged) < len(predictions):
            notes.append(f"{len(predictions) - len(judged)} sentences without a reference are not in the scores")
        shown = ("id", "source", "translation", "reference", "score")
        rows = [{key: p[key] for key in shown if key in p} for p in predictions]
        return Score(values, notes=tuple(notes), files={"translations": rows})

    @torch.no_grad()
    def show(self, model: nn.Module, split: str, count: int) -> list[Exhibit]:
        """Sentences with their translation and what people wrote, spread evenly over the split."""
        from vlp_translation.show import exhibits

        return exhibits(self, bare_model(model), split, count)

    @torch.no_grad()
    def attention_exhibits(self, model: nn.Module, split: str) -> list[Exhibit]:
        """Where each token looked: at the source, at other tokens by content and by position."""
        from vlp_translation.show import attention_exhibits

        return attention_exhibits(self, bare_model(model), split)

    def describe(self) -> dict[str, Any]:
        """Data set, languages, licence, citation, model and attention."""
        notes = [*self.data.notes, *(note for corpus in self._corpora.values() for note in corpus.notes)]
        if "train" in self._corpora:
            notes += TokenBatches(self._corpora["train"], self.settings.batches).notes
        return {
            "data": {"name": self.data.name, "languages": list(self.data.languages), "notes": notes},
            "licence": self.data.licence,
            "citation": [self.data.citation] if self.data.citation else [],
            "model": Translator.name,
            "attention": self.sections["attn"]["name"],
        }


def best_translations(model: Translator, source: Tensor | Sequence[str], decode: DecodeSettings) -> list[Translation]:
    """The best translation of each sentence, as ``decode`` says; that of an empty one is empty.

    Args:
        model: The translator.
        source: Numbers (B, S), or lines.
        decode: How.
    """
    if isinstance(source, Tensor):
        filled = ((source != model.texts.source.vocabulary.pad).sum(1) > 1).tolist()  # beside the end symbol
        kept: Tensor | list[str] = source[torch.tensor(filled, device=source.device)]
    else:
        filled = [bool(model.texts.source.encode(line)) for line in source]
        kept = [line for line, full in zip(source, filled) if full]
    found = iter(model.generate(kept, **vars(decode)) if any(filled) else [])
    return [next(found)[0] if full else Translation("", 0.0, [], [], []) for full in filled]


def bare_model(model: nn.Module) -> Translator:
    """The translator inside the wrappers of compilation and data parallelism."""
    while not isinstance(model, Translator):
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if inner is None:
            raise TypeError(f"{type(model).__name__} is no translator")
        model = cast(nn.Module, inner)
    return model
