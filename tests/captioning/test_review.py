"""Faults told before training, features of odd shapes, and words that cannot be required."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import TINY, WIDTH, images, make

from vlp_captioning.models import Images
from vlp_captioning.plugin import plugin
from vlp_captioning.readers import Visual
from vlp_captioning.readers.features import open_features
from vlp_captioning.records import collate
from vlp_captioning.show import attention_exhibits
from vlp_captioning.task import CaptioningTask
from vlplatform.cli import compose
from vlplatform.data.shards import FORMAT, Record, Shards, ShardWriter
from vlplatform.errors import UserError
from vlplatform.hub.importer import read_weights


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLP_CACHE", str(tmp_path_factory.getbasetemp() / "scenes"))


def sections(*words: str) -> dict[str, Any]:
    """The composed sections that a plugin builds from."""
    composed = compose.compose(words)
    return {group: composed[group] for group in compose.GROUPS}


def build(*words: str) -> CaptioningTask:
    """The task on eight small scenes."""
    few = ["data=scenes", "data.train=8", "data.val=2", "data.test=2", "data.size=48"]
    task = plugin.build(sections("task=captioning", *few, *words))
    assert isinstance(task, CaptioningTask)
    return task


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("task.scores=[cidr]", "scores has 'cidr'"),
        ("task.best=cidr", "best=cidr is no score"),
        ("task.decode.beam=0", "beam=0 must be at least 1"),
        ("task.decode.min_length=20", "min_length=20"),
        ("task.decode.no_repeat=-1", "no_repeat=-1"),
        ("task.decode.max_length=66", "more than model.max_length=64"),
        ("task.self_critical.reward={cidr:1}", "reward has 'cidr'"),
    ],
)
def test_what_would_fail_after_training_fails_before(word: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        build(word)


def test_the_length_of_samples_is_checked_where_there_are_samples() -> None:
    build("task.self_critical.max_length=66")
    with pytest.raises(UserError, match=r"task\.self_critical\.max_length=66"):
        build("task.self_critical.max_length=66", "task.stages=[cross_entropy,self_critical]")


def test_the_best_score_is_computed_where_the_scores_lack_it() -> None:
    task = build("task.scores=[rouge_l]", "task.best=-bleu4")
    ids = [item.id for item in task.records("val").items]  # type: ignore[attr-defined]
    scores = task.score([{"id": id, "caption": "a circle", "log_prob": -1.0} for id in ids])
    assert {"bleu4", "rouge_l"} <= set(scores.values)
    assert "cider_d" not in scores.values


def test_scores_of_places_cannot_choose_where_they_are_not_known(tmp_path: Path) -> None:
    features = tmp_path / "features"
    features.mkdir()
    rows = []
    for name in "abc":
        np.save(features / f"{name}.npy", np.ones((3, 4), np.float32))
        rows.append(json.dumps({"image": f"{name}.jpg", "captions": ["a dog"]}))
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    own = ["task=captioning", "data=jsonl", f"data.file={tmp_path / 'data.jsonl'}", f"data.features={features}"]
    with pytest.raises(UserError, match="told on Scenes alone"):
        plugin.build(sections(*own, "task.best=spatial_accuracy"))


def test_cut_captions_are_told() -> None:
    task = build("model.max_length=4", "task.decode.max_length=5")
    assert not any("cut" in note for note in task.describe()["data"]["notes"])  # nothing has been read yet
    lengths = [len(caption) for captions in task.training[1].words for caption in captions]
    cut = sum(length > 4 for length in lengths)
    assert f"{cut} training captions were cut to 4 words" in task.describe()["data"]["notes"]


def test_unknown_words_cannot_be_required() -> None:
    model = make("transformer")
    for words in (["zebra"], ["red", "<pad>"]):
        with pytest.raises(UserError, match=f"'{words[-1]}' is required"):
            model.generate(images(1), required=[words])
    with pytest.raises(UserError, match="use one group"):
        model.generate(images(1), beam=4, groups=2, required=[["red"]])
    with pytest.raises(UserError, match="no_repeat=-1"):
        model.generate(images(1), no_repeat=-1)


@pytest.mark.parametrize("name", list(TINY))
def test_a_tensor_without_any_region_gives_captions(name: str) -> None:
    model = make(name)
    given: dict[str, Any] = {"features": torch.zeros(2, 0, WIDTH)}
    if model.reads_attributes:
        given["attributes"] = torch.full((2, 1), 4)
    captions = model.generate(given, beam=2, max_length=5)
    assert len(captions) == 2
    padded = {**given, "features": torch.zeros(2, 1, WIDTH)}
    assert model.generate(padded, beam=2, max_length=5)[0][0].tokens == captions[0][0].tokens


@pytest.mark.parametrize(
    ("given", "told"), [({"grid": (3,)}, r"grid=\(3,\)"), ({"grid": "ab"}, "grid='ab'"), ({"geometry": 3}, "an? int")]
)
def test_places_of_another_type_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Images.of({"features": torch.ones(1, 4, 2), **given})


def test_videos_of_different_lengths_share_a_batch() -> None:
    frames = [Visual(features=torch.ones(n, 4), grid=(1, n)) for n in (2, 5)]
    batch = collate([{"id": str(i), "index": i, "visual": seen} for i, seen in enumerate(frames)])
    assert batch["grid"] == (1, 5)
    assert batch["mask"].sum(1).tolist() == [2, 5]
    squares = [Visual(features=torch.ones(n * n, 4), grid=(n, n)) for n in (2, 3)]
    with pytest.raises(UserError, match="differ in size"):
        collate([{"id": str(i), "index": i, "visual": seen} for i, seen in enumerate(squares)])


def line(key: str, count: int, width: int = 3) -> str:
    """A line of a bottom-up TSV."""
    boxes, features = (base64.b64encode(np.ones((count, n), "<f4").tobytes()).decode() for n in (4, width))
    return "\t".join((key, "10", "20", str(count), boxes, features))


def test_the_first_picture_of_a_tsv_may_have_no_region(tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_text(f"{line('1', 0)}\n{line('2', 2)}\n")
    found = open_features(tmp_path / "f.tsv")
    shapes = [tuple(seen.features.shape) for key in "12" if (seen := found.features(key)).features is not None]
    assert shapes == [(0, 3), (2, 3)]


def test_a_damaged_first_line_of_a_tsv_is_told(tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_text("\t".join(("1", "10", "20", "2", "!!", "??")) + "\n")
    with pytest.raises(UserError, match="image_id 1, cannot be decoded"):
        open_features(tmp_path / "f.tsv")


def test_a_size_that_is_no_number_is_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", feat=np.ones((2, 3)), image_w=np.array([1, 2]), image_h=3)
    with pytest.raises(UserError, match=r"a\.npz cannot be read"):
        open_features(tmp_path).features("a")


def test_a_shard_with_a_damaged_header_is_told(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with ShardWriter(tmp_path, {}) as writer:
        writer.add("a", Record(torch.ones(2, 3)))
        writer.finish()
    (shard,) = tmp_path.glob("shard-*.safetensors")
    save_file({"features": torch.ones(2, 3)}, shard, {FORMAT: "[{"})
    index = json.loads((tmp_path / "index.json").read_text())
    index["shards"][0]["bytes"] = shard.stat().st_size
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="is damaged"):
        Shards(tmp_path)


def test_pickled_weights_are_refused_without_advice_to_unpickle_them(tmp_path: Path) -> None:
    torch.save({"a": Path("x")}, tmp_path / "a.pth")
    with pytest.raises(UserError) as told:
        read_weights(tmp_path / "a.pth")
    assert "pickled objects" in str(told.value)
    assert "weights_only" not in str(told.value)


def test_attention_is_not_drawn_where_nobody_knows_where_features_lie(tmp_path: Path) -> None:
    from PIL import Image

    features = tmp_path / "features"
    features.mkdir()
    rows = []
    for name in "abc":
        np.save(features / f"{name}.npy", np.random.default_rng(0).random((7, 4), np.float32))  # 7 is no square
        Image.new("RGB", (20, 10)).save(tmp_path / f"{name}.png")
        rows.append(json.dumps({"image": f"{name}.png", "captions": ["a dog"]}))
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    own = ["task=captioning", "data=jsonl", f"data.file={tmp_path / 'data.jsonl'}", f"data.features={features}"]
    small = ["model.dim=16", "model.heads=2", "model.hidden=16", "task.text.min_count=1"]
    task = plugin.build(sections(*own, *small))
    assert isinstance(task, CaptioningTask)
    assert attention_exhibits(task, task.build_model().eval(), "val") == []
