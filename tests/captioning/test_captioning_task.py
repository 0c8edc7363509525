"""The task under the engine: both stages, interruption, report, odd data, and settings that do not fit."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from composed import changed
from torch import Tensor

from vlp_captioning.models import Captioner, Memory
from vlp_captioning.readers import CaptionData, Item, Visual
from vlp_captioning.records import images_of
from vlp_captioning.scheduled_sampling import ScheduledSamplingSettings, guessed
from vlp_captioning.task import CaptioningTask
from vlp_captioning.texts import Texts, TextSettings
from vlplatform import registry
from vlplatform.cli import compose
from vlplatform.engine import Interrupted, TrainerSettings, train
from vlplatform.errors import UserError
from vlplatform.settings import parse
from vlplatform.text import Vocabulary

SMALL = {
    "transformer": ["model.hidden=24", "model.encoder_layers=1", "model.decoder_layers=1", "model.heads=2"],
    "eta": ["model.hidden=24", "model.encoder_layers=1", "model.decoder_layers=1", "model.heads=2"],
    "xlan": ["model.heads=2", "model.encoder_layers=2"],
}
COMMON = [
    "task=captioning",
    "data=scenes",
    "data.size=48",
    "data.train=40",
    "data.val=5",
    "data.test=5",
    "data.feature_dim=16",
    "task.text.min_count=1",
    "task.captions_per_image=2",
    "task.self_critical.samples=2",
    "task.self_critical.max_length=8",
    "task.decode.max_length=8",
    "task.decode.beam=2",
    "trainer.batch_size=3",
    "trainer.warmup=0",
    "trainer.log_every=1",
    "trainer.trackers=[]",
]
BOTH = ["task.stages=[cross_entropy,self_critical]"]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLP_CACHE", str(tmp_path_factory.getbasetemp() / "scenes"))


@functools.cache
def composed() -> dict[str, Any]:
    return compose.compose(COMMON)


def resolved(model: str, *words: str) -> dict[str, Any]:
    """The composed settings with changes."""
    sections = {**composed(), "model": {"name": model, "dim": 16}}
    return changed(changed(sections, *SMALL.get(model, [])), *words)


def build(model: str = "transformer", *words: str) -> CaptioningTask:
    sections = resolved(model, *words)
    task = registry.task("captioning").build({group: sections[group] for group in compose.GROUPS})
    assert isinstance(task, CaptioningTask)
    return task


def fit(folder: Path, model: str, *words: str, task: CaptioningTask | None = None, resume: str | None = None) -> Any:
    sections = resolved(model, *words)
    trainer = parse(TrainerSettings, sections["trainer"], "trainer")
    return train(task or build(model, *words), trainer, folder, resolved=sections, seed=0, resume=resume)


def lines(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


# Training.


@pytest.mark.parametrize(
    ("model", "stops"), [("transformer", ((2, 2), (6, 4))), ("xlan", ((5, 5),)), ("eta", ((6, 6),))]
)
def test_both_stages_train_and_resume_in_the_middle(
    model: str, stops: Sequence[tuple[int, int]], tmp_path: Path
) -> None:
    words = [*BOTH, "trainer.steps=4", "trainer.eval_every=0", "trainer.stages.self_critical.learning_rate=0.0001"]
    fit(tmp_path / "whole", model, *words)
    told = lines(tmp_path / "whole")
    assert [line["step"] for line in told] == list(range(1, 9))
    assert ["nll" in line for line in told] == [True] * 4 + [False] * 4
    assert ["reward" in line for line in told] == [False] * 4 + [True] * 4
    assert all(line["loss"] == line["nll"] for line in told[:4])
    assert all(0 <= line["reward"] <= 10 and line["advantage"] >= 0 for line in told[4:])
    for stop, losses in stops:
        task = build(model, *words)
        interrupt(task, losses)
        with pytest.raises(Interrupted, match=f"after update {stop}"):
            fit(tmp_path / "cut", model, *words, task=task, resume="auto")
    fit(tmp_path / "cut", model, *words, resume="auto")
    for name in ("metrics.jsonl", "metrics.json", "best/model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name


def interrupt(task: CaptioningTask, losses: int) -> None:
    """Let a signal come while loss number ``losses`` of this process is computed."""
    plain, seen = task.loss, []

    def loss(*given: Any) -> Any:
        seen.append(0)
        if len(seen) == losses:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(*given)

    task.loss = loss  # pyright: ignore[reportAttributeAccessIssue]


def test_scores_and_report(tmp_path: Path) -> None:
    metrics = fit(tmp_path / "run", "transformer", "trainer.steps=2", "trainer.eval_every=2")
    scores = lines(tmp_path / "run", "eval")[-1] if lines(tmp_path / "run", "eval") else metrics
    for name in ("bleu4", "rouge_l", "cider", "cider_d", "words", "spatial_accuracy", "spatial_statements"):
        assert name in json.dumps(metrics) or name in scores, name
    page = (tmp_path / "run" / "report.html").read_text()
    task = build()
    people = [caption for item in task.data.items("val") for caption in item.captions]
    assert sum(f"“{caption}”" in page for caption in people) >= 5
    assert "log-probability" in page
    assert "where the words of “" in page


def test_the_loss_is_the_mean_over_words(tmp_path: Path) -> None:
    """The count is that of the words with their end symbols, and dividing a batch changes no sum."""
    task = build()
    records, model = task.records("train"), task.build_model().eval()
    torch.manual_seed(0)
    chosen = [records[i] for i in range(4)]
    whole = task.loss(model, task.collate(chosen))
    assert int(whole.count) == sum(len(caption) + 1 for record in chosen for caption in record["captions"])
    parts = [task.loss(model, task.collate([record])) for record in chosen]
    assert sum(part.total.item() for part in parts) == pytest.approx(whole.total.item(), rel=1e-5)
    by_hand = 0.0
    for record in chosen:
        batch = task.collate([record])
        seen = images_of(batch, model)
        for caption in record["captions"]:
            read = torch.tensor([[task.vocabulary.bos, *caption]])
            told = model.log_probs(seen, read)[0]
            by_hand -= sum(told[t, word].item() for t, word in enumerate([*caption, task.vocabulary.eos]))
    assert whole.total.item() == pytest.approx(by_hand, rel=1e-5)


def test_label_smoothing_and_scheduled_sampling(tmp_path: Path) -> None:
    words = ["trainer.steps=2", "trainer.eval_every=0"]
    fit(tmp_path / "a", "transformer", *words, "task.label_smoothing=0.1")
    told = lines(tmp_path / "a")
    assert all(line["loss"] != line["nll"] for line in told)
    fit(tmp_path / "b", "xlan", *words, "task.scheduled_sampling.share=0.5")
    assert len(lines(tmp_path / "b")) == 2


def test_scheduled_sampling_exchanges_words_only() -> None:
    """Begin symbols and padding stay; about the share asked for of the words is what the model would say there."""
    task = build("transformer", "model.dropout=0", "model.feature_dropout=0")
    model, records = task.build_model().eval(), task.records("train")
    batch = task.collate([records[i] for i in range(12)])
    read, lengths = batch["tokens"][:, :-1], batch["lengths"]
    memory = model.encode(images_of(batch, model))
    torch.manual_seed(0)
    sharp = model.vocabulary_logits

    def certain(hidden: Tensor) -> Tensor:
        return 1000 * sharp(hidden)

    model.vocabulary_logits = certain  # pyright: ignore[reportAttributeAccessIssue]
    found = guessed(model, memory, read, lengths, 0.5)
    best = certain(model.decode(memory, read, lengths)).argmax(-1)
    places = torch.arange(read.shape[1])
    words = (places >= 1) & (places < lengths[:, None])
    assert torch.equal(found[~words], read[~words])
    changed = found != read
    assert torch.equal(found[changed], torch.cat((read[:, :1], best[:, :-1]), 1)[changed])
    share = changed.sum() / words.sum()
    assert 0.4 < share < 0.6


def test_scheduled_sampling_grows_as_in_xlans_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, after each epoch e > 6 from 0 on, the share becomes 0.05 · ⌊(e − 6) / 5⌋, at most 0.5."""
    grows = ScheduledSamplingSettings(share=0.5, start=7, every=5)
    for epoch in range(80):
        after = epoch - 1
        want = min(0.5, 0.05 * ((after - 6) // 5)) if after > 6 else 0.0
        assert grows.at(epoch) == grows.at(epoch + 0.999) == want
    assert [ScheduledSamplingSettings(share=0.25, start=2).at(e) for e in (1.9, 2.0, 9.0)] == [0.0, 0.25, 0.25]
    with pytest.raises(ValueError, match="never grows"):
        ScheduledSamplingSettings(share=0.1, every=1, step=0)
    shares: list[float] = []

    def note(model: Captioner, memory: Memory, tokens: Tensor, lengths: Tensor, share: float) -> Tensor:
        shares.append(share)
        return tokens

    monkeypatch.setattr("vlp_captioning.task.guessed", note)
    words = ["trainer.steps=8", "trainer.eval_every=0", "trainer.batch_size=20", "data.train=40"]
    given = ["share=0.1", "start=1", "every=1", "step=0.06"]
    fit(tmp_path, "transformer", *words, *(f"task.scheduled_sampling.{each}" for each in given))
    assert shares == [0.06] * 2 + [0.1] * 2  # two updates a pass: from the third on


def test_scheduled_sampling_continues(tmp_path: Path) -> None:
    words = ["trainer.steps=6", "trainer.eval_every=0", "trainer.save_every=3", "trainer.batch_size=20"]
    given = [f"task.scheduled_sampling.{each}" for each in ("share=0.9", "start=1", "every=1", "step=0.4")]
    fit(tmp_path / "whole", "transformer", *words, *given)
    task = build("transformer", *words, *given)
    interrupt(task, 4)
    with pytest.raises(Interrupted):
        fit(tmp_path / "cut", "transformer", *words, *given, task=task)
    fit(tmp_path / "cut", "transformer", *words, *given, resume="auto")
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_records_of_the_second_stage_hold_one_caption() -> None:
    task = build("transformer", *BOTH)
    assert len(task.records("train")[0]["captions"]) == 2
    task.enter("self_critical")
    assert len(task.records("train")[0]["captions"]) == 1
    task.enter("cross_entropy")
    assert len(task.records("train")[0]["captions"]) == 2


# Data.


class Few:
    """A handful of items with random features."""

    def visual(self, item: Item) -> Visual:
        generator = torch.Generator().manual_seed(int(item.id))
        return Visual(features=torch.randn(1 + int(item.id) % 3, 16, generator=generator))

    def picture(self, item: Item) -> None:
        return None


def few(task: CaptioningTask, train: Sequence[tuple[str, ...]], val: Sequence[tuple[str, ...]] = (("a dog",),)) -> None:
    """Exchange a task's data for these captions."""
    splits = {
        "train": [Item(str(i), f"t{i}", captions) for i, captions in enumerate(train)],
        "val": [Item(str(100 + i), f"v{i}", captions) for i, captions in enumerate(val)],
    }
    task.data = CaptionData(name="few", read=splits.__getitem__, visuals=Few(), splits=("train", "val"))


def test_images_without_captions_are_left_out_of_training() -> None:
    task = build("transformer", "task.captions_per_image=3")
    few(task, [("a dog", "the dog"), (), ("a cat",), ("...",), ("",)])
    records = task.records("train")
    assert len(records) == 2
    assert [records[i]["id"] for i in range(2)] == ["0", "2"]
    cat = [task.vocabulary.encode(["a", "cat"])]
    assert records[1]["captions"] == cat * 3  # one caption three times
    two = records[0]["captions"]
    assert len(two) == 3
    assert {tuple(caption) for caption in two} == {
        tuple(task.vocabulary.encode(s.split())) for s in ("a dog", "the dog")
    }
    assert len(task.self_critical.reward([0, 1], [two[0], cat[0]])) == 2  # the references are numbered likewise


def test_captions_of_unknown_words_alone() -> None:
    task = build("transformer", "task.text.min_count=2")
    few(task, [("a dog", "a dog"), ("zebra xylophone",)])
    unk = task.vocabulary.unk
    assert task.vocabulary.words[4:] == ("a", "dog")
    assert task.records("train")[1]["captions"] == [[unk, unk]] * 2
    assert task.loss(task.build_model(), task.collate([task.records("train")[1]])).total.isfinite()


def test_no_captions_at_all() -> None:
    task = build()
    few(task, [(), ("",)])
    with pytest.raises(UserError, match="has no caption to train on"):
        task.records("train")
    task = build()
    few(task, [("a dog",)], [(), ()])
    records = task.records("val")
    predictions = [{"id": records[i]["id"], "caption": "a dog", "log_prob": -1.0} for i in range(2)]
    with pytest.raises(UserError, match="no captions for these images to score"):
        task.score(predictions)


def test_a_model_of_attribute_words_needs_some(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, refused in (((), True), (("attn=eta", "attn.variant=visual"), False)):
        task = build("eta", *words)
        task.before_training(TrainerSettings())
        look = task.data.visual
        monkeypatch.setattr(
            type(task.data), "visual", lambda _, item, look=look: dataclasses.replace(look(item), attributes=())
        )
        if refused:
            with pytest.raises(UserError, match=r"model=eta reads attribute words, and the first \d+ images"):
                task.before_training(TrainerSettings())
        else:
            task.before_training(TrainerSettings())
        monkeypatch.undo()


def test_a_best_score_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    task = build("transformer", "task.best=meteor")
    monkeypatch.setattr("vlplatform.metrics.captions._JAVA", {"meteor": (lambda: "there is no Java", None)})
    with pytest.raises(UserError, match=r"task.best=meteor cannot be had: there is no Java; or choose another"):
        task.before_training(TrainerSettings())
    task.before_training(TrainerSettings(eval_every=0))
    task = build("transformer", "task.best=spatial_truth")
    task.before_training(TrainerSettings())
    monkeypatch.setattr(CaptioningTask, "facts", None)
    with pytest.raises(UserError, match=r"task.best=spatial_truth is a score of Scenes, which data=\w+ are not"):
        task.before_training(TrainerSettings())


def test_images_without_references_are_not_scored() -> None:
    task = build("transformer", "task.scores=[bleu]", "task.best=bleu4")
    few(task, [("a dog",)], [("a dog runs on grass",), ()])
    task.records("val")
    alone = task.score([{"id": "100", "caption": "a dog runs", "log_prob": -1.0}])
    both = task.score([{"id": i, "caption": "a dog runs", "log_prob": -1.0} for i in ("100", "101")])
    assert both.values["bleu1"] == alone.values["bleu1"]


def test_long_captions_are_cut() -> None:
    task = build("transformer", "model.max_length=4", "task.text.max_words=6", "task.decode.max_length=5")
    few(task, [("one two three four five six seven eight", "a dog")])
    assert {len(caption) for caption in task.numbers[0]} == {4, 2}
    assert task.training[1].cut == 1
    assert task.loss(task.build_model(), task.collate([task.records("train")[0]])).total.isfinite()


def test_own_tokens_come_before_rules() -> None:
    items = [
        Item("1", "a", ("A dog's tail.", "Two"), (("a", "dogs", "tail"), ("two",))),
        Item("2", "b", ("It's red.",)),
    ]
    assert Texts.of(items, TextSettings()).words == [[["a", "dogs", "tail"], ["two"]], [["it", "'s", "red"]]]
    ruled = Texts.of(items, TextSettings(tokens="ptb")).words
    assert ruled[0] == [["a", "dog", "'s", "tail"], ["two"]]
    cut = Texts.of(items, TextSettings(max_words=2))
    assert (cut.words[0][0], cut.cut) == (["a", "dogs"], 2)
    assert Texts.of([], TextSettings()).words == []


def test_the_vocabulary_comes_back_with_the_model(tmp_path: Path) -> None:
    import vlplatform

    task = build()
    model = task.build_model()
    model.save(tmp_path / "saved")
    loaded = vlplatform.load(tmp_path / "saved")
    assert loaded.vocabulary == task.vocabulary
    assert Vocabulary.from_dict(json.loads(json.dumps(task.vocabulary.as_dict()))) == task.vocabulary
    caption = task.numbers[0][0]
    assert loaded.vocabulary.encode(loaded.vocabulary.decode(caption)) == caption


def test_features_of_other_widths_are_told() -> None:
    task = build()
    few(task, [("a dog",), ("a cat",)])
    records = task.records("train")
    wide = {**records[1], "visual": dataclasses.replace(records[1]["visual"], features=torch.randn(2, 17))}
    with pytest.raises(UserError, match="the features of 1 are unlike those of 0"):
        task.collate([records[0], wide])


# Settings.

UNFIT: dict[str, tuple[str, list[str], str]] = {
    "xlan, dsa": ("xlan", ["attn=dsa"], "model=xlan is made of xlinear attention"),
    "updown, sa": ("updown", ["attn=sa"], "model=updown is made of additive attention"),
    "m2, sa": ("m2", ["attn=sa"], "model=m2 is made of memory_slots attention"),
    "transformer, eta": ("transformer", ["attn=eta"], "use model=eta"),
    "eta, sa": ("eta", ["attn=sa"], "use model=transformer"),
    "transformer, local": ("transformer", ["attn=local_bilateral"], "local_bilateral"),
    "unknown": ("transformer", ["attn=dsaa"], "did you mean 'dsa'"),
    "option": ("transformer", ["attn=dsa", "attn.branchs=2"], "branchs"),
    "model": ("transformr", [], "did you mean 'transformer'"),
    "setting": ("transformer", ["model.layrs=2"], "layrs"),
    "layers": ("xlan", ["model.encoder_layers=-1"], "encoder_layers=-1 must be at least 0"),
    "heads": ("xlan", ["model.heads=3"], "dim=16 is not divisible by heads=3"),
    "stages": ("transformer", ["task.stages=[self_critical,cross_entropy]"], "in this order"),
    "stage": ("transformer", ["task.stages=[xe]"], "stages"),
    "smoothing": ("transformer", ["task.label_smoothing=1.0"], "label_smoothing=1.0"),
    "sampling": ("transformer", ["task.scheduled_sampling.share=-0.1"], "scheduled_sampling: share=-0.1"),
    "captions": ("transformer", ["task.captions_per_image=0"], "captions_per_image=0"),
    "samples": ("transformer", ["task.self_critical.samples=1"], "samples=1"),
    "words": ("transformer", ["task.text.min_count=0"], "min_count=0"),
    "length": ("transformer", ["model.max_length=6"], "max_length=8"),
    "length of samples": ("transformer", ["model.max_length=9", "task.self_critical.max_length=11", *BOTH], "=11"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_told_in_a_sentence(case: str) -> None:
    model, words, message = UNFIT[case]
    with pytest.raises(UserError, match=message.replace(".", r"\.")) as told:
        build(model, *words)
    assert "\n" not in str(told.value)


FIT: list[tuple[str, list[str], str, str]] = [
    ("auto", ["attn=eta"], "eta", "eta"),
    ("auto", ["attn=dsa"], "transformer", "dsa"),
    ("mdsan", [], "mdsan", "mdsa"),
    ("transformer", ["attn=xlinear"], "transformer", "xlinear"),
    ("eta", ["attn=gbc"], "eta", "gbc"),
]


@pytest.mark.parametrize(("model", "words", "chosen", "attn"), FIT)
def test_what_fits_is_built_and_built_again(model: str, words: list[str], chosen: str, attn: str) -> None:
    task = build(model, *words, "model.heads=2", "model.hidden=8")
    assert (task.sections["model"]["name"], task.sections["attn"]["name"]) == (chosen, attn)
    json.dumps(task.sections)
    again = registry.task("captioning").build(task.sections)
    assert isinstance(again, CaptioningTask)
    assert again.sections == task.sections


def test_faults_are_found_before_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainer\.stages\.selfcritical is not a stage"):
        fit(tmp_path / "run", "transformer", *BOTH, "trainer.stages.selfcritical.steps=2")
