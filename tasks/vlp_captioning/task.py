"""The captioning task as the engine sees it: records, batches, model, losses, scores and pictures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from vlp_captioning import results, spatial
from vlp_captioning.clusters import has_clusters
from vlp_captioning.decoding import DecodeSettings
from vlp_captioning.grounding import alignments
from vlp_captioning.groups import parameter_groups
from vlp_captioning.models import Captioner, InputSettings, Shape
from vlp_captioning.models.ensemble import EnsembleCaptioner
from vlp_captioning.models.vision import Vision, origin
from vlp_captioning.readers import CaptionData, Item
from vlp_captioning.records import CaptionRecords, collate, images_of
from vlp_captioning.scheduled_sampling import ScheduledSamplingSettings, guessed
from vlp_captioning.self_critical import SelfCritical, SelfCriticalSettings
from vlp_captioning.texts import Texts, TextSettings
from vlplatform.data.scenes.relations import Facts
from vlplatform.errors import UserError, nearest
from vlplatform.losses import real_words, smoothed_cross_entropy
from vlplatform.metrics import captions as metrics
from vlplatform.task import Exhibit, Late, Loss, Records, Score
from vlplatform.text import Vocabulary
from vlplatform.wrapped import bare

if TYPE_CHECKING:
    from vlplatform.engine import TrainerSettings

STAGES = ("cross_entropy", "self_critical")

LOOKED_AT = 20
"""Images that are looked at before training, whether they have what the model reads."""
UNKNOWN = 0.05
"""Share of unknown words among those of the training captions from which on a training tells it."""
FEW = 100
"""Words of a vocabulary below which it tells that some are left out."""

OWN_METRICS = {
    "words": "mean number of words of a caption",
    "spatial_accuracy": "share of spatial words told apart from three false ones; chance about 1/4 (Scenes)",
    "spatial_truth": "share of the statements about places in the captions that are true (Scenes)",
    "spatial_statements": "statements about places per caption (Scenes)",
    "alignment": "share of words and image vectors that are each other's nearest (ACF §4.1; models that cluster)",
}
"""Score → what it is, beside those of :mod:`vlplatform.metrics.captions`."""


@dataclass(frozen=True)
class CaptioningSettings:
    """Settings of the section ``task``.

    Attributes:
        name: ``captioning``.
        stages: Training stages: cross_entropy, self_critical, or one after the other.
        captions_per_image: Captions of an image that one training record holds; they share the encoder's pass.
        label_smoothing: ε of cross-entropy.
        scheduled_sampling: Guesses of the model among the words read in cross-entropy training.
        text: How captions become words.
        self_critical: Of that stage.
        decode: How captions are decoded in evaluation and by vlp predict.
        scores: Scores of an evaluation; meteor and spice need Java, whose programs run beside the next updates of a
            training, unless one of them is ``best``.
        best: The score that chooses the best checkpoint, computed also where ``scores`` lacks it; -NAME: the least.
        backbone_lr: Learning rate of a model's own backbone relative to the rest; null is 0.1 with pretrained weights,
            else 1.
        submission: Write the captions of an evaluated split as a result file for the COCO server:
            ``results/mine`` makes results/captions_SPLIT_mine_results.json; each evaluation replaces it.
    """

    name: str = "captioning"
    stages: list[Literal["cross_entropy", "self_critical"]] = field(default_factory=lambda: ["cross_entropy"])
    captions_per_image: int = 5
    label_smoothing: float = 0.0
    scheduled_sampling: ScheduledSamplingSettings = field(default_factory=ScheduledSamplingSettings)
    text: TextSettings = field(default_factory=TextSettings)
    self_critical: SelfCriticalSettings = field(default_factory=SelfCriticalSettings)
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    scores: list[str] = field(default_factory=lambda: ["bleu", "rouge_l", "cider", "cider_d"])
    best: str = "cider_d"
    backbone_lr: float | None = None
    submission: str | None = None

    def __post_init__(self) -> None:
        if not self.stages or self.stages != [stage for stage in STAGES if stage in self.stages]:
            raise ValueError(f"stages={self.stages} must be some of {', '.join(STAGES)}, in this order")
        if self.captions_per_image < 1:
            raise ValueError(f"captions_per_image={self.captions_per_image} must be at least 1")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be at least 0 and below 1")
        if self.backbone_lr is not None and self.backbone_lr < 0:
            raise ValueError(f"backbone_lr={self.backbone_lr} must not be negative")
        known = (*metrics.METRICS, "bleu")
        if unknown := [name for name in self.scores if name not in known]:
            raise ValueError(f"scores has '{unknown[0]}', which is no score: {nearest(unknown[0], known)}")
        named = (*metrics.METRICS, *OWN_METRICS)
        if self.best.removeprefix("-") not in named:
            raise ValueError(f"best={self.best} is no score: {nearest(self.best, named)}")


class CaptioningTask:
    """One configured captioning task; made by the plugin, which has checked its parts."""

    name = "captioning"
    shown = ("reward",)

    def __init__(
        self,
        sections: Mapping[str, Mapping[str, Any]],
        settings: CaptioningSettings,
        data: CaptionData,
        model_class: type[Captioner],
        model_settings: InputSettings,
    ) -> None:
        self.sections = {group: dict(section) for group, section in sections.items()}
        self.settings, self.data = settings, data
        self.model_class, self.model_settings = model_class, model_settings
        self.best_metric = settings.best
        self.stages: tuple[str, ...] = tuple(settings.stages)
        self.stage = self.stages[0]
        self._passes = 0.0
        self._known: dict[str, Item] = {}
        self._splits: dict[str, str] = {}

    def enter(self, stage: str) -> None:
        """Cross-entropy or self-critical loss from here on."""
        self.stage = stage

    def reached(self, passes: float) -> None:
        """So many passes over the training data lie behind; scheduled sampling grows with them."""
        self._passes = passes

    @functools.cached_property
    def training(self) -> tuple[list[Item], Texts]:
        """The training images that have captions, and these as words."""
        items = list(self.data.items("train"))
        texts = Texts.of(items, self.settings.text)
        kept = [i for i, captions in enumerate(texts.words) if any(captions)]
        if not kept:
            raise UserError(f"data={self.data.name} has no caption to train on: check its files.")
        return [items[i] for i in kept], replace(texts, words=[texts.words[i] for i in kept])

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of the training captions; a loaded model has its own."""
        return self.training[1].vocabulary(self.settings.text.min_count)

    @functools.cached_property
    def numbers(self) -> list[list[list[int]]]:
        """The training captions as numbers."""
        coded = self.training[1].numbers(self.vocabulary)
        longest = self.model_settings.max_length
        return [[caption[:longest] for caption in captions] or [[]] for captions in coded]

    def records(self, split: str) -> Records:
        """Images with captions for ``train``, images alone for the others."""
        if split == "train":
            items, captions = self.training[0], self.numbers
        else:
            items, captions = self.data.items(split), None
            if self.settings.submission is not None:
                results.check(self.settings.submission, split, items)
        self._known.update((item.id, item) for item in items)
        self._splits.update((item.id, split) for item in items)
        count = 1 if self.stage == "self_critical" else self.settings.captions_per_image
        return CaptionRecords(self.data, items, captions, count)

    def item(self, id: str) -> Item:
        """The item of an id, of a split whose records were asked for."""
        return self._known[id]

    def collate(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Padded tensors, see :func:`vlp_captioning.records.collate`."""
        return collate(records, self.vocabulary if "captions" in records[0] else None)

    def before_training(self, trainer: TrainerSettings) -> list[str]:
        """What is worth knowing about words and learning rates.

        Raises:
            UserError: What ``best`` needs is not there (captions of ``val``, Java, Scenes), or the attribute words that
                the model reads.
        """
        staged = [trainer.for_stage(stage) for stage in self.stages]
        judged = trainer.average > 0 or any(each.eval_every for each in staged)
        best = self.settings.best.removeprefix("-")
        compares = best in metrics.METRICS or self.settings.submission is None
        if judged and compares and not any(item.captions for item in self.data.items("val")):
            raise UserError(
                f"data={self.data.name} has no captions in its split 'val' to score against (task.best="
                f"{self.settings.best}): add some, or switch evaluations off with trainer.eval_every=0 "
                "trainer.average=0."
            )
        if judged and (reason := metrics.missing(best)):
            raise UserError(f"task.best={self.settings.best} cannot be had: {reason}; or choose another score.")
        if judged and best.startswith("spatial_") and self.facts is None:
            raise UserError(
                f"task.best={self.settings.best} is a score of Scenes, which data={self.data.name} are not: choose "
                "another."
            )
        if self.model_class.reads_attributes and self.sections["attn"].get("variant") != "visual":
            few = self.training[0][:LOOKED_AT]
            if not any(self.data.visual(item).attributes for item in few):
                raise UserError(
                    f"model={self.model_class.name} reads attribute words, and the first {len(few)} images of data="
                    f"{self.data.name} have none: give data.attributes=FILE, or features that vlp prepare made with "
                    "attributes=RUN, or leave the words out with attn.variant=visual."
                )
        told = self._unknown()
        if len(staged) == len(STAGES) and staged[0].learning_rate <= staged[1].learning_rate:
            told.append(
                f"self-critical training has the learning rate {staged[1].learning_rate:g}, no smaller than that of "
                "cross-entropy: it wants a much smaller one, as trainer.stages.self_critical.learning_rate=1.0e-5."
            )
        return told

    def _unknown(self) -> list[str]:
        """A sentence about training words that the model cannot read, where they are many."""
        numbers = [number for captions in self.numbers for caption in captions for number in caption]
        unknown = sum(number == self.vocabulary.unk for number in numbers)
        known, share = len(self.vocabulary) - len(self.vocabulary.specials), unknown / max(1, len(numbers))
        if share <= UNKNOWN and (known >= FEW or not unknown):
            return []
        return [
            f"the vocabulary has {known} word{'s' * (known != 1)}, and {share:.1%} of the training captions' words are "
            f"<unk>, as they occur fewer than task.text.min_count={self.settings.text.min_count} times: lower it for "
            "few captions."
        ]

    def build_model(self, *, pretrained: bool = True) -> Captioner:
        """A fresh model for the training words, of the width that the features, or the backbone's maps, have."""
        items, _ = self.training
        visual = self.data.visual(items[0])
        settings, attn = self.model_settings, self.sections["attn"]
        if visual.pixels is not None:
            size = settings.vision.size or (visual.pixels.shape[1], visual.pixels.shape[2])
            settings = replace(settings, vision=replace(settings.vision, size=size))
            shape = Shape(Vision(settings.vision).channels)
        else:
            assert visual.features is not None
            shape = Shape(visual.features.shape[-1], extractor=getattr(self.data.visuals, "extractor", None))
        model = self.model_class(self.vocabulary, shape, attn, settings)
        if pretrained and model.vision is not None:
            model.vision.load_weights()
        return model

    def parameter_groups(self, model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
        """Matrices with weight decay, vectors without; those of a backbone apart, at a learning rate of their own."""
        eyes = bare(model, Captioner).vision
        return parameter_groups(model, eyes, learning_rate, weight_decay, self.settings.backbone_lr)

    def loss(self, model: nn.Module, batch: Mapping[str, Any]) -> Loss:
        """The loss of the current stage, summed over words."""
        captioner = bare(model, Captioner)
        if self.stage == "self_critical":
            return self.self_critical(captioner, batch)
        tokens, lengths = batch["tokens"], batch["lengths"]
        memory = captioner.encode(images_of(batch, captioner))
        read, targets = tokens[:, :-1], tokens[:, 1:]
        if share := self.settings.scheduled_sampling.at(self._passes):
            read = guessed(captioner, memory, read, lengths, share)
        hidden = captioner.decode(memory, read, lengths)
        real = real_words(lengths, targets.shape[1])
        logits = captioner.vocabulary_logits(hidden[real])
        loss, nll = smoothed_cross_entropy(logits.float(), targets[real], self.settings.label_smoothing)
        return Loss(loss, lengths.sum(), {"nll": nll})

    @functools.cached_property
    def self_critical(self) -> SelfCritical:
        """The loss of that stage; reads all training captions once."""
        return SelfCritical(self.settings.self_critical, self.numbers, self.vocabulary)

    def predict(self, model: nn.Module, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Per record its ``caption`` and its ``log_prob``."""
        captioner = bare(model, Captioner)
        images = images_of(batch, captioner)
        found = self.settings.decode.captions(captioner, images, batch["ids"])
        predictions: list[dict[str, Any]] = [
            {"id": id, "caption": captions[0].text, "log_prob": sum(captions[0].log_probs)}
            for id, captions in zip(batch["ids"], found)
        ]
        if self.facts is not None and captioner.vocabulary.pieces == "words":
            said = [self._known[id].captions for id in batch["ids"]]
            chosen = spatial.choices(captioner, images, said, [self.facts(id) for id in batch["ids"]])
            for prediction, right in zip(predictions, chosen):
                prediction["spatial"] = right
        one = not isinstance(captioner, EnsembleCaptioner)  # several have no states in common
        if one and (has_clusters(captioner) or self.settings.best.removeprefix("-") == "alignment"):
            said = alignments(captioner, captioner.checked(images), [captions[0] for captions in found])
            for prediction, share in zip(predictions, said):
                prediction["alignment"] = share
        return predictions

    @property
    def facts(self) -> Callable[[str], Facts] | None:
        """What is true of an item by its id, on data that know (Scenes)."""
        return getattr(self.data.visuals, "facts", None)

    def score(self, predictions: Sequence[Mapping[str, Any]]) -> Score:
        """Caption scores against the references, with their signature; on Scenes the accuracy of spatial words, too."""
        captions = {prediction["id"]: prediction["caption"] for prediction in predictions}
        references = {id: self._known[id].captions for id in captions if self._known[id].captions}
        notes: list[str] = []
        if self.settings.submission is not None:
            split = self._splits[next(iter(captions))]
            notes.append(results.submit(self.settings.submission, split, captions))
        elif not references:
            raise UserError(
                f"data={self.data.name} has no captions for these images to score against: to have captions of them "
                "written, give task.submission=PREFIX."
            )
        values: dict[str, float] = {}
        empty = sum(not caption.strip() for caption in captions.values())
        if 2 * empty > len(captions):
            notes.append(f"{empty} of {len(captions)} captions are empty: train longer, or set task.decode.min_length")
        values["words"] = sum(len(caption.split()) for caption in captions.values()) / len(captions)
        if self.facts is not None:
            chosen = [p["spatial"] for p in predictions if p.get("spatial") is not None]
            values["spatial_accuracy"] = sum(chosen) / len(chosen) if chosen else float("nan")
            told = spatial.judge_all(captions, {id: self.facts(id) for id in captions})
            values["spatial_truth"] = told.truth
            values["spatial_statements"] = (told.right + told.wrong) / len(captions)
        if any("alignment" in p for p in predictions):
            shares = [p["alignment"] for p in predictions if p["alignment"] is not None]
            values["alignment"] = sum(shares) / len(shares) if shares else float("nan")

        def scored(found: metrics.CaptionScores | None) -> Score:
            those, why = (found.values, results.notes(found)) if found is not None else ({}, [])
            files = {"captions": results.listed(predictions, references, found)}
            return Score({**those, **values}, notes=(*why, *notes), files=files)

        if not references:
            return scored(None)
        judged, best = {id: captions[id] for id in references}, self.settings.best.removeprefix("-")
        wanted = {*metrics.expanded(self.settings.scores), best} & set(metrics.METRICS)
        running = metrics.start(judged, references, metrics=tuple(wanted))
        if best in running.awaited:
            running.wait()  # the best checkpoint is chosen by it
        late = Late(running.awaited, lambda: scored(running.wait()), running.stop) if running.awaited else None
        return replace(scored(running.ready), late=late)

    @torch.no_grad()
    def show(self, model: nn.Module, split: str, count: int) -> list[Exhibit]:
        """Pictures with the caption and what people wrote, spread evenly over the split."""
        from vlp_captioning.show import exhibits

        return exhibits(self, bare(model, Captioner), split, count)

    @torch.no_grad()
    def attention_exhibits(self, model: nn.Module, split: str) -> list[Exhibit]:
        """Where the words of the first record's caption looked (md-san, fig. 7), and clusters (ACF, fig. 5)."""
        from vlp_captioning.show import attention_exhibits

        return attention_exhibits(self, bare(model, Captioner), split)

    @property
    def predict_hint(self) -> str:
        """What ``vlp predict`` takes of a user, for a model on these data."""
        made = getattr(self.data.visuals, "extractor", None)
        if getattr(self.data.visuals, "pixels", False) or (
            made is not None and (made.get("attributes") or not self.model_class.reads_attributes)
        ):
            return "photo.jpg"
        if self.facts is not None:
            return "features.npz; vlp eval with --out writes the captions of Scenes themselves"
        words = " with attributes" * self.model_class.reads_attributes
        return (
            f"features.npz{words}, made as those it was trained on; photo.jpg needs a model trained on pixels or on "
            "the output of vlp prepare features"
        )

    def describe(self) -> dict[str, Any]:
        """Data set, licence, citation, model and attention."""
        return {
            "data": {"name": self.data.name, "notes": [*self.data.notes, *self._cut()]},
            "licence": self.data.licence,
            "citation": [self.data.citation] if self.data.citation else [],
            "model": self.model_class.name,
            "attention": self.sections["attn"]["name"],
            "initial_weights": origin(self.model_settings.vision),
        }

    def _cut(self) -> list[str]:
        """A note about training captions that were cut, once they have been read."""
        if "training" not in vars(self):
            return []
        texts, longest = self.training[1], self.model_settings.max_length
        if longest >= self.settings.text.max_words:
            longest, cut = self.settings.text.max_words, texts.cut
        else:
            cut = sum(len(caption) > longest for captions in texts.words for caption in captions)
        were = "caption was" if cut == 1 else "captions were"
        return [f"{cut} training {were} cut to {longest} words"] if cut else []
