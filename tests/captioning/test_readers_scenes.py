"""Scenes as captioned data: what the world says is what the captioner sees."""

from __future__ import annotations

import pickle

import pytest
import torch

from vlp_captioning.readers import DATA_SETS, READERS, open_data
from vlp_captioning.readers.records import CaptionData, Item, Visual, check_splits
from vlp_captioning.readers.scenes import WORDS, attributes
from vlplatform.data.scenes import ScenesSettings, scene
from vlplatform.errors import UserError

SMALL = {"size": 48, "train": 4, "val": 3, "test": 2, "feature_dim": 16}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("VLP_CACHE", str(tmp_path_factory.getbasetemp() / "scenes"))


def test_regions():
    data = open_data("scenes", SMALL)
    items = data.items("val")
    assert [len(data.items(split)) for split in data.splits] == [4, 3, 2]
    settings = ScenesSettings(**SMALL)
    for index, item in enumerate(items):
        truth, seen = scene(1, index, settings), data.visual(item)
        assert (item.id, item.source, item.captions) == (truth.id, truth.id, truth.captions)
        torch.testing.assert_close(seen.features, torch.from_numpy(truth.features), rtol=0, atol=0)
        assert seen.boxes is not None
        assert seen.boxes.tolist() == [list(box) for box in truth.boxes]
        assert (seen.size, seen.grid, seen.pixels) == ((48, 48), None, None)
        picture = data.picture(item)
        assert picture is not None
        assert (picture == truth.image).all()
    assert data.check("test") == []


def test_pixels():
    data = open_data("scenes", SMALL | {"visual": "pixels"})
    item = data.items("test")[1]
    seen = data.visual(item)
    assert seen.features is None
    assert seen.pixels is not None
    assert (seen.pixels.permute(1, 2, 0).numpy() == data.picture(item)).all()


def test_it_travels_to_workers():
    data = open_data("scenes", SMALL)
    item = data.items("train")[2]
    again: CaptionData = pickle.loads(pickle.dumps(data))
    torch.testing.assert_close(again.visual(item).features, data.visual(item).features)


THINGS = [
    {"shape": "star", "colour": "red", "texture": "plain", "size": "small", "box": [0, 0, 4, 4]},
    {"shape": "ring", "colour": "red", "texture": "dotted", "size": "large", "box": [3, 3, 9, 9]},
]


def test_attributes_without_noise_are_the_truth():
    assert attributes("0-0", THINGS, ["sand"]) == ("ring", "red", "dotted", "large", "star", "small", "sand")


def test_attribute_noise():
    true = set(attributes("0-0", THINGS, ["sand"]))
    runs = [attributes(f"0-{i}", THINGS, ["sand"], 10) for i in range(400)]
    assert runs == [attributes(f"0-{i}", THINGS, ["sand"], 10) for i in range(400)]
    assert all(set(run) <= set(WORDS) and len(set(run)) == len(run) for run in runs)
    missed = sum(len(true - set(run)) for run in runs) / (400 * len(true))
    false = sum(len(set(run) - true) for run in runs) / (400 * (len(WORDS) - len(true)))
    assert 0.08 < missed < 0.12
    assert 0.08 < false < 0.12
    assert sum(run[0] in true for run in runs) > 360
    assert set(attributes("0-5", THINGS, ["sand"], 100)) == set(WORDS) - true


def test_names_and_settings():
    assert DATA_SETS.keys() == READERS.keys()
    with pytest.raises(UserError, match=r"data.name=scene is not a reader of captions: did you mean 'scenes'"):
        open_data("scene", {})
    with pytest.raises(UserError, match="attribute_noise=101 is outside 0 to 100"):
        open_data("scenes", {"attribute_noise": 101})
    with pytest.raises(UserError, match="data=scenes has no split 'dev'"):
        open_data("scenes", SMALL).items("dev")


def test_nothing_is_in_two_splits():
    a, b = Item("1", "a.jpg"), Item("2", "b.jpg")
    check_splits({"train": [a], "val": [b]}, "x")
    with pytest.raises(UserError, match="x has the image id 1 in 'train' and in 'val': leave it in one place"):
        check_splits({"train": [a], "val": [b, a]}, "x")
    with pytest.raises(UserError, match=r"x has the picture a.jpg in 'train' and in 'val'"):
        check_splits({"train": [a], "val": [Item("3", "a.jpg")]}, "x")
    with pytest.raises(UserError, match="x has the image id 1 in 'val' twice"):
        check_splits({"val": [a, a]}, "x")
    with pytest.raises(UserError, match="x has nothing in its split 'val'"):
        check_splits({"val": []}, "x")


def test_a_split_is_checked_against_those_read_before():
    class Blind:
        def visual(self, item: Item) -> Visual:
            raise UserError(f"{item.id} is lost.")

        def picture(self, item: Item) -> None:
            return None

    data = CaptionData(name="x", read=lambda split: [Item("1", split)], visuals=Blind())
    assert data.check("train") == ["1 is lost."]
    with pytest.raises(UserError, match="image id 1 in 'train' and in 'val'"):
        data.items("val")
