"""Where words looked: the image's memory in every captioner; maps and clusters in the report; the alignment score."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import TINY, VOCABULARY, images, make

from vlp_captioning.grounding import alignments
from vlp_captioning.models import Captioner, Images
from vlp_captioning.plugin import plugin
from vlp_captioning.show import CLUSTERS, WORDS, word_weights
from vlp_captioning.task import CaptioningTask
from vlplatform.engine.report import write_report
from vlplatform.interpret import CAPTION, capture
from vlplatform.metrics.alignment import alignment
from vlplatform.task import Exhibit

SAID = [4, 5, 8]


def one(model: Captioner, count: int = 5, attributes: int = 5) -> Images:
    """One image; as many attribute words as regions, unless told otherwise."""
    seen = images(1, count)
    torch.manual_seed(7)
    seen["attributes"] = torch.randint(4, len(VOCABULARY), (1, attributes))
    seen["attribute_mask"] = torch.ones(1, attributes, dtype=torch.bool)
    return model.checked(seen)


@torch.no_grad()
@pytest.mark.parametrize("kind", TINY)
def test_every_captioner_shows_its_words(kind: str) -> None:
    model = make(kind)
    found = word_weights(model, one(model), SAID)
    assert [weights.shape for weights in found] == [(5,)] * 3
    for weights in found:
        assert weights.sum().item() == pytest.approx(1, abs=1e-5)
    assert not torch.equal(found[0], found[1])


ETA = ("eta", "parallel", "stacked_v", "stacked_s", "visual", "semantic")


@torch.no_grad()
@pytest.mark.parametrize("attributes", [5, 3])
@pytest.mark.parametrize("variant", ETA)
def test_eta_shows_the_image_and_not_the_attributes(variant: str, attributes: int) -> None:
    """Weights follow the image's vectors, also where attributes are as many; ``semantic`` reads no image."""
    model = make("eta", attn={"name": "eta", "variant": variant})
    seen = one(model, attributes=attributes)
    found = word_weights(model, seen, SAID)
    if variant == "semantic":
        assert found == []
        return
    swap = torch.tensor([1, 0, 2, 4, 3])
    assert seen.features is not None
    mixed = word_weights(model, dataclasses.replace(seen, features=seen.features[:, swap]), SAID)
    for weights, moved in zip(found, mixed):
        torch.testing.assert_close(moved, weights[swap], atol=1e-6, rtol=0)
        assert (weights - weights[swap]).abs().max() > 1e-4
    assert seen.attributes is not None
    turned = dataclasses.replace(seen, attributes=seen.attributes.flip(1))
    for weights, same in zip(found, word_weights(model, turned, SAID)):
        torch.testing.assert_close(same, weights, atol=1e-6, rtol=0)


@torch.no_grad()
def test_memories_side_by_side() -> None:
    """X-Linear attention reads regions and words as one: the regions' share of it is shown."""
    model = make("eta", attn={"name": "xlinear", "heads": 2})
    seen = one(model, 5, 3)
    state = model.start(model.encode(seen))
    with capture(model) as captured:
        model.step(torch.tensor([VOCABULARY.bos]), state)
    whole = captured.weights("decoder.layers.1.cross")
    assert whole.shape == (1, 2, 1, 8)
    torch.testing.assert_close(word_weights(model, seen, SAID)[0], whole[0, :, 0, :5].mean(0))


@torch.no_grad()
def test_the_last_layer_is_shown() -> None:
    model = make("transformer")
    seen = one(model)
    memory = model.encode(seen)
    with capture(model) as captured:
        model.decode(memory, torch.tensor([[VOCABULARY.bos, *SAID[:2]]]))
    expected = captured.weights("decoder.layers.1.cross")[0].mean(0)
    torch.testing.assert_close(torch.stack(word_weights(model, seen, SAID)), expected)


# The alignment score.


@torch.no_grad()
@pytest.mark.parametrize("kind", ["acf", "eta", "xlan"])
def test_alignment_of_captions(kind: str) -> None:
    """What the paper's two products give, of the states that told the words; images of a batch do not mix."""
    model = make(kind)
    seen = model.checked(images(3, 7, real=(7, 4, 1)))
    captions = [each[0] for each in model.generate(seen, max_length=8, min_length=5)]
    captions[2] = dataclasses.replace(captions[2], tokens=[VOCABULARY.eos])  # no words
    found = alignments(model, seen, captions)
    assert found[2] is None
    for i, caption in enumerate(captions[:2]):
        words = [number for number in caption.tokens if number != VOCABULARY.eos]
        memory = model.encode(seen)
        vision = memory.tokens[0][i : i + 1, : (7, 4)[i]]
        alone = model.checked({key: value[i : i + 1] for key, value in images(3, 7, real=(7, 4, 1)).items()})
        states = model.decode(model.encode(alone), torch.tensor([[VOCABULARY.bos, *words[:-1]]]))
        assert found[i] == pytest.approx(alignment(vision.float(), states.float()).item())


# Through the task.


@pytest.fixture
def build(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tasks on a few scenes."""
    monkeypatch.setenv("VLP_CACHE", str(tmp_path_factory.getbasetemp() / "scenes"))

    def made(
        kind: str, data: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **changes: Any
    ) -> CaptioningTask:
        task = plugin.build(
            {
                "task": {
                    "text": {"min_count": 1},
                    "decode": {"max_length": 6, "beam": 2},
                    "scores": ["bleu"],
                    **changes,
                },
                "attn": {"name": "auto"},
                "model": {"name": kind, "dim": 16, **TINY[kind], **(model or {})},
                "data": {
                    "name": "scenes",
                    "size": 48,
                    "train": 20,
                    "val": 5,
                    "test": 5,
                    "feature_dim": 16,
                    **(data or {}),
                },
            }
        )
        assert isinstance(task, CaptioningTask)
        return task

    return made


def scored(task: CaptioningTask, model: Captioner) -> Any:
    records = task.records("val")
    with torch.no_grad():
        return task.score(task.predict(model, task.collate([records[i] for i in range(len(records))])))


def test_models_that_cluster_are_scored(build: Any) -> None:
    task = build("acf")
    told = scored(task, task.build_model().eval())
    assert 0 <= told.values["alignment"] <= 1
    each = [row["scores"]["alignment"] for row in told.files["captions"] if "alignment" in row["scores"]]
    assert told.values["alignment"] == pytest.approx(np.mean(each))
    assert "alignment" in plugin.metrics()
    other = build("transformer")
    assert "alignment" not in scored(other, other.build_model().eval()).values
    asked = build("transformer", best="alignment")  # the paper's BASE, for comparison
    assert "alignment" in scored(asked, asked.build_model().eval()).values


@pytest.mark.parametrize("pixels", [False, True])
def test_report(build: Any, tmp_path: Path, pixels: bool) -> None:
    """Maps of words, then clusters, each kind under what is said of it."""
    decode = {"max_length": 6, "beam": 1, "min_length": 4}
    seeing = {"vision": {"backbone": "resnet18", "pretrained": False}} if pixels else {}
    task = build("acf", {"visual": "pixels"} if pixels else {}, seeing, decode=decode)
    model = task.build_model().eval()
    words, *joined = task.attention_exhibits(model, "val")
    assert words.note == WORDS
    assert next(iter(words.images)) == "image"
    assert list(words.images)[1].startswith("1. ")
    assert [exhibit.note for exhibit in joined] == [CLUSTERS] * 3
    for exhibit in joined:
        assert [name.partition(":")[0] for name in exhibit.images] == ["image", "layer 1", "layer 2"]
        assert "— layer 2: " in exhibit.text
        assert "— tree: " in exhibit.text
        assert all(picture.shape[0] >= 192 and picture.dtype == np.uint8 for picture in exhibit.images.values())
    page = write_report(tmp_path, [], [words, *joined]).read_text()
    assert page.count("Each map shows with which weights") == page.count("Clusters of Ada-ClustFormer") == 1
    assert page.index("Each map shows") < page.index("where the words of") < page.index("Clusters of Ada-ClustFormer")
    assert CAPTION[:40] not in page
    assert page.count("most attention</span>") == 1  # the scale of heat maps: clusters have none
    assert "most attention</span>" not in write_report(tmp_path, [], joined).read_text()


def test_maps_over_pixels_keep_their_note(tmp_path: Path) -> None:
    page = write_report(tmp_path, [], [Exhibit("a", {"query": np.zeros((8, 8, 3), dtype=np.uint8)})]).read_text()
    assert CAPTION[:40] in page


def test_models_without_clusters_show_words_alone(build: Any) -> None:
    for kind in ("xlan", "updown"):
        task = build(kind)
        (words,) = task.attention_exhibits(task.build_model().eval(), "val")
        assert len(words.images) > 1
