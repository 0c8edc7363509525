"""Readers on real data, and what all of them promise: records, scaling, caching, checking."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import folder
from PIL import Image
from yaml import safe_load

from vlp_segmentation.readers import DATA_SETS, open_data
from vlplatform.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs/data"


def values_of(config: str, **more):
    """A file of configs/data as the reader gets it."""
    values = safe_load((CONFIGS / f"{config}.yaml").read_text())
    return values.pop("name"), values | more


@pytest.fixture
def camvid(shared):
    return {"root": str(shared / "data/camvid")}


def test_camvid_as_published(camvid, shared):
    data = open_data("camvid", camvid)
    assert len(data.classes) == len(data.palette) == len(data.class_weights or ()) == 11
    assert (len(data.records("train", True)), len(data.records("val", False))) == (367, 101)
    first = data.records("val", False)[0]
    line = (shared / "data/camvid/val.txt").read_text().split()[:2]
    assert first["id"] == Path(line[0]).stem
    stored = np.array(Image.open(shared / "data/camvid" / line[1])).astype(int)
    stored[stored == 11] = 255
    assert first["mask"].dtype == torch.int64
    assert np.array_equal(first["mask"], stored)
    pixels = np.array(Image.open(shared / "data/camvid" / line[0]))
    torch.testing.assert_close(first["image"], torch.from_numpy(pixels).permute(2, 0, 1) / 255)


def test_camvid_class_shares_are_the_published_ones(camvid):
    """Sky and road of the validation split, from the data set's table (per cent of all pixels)."""
    records = open_data("camvid", camvid | {"scale": 0.25}).records("val", False)
    counts = sum(torch.bincount(records[i]["mask"].flatten(), minlength=256) for i in range(len(records)))
    share = 100 * torch.as_tensor(counts) / torch.as_tensor(counts).sum()
    assert share[0].item() == pytest.approx(9.18, abs=0.1)
    assert share[3].item() == pytest.approx(28.95, abs=0.2)
    assert share[255].item() == pytest.approx(1.70, abs=0.1)


def test_half_size_and_cache(camvid):
    half = open_data("camvid", camvid | {"scale": 0.5}).records("val", False)[3]
    kept = open_data("camvid", camvid | {"scale": 0.5, "cache": True}).records("val", False)
    whole = open_data("camvid", camvid).records("val", False)[3]
    assert half["image"].shape == (3, 180, 240)
    assert half["mask"].shape == (180, 240)
    for _ in range(2):
        again = kept[3]
        assert torch.equal(again["image"], half["image"])
        assert torch.equal(again["mask"], half["mask"])
    assert again["image"].mean().item() == pytest.approx(whole["image"].mean().item(), abs=0.01)
    assert torch.equal(half["mask"], whole["mask"][1::2, 1::2])


def test_cache_reads_each_file_once(tmp_path):
    root = folder(tmp_path)
    (root / "train.txt").write_text("a\nb\nc\n")
    records = open_data("folder", {"root": str(root), "cache": True}).records("train", True)
    torch.manual_seed(0)
    first = records[1]
    shutil.rmtree(root / "images")
    torch.manual_seed(0)
    assert torch.equal(records[1]["image"], first["image"])
    with pytest.raises(UserError, match=r"a\.png is missing"):
        records[0]


def test_training_records_are_seeded_by_torch_alone(camvid):
    values = camvid | {"augment": {"crop": [64, 96]}}
    one, two = (open_data("camvid", values).records("train", True) for _ in range(2))
    torch.manual_seed(5)
    first = one[7]
    torch.manual_seed(5)
    again = pickle.loads(pickle.dumps(two))[7]  # as a worker gets it
    assert first["image"].shape == (3, 64, 96)
    assert first["mask"].shape == (64, 96)
    assert torch.equal(first["image"], again["image"])
    assert torch.equal(first["mask"], again["mask"])
    assert first["id"] == again["id"]


def test_celebamask_through_the_folder_reader(shared):
    name, values = values_of("celebamask", root=str(shared / "data/celebamask-mini"), scale=0.25)
    data = open_data(name, values)
    assert name == "folder"
    assert (len(data.classes), data.flip_pairs) == (19, ((4, 5), (6, 7), (8, 9)))
    assert data.parts is not None
    assert data.parts["mouth"] == ("u_lip", "mouth", "l_lip")
    assert data.notes == ()
    train, val = data.records("train", True), data.records("val", False)
    assert (len(train), len(val)) == (750, 100)
    assert train[0]["image"].shape == (3, 128, 128)
    face = val[0]["mask"]
    assert {1, 2, 13} <= set(face.unique().tolist()) <= {*range(19)}
    left_eye, right_eye = ((face == eye).nonzero().float().mean(0)[1] for eye in (4, 5))
    assert left_eye > right_eye  # the person's own left


def test_flipped_face_keeps_left_and_right(shared):
    name, values = values_of("celebamask", root=str(shared / "data/celebamask-mini"), scale=0.25)
    values["augment"] = {"scale_range": [1.0, 1.0], "flip": 1.0}
    records = open_data(name, values).records("val", True)
    torch.manual_seed(0)
    face = records[0]["mask"]
    left_eye, right_eye = ((face == eye).nonzero().float().mean(0)[1] for eye in (4, 5))
    assert left_eye > right_eye


def test_cityscapes_label_files_agree(shared, tmp_path):
    fixtures, name = shared / "data/seg-fixtures/cityscapes", "frankfurt_000000_000294"
    for split, kind in (("train", "labelIds"), ("val", "labelTrainIds")):
        for part, file in (("leftImg8bit", f"{name}_leftImg8bit.png"), ("gtFine", f"{name}_gtFine_{kind}.png")):
            target = tmp_path / part / split / "frankfurt"
            target.mkdir(parents=True)
            shutil.copy(fixtures / file, target)
    data = open_data("cityscapes", {"root": str(tmp_path)})
    from_labels, from_train_ids = (data.records(split, False)[0] for split in ("train", "val"))
    assert from_labels["id"] == name
    agree = (from_labels["mask"] == from_train_ids["mask"]).float().mean()
    assert agree > 0.997  # the two fixtures were reduced in size apart: 0.2 % of their pixels differ
    present = {data.classes[i] for i in from_labels["mask"].unique().tolist() if i != 255}
    assert {"road", "vegetation", "car"} <= present


def test_cityscapes_prefers_train_ids(shared, tmp_path):
    fixtures, name = shared / "data/seg-fixtures/cityscapes", "frankfurt_000000_000294"
    labels = tmp_path / "gtFine/val/frankfurt"
    labels.mkdir(parents=True)
    (tmp_path / "leftImg8bit/val/frankfurt").mkdir(parents=True)
    shutil.copy(fixtures / f"{name}_leftImg8bit.png", tmp_path / "leftImg8bit/val/frankfurt")
    shutil.copy(fixtures / f"{name}_gtFine_labelTrainIds.png", labels)
    (labels / f"{name}_gtFine_labelIds.png").write_bytes(b"not read")
    assert open_data("cityscapes", {"root": str(tmp_path)}).check("val") == []


def test_ade20k_labels_start_at_one(shared, tmp_path):
    fixtures = shared / "data/seg-fixtures/ade20k"
    for part in ("images", "annotations"):
        shutil.copytree(fixtures / part, tmp_path / part / "validation")
    data = open_data("ade20k", {"root": str(tmp_path)})
    assert len(data.classes) == len(set(data.classes)) == len(set(data.palette)) == 150
    assert (data.classes[0], data.classes[149]) == ("wall", "flag")
    records = data.records("val", False)
    assert [records[i]["id"] for i in range(3)] == [f"ADE_val_0000000{i}" for i in (1, 2, 3)]
    stored = np.array(Image.open(fixtures / "annotations/ADE_val_00000003.png")).astype(int) - 1
    stored[stored == -1] = 255
    assert np.array_equal(records[2]["mask"], stored)
    with pytest.raises(UserError, match=r"no split 'test'.*valid: train, val"):
        data.records("test", False)


def test_scenes(tmp_path, monkeypatch):
    monkeypatch.setenv("VLP_CACHE", str(tmp_path))
    name, values = values_of("scenes", train=3, val=2, test=1, size=64)
    data = open_data(name, values)
    train, val = data.records("train", True), data.records("val", False)
    assert (len(train), len(val), len(data.classes)) == (3, 2, 9)
    assert train[0]["image"].shape == val[0]["image"].shape == (3, 64, 64)
    assert val[1]["mask"].max() < 9
    assert data.check("test") == []
    pickle.dumps(train)


def test_every_configuration_parses(tmp_path):
    """Each file's settings are known ones of the right type; opening then fails on the missing root alone."""
    configs = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    assert set(configs) >= {*DATA_SETS, "celebamask"}
    for config in configs:
        name, values = values_of(config)
        if name not in DATA_SETS:  # another task's
            continue
        if name == "scenes":
            open_data(name, values)
            continue
        with pytest.raises(UserError, match=r"data\.root must be given"):
            open_data(name, values)


def test_unknown_reader_and_settings():
    with pytest.raises(UserError, match=r"data\.name=camvit .*did you mean 'camvid'"):
        open_data("camvit", {})
    with pytest.raises(UserError, match=r"data\.rot .*did you mean 'root'"):
        open_data("camvid", {"rot": "x"})
    with pytest.raises(UserError, match=r"data\.augment\.crop_size .*valid: brightness"):
        open_data("camvid", {"augment": {"crop_size": [3, 3]}})
    with pytest.raises(UserError, match=r"scale=0.0 must lie"):
        open_data("camvid", {"scale": 0.0})
