"""Readers of caption files: small layouts made here, the real ones where they are, and every fault in one sentence."""

from __future__ import annotations

import gzip
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlp_captioning.readers import CaptionData, open_data
from vlplatform.errors import UserError


def refused(message: str):
    return pytest.raises(UserError, match=message)


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def pictures(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 9), (200, 30, 0)).save(folder / name)


def captions_of(data: CaptionData) -> dict[str, dict[str, tuple[str, ...]]]:
    return {split: {item.id: item.captions for item in data.items(split)} for split in data.splits}


# Karpathy's format


def sentence(text: str) -> dict[str, Any]:
    return {"raw": text, "tokens": text.lower().rstrip(" .").split()}


def karpathy_file(root: Path, **changes: Any) -> Path:
    images = [
        {"filename": "a.jpg", "filepath": "train2014", "cocoid": 11, "split": "train"},
        {"filename": "b.jpg", "filepath": "val2014", "cocoid": 12, "split": "restval"},
        {"filename": "c.jpg", "filepath": "val2014", "cocoid": 13, "split": "val"},
        {"filename": "d.jpg", "filepath": "val2014", "cocoid": 14, "split": "test"},
    ]
    for image in images:
        image["sentences"] = [sentence(f"A {image['filename'][0]} ."), sentence("It is red .")]
    images[2].update(changes)
    pictures(root / "images", "train2014/a.jpg", "val2014/b.jpg", "val2014/c.jpg", "val2014/d.jpg")
    return write(root / "dataset_coco.json", {"dataset": "coco", "images": images})


def test_karpathy(tmp_path):
    karpathy_file(tmp_path)
    data = open_data("karpathy", {"root": str(tmp_path), "pixels": None})
    assert {s: [i.id for i in data.items(s)] for s in data.splits} == {
        "train": ["11", "12"],
        "val": ["13"],
        "test": ["14"],
    }
    item = data.items("train")[1]
    assert item.source == "val2014/b.jpg"
    assert item.captions == ("A b .", "It is red .")
    assert item.tokens == (("a", "b"), ("it", "is", "red"))
    seen = data.visual(item)
    assert seen.pixels is not None
    assert (tuple(seen.pixels.shape), seen.size) == ((3, 9, 12), (12, 9))
    assert "pictures marked restval count as training: 1" in data.notes
    assert "ECCV 2014" in data.citation
    assert pickle.loads(pickle.dumps(data)).visual(item).size == (12, 9)
    assert data.check("test") == []


def test_karpathy_without_restval(tmp_path):
    karpathy_file(tmp_path)
    data = open_data("karpathy", {"root": str(tmp_path), "restval": False, "pixels": [16, 20], "cache": True})
    assert [item.id for item in data.items("train")] == ["11"]
    seen = data.visual(data.items("train")[0])
    assert seen.pixels is not None
    assert seen.pixels.shape == (3, 16, 20)
    assert data.visual(data.items("train")[0]) is seen


def test_karpathy_faults(tmp_path):
    with refused(r"is empty: it must hold dataset_coco.json"):
        open_data("karpathy", {"root": str(tmp_path)})
    karpathy_file(tmp_path, split="dev")
    values = {"root": str(tmp_path)}
    with refused(r"dataset_coco.json, images\[2\] has the split 'dev': .*valid: restval, test, train, val"):
        open_data("karpathy", values)
    karpathy_file(tmp_path, cocoid=11)
    with refused(r"has the image id 11 in 'train' and in 'val': leave it in one place"):
        open_data("karpathy", values)
    karpathy_file(tmp_path, filename="../../secret.jpg")
    with refused(r"images\[2\] names 'val2014/../../secret.jpg', which lies outside"):
        open_data("karpathy", values)
    karpathy_file(tmp_path, sentences=[{"tokens": []}])
    with refused(r"images\[2\] lacks 'raw'"):
        open_data("karpathy", values)
    karpathy_file(tmp_path, sentences=[{"raw": "a", "tokens": "a"}])
    with refused(r"images\[2\] has tokens that do not fit"):
        open_data("karpathy", values)
    path = karpathy_file(tmp_path)
    path.write_bytes(path.read_bytes()[:200])
    with refused(r"dataset_coco.json is no JSON .*cut off"):
        open_data("karpathy", values)
    karpathy_file(tmp_path / "two")
    write(tmp_path / "two/dataset_x.json", {})
    with refused(r"holds dataset_coco.json, dataset_x.json: name the file with data.file"):
        open_data("karpathy", {"root": str(tmp_path / "two")})
    with refused(r"dataset_x.json lacks 'images'"):
        open_data("karpathy", {"root": str(tmp_path / "two"), "file": "dataset_x.json"})


def test_missing_pictures_stop_or_are_dropped(tmp_path):
    karpathy_file(tmp_path)
    (tmp_path / "images/val2014/b.jpg").unlink()
    with refused(
        r"1 of the 2 items of 'train' has no picture in .*images \(the first is val2014/b.jpg\): .*missing=drop"
    ):
        open_data("karpathy", {"root": str(tmp_path)})
    data = open_data("karpathy", {"root": str(tmp_path), "missing": "drop"})
    assert [item.id for item in data.items("train")] == ["11"]
    assert any("1 of the 2 items of 'train' has no picture" in note and "dropped" in note for note in data.notes)
    with refused(r"2 of the 2 items of 'train' have no picture in .*nowhere .*name the right folder"):
        open_data("karpathy", {"root": str(tmp_path), "missing": "drop", "images": "nowhere"})


def test_a_broken_picture_is_named(tmp_path):
    karpathy_file(tmp_path)
    (tmp_path / "images/val2014/c.jpg").write_bytes(b"\xff\xd8\xff")
    data = open_data("karpathy", {"root": str(tmp_path)})
    assert len(data.check("val")) == 1
    assert "c.jpg cannot be decoded" in data.check("val")[0]


# Attributes


def test_attributes(tmp_path):
    karpathy_file(tmp_path)
    write(tmp_path / "words.json", {"11": ["red", "dog"], "b.jpg": [], "13": ["cat"]})
    data = open_data("karpathy", {"root": str(tmp_path), "attributes": "words.json"})
    assert [data.visual(item).attributes for item in data.items("train")] == [("red", "dog"), ()]
    with refused(r"words.json has no words for 14 \(val2014/d.jpg\)"):
        data.visual(data.items("test")[0])
    write(tmp_path / "words.json", {"11": "red"})
    with refused(r"words.json has 'red' for 11: write a list of words"):
        open_data("karpathy", {"root": str(tmp_path), "attributes": "words.json"})


# COCO's format


def coco_files(root: Path) -> None:
    write(
        root / "captions_train.json",
        {
            "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "b.jpg"}],
            "annotations": [
                {"image_id": 8, "id": 1, "caption": "A dog."},
                {"image_id": 7, "id": 2, "caption": "A cat."},
                {"image_id": 8, "id": 3, "caption": "Two dogs."},
            ],
        },
    )
    write(root / "captions_val.json", {"images": [{"id": 9, "file_name": "c.jpg"}], "annotations": []})
    pictures(root, "images/a.jpg", "images/b.jpg", "other/c.jpg")


def test_coco(tmp_path):
    coco_files(tmp_path)
    data = open_data("coco", {"root": str(tmp_path), "val_images": "other"})
    assert captions_of(data) == {"train": {"7": ("A cat.",), "8": ("A dog.", "Two dogs.")}, "val": {"9": ()}}
    assert data.items("val")[0].source == "other/c.jpg"
    assert "the only item of 'val' has no captions" in data.notes
    assert data.check("train") == data.check("val") == []
    assert open_data("coco", {"root": str(tmp_path), "val": None}).splits == ("train",)


def test_coco_faults(tmp_path):
    coco_files(tmp_path)
    values = {"root": str(tmp_path), "val": None}
    with refused("are all null: name one caption file"):
        open_data("coco", values | {"train": None})
    with refused(r"nothing.json is missing"):
        open_data("coco", values | {"train": "nothing.json"})
    path = tmp_path / "captions_train.json"
    sound = json.loads(path.read_text())
    for change, message in (
        ({"annotations": [{"image_id": 99, "caption": "x"}]}, r"annotations\[0\] is about the picture 99"),
        ({"annotations": [{"image_id": 7, "caption": 3}]}, r"image 7, has \[3\] where the captions must be"),
        ({"images": [sound["images"][0]] * 2}, r"images\[1\] has the id 7, which is no number or there twice"),
        ({"images": [{"id": 7, "file_name": "/etc/passwd"}]}, r"names '/etc/passwd', which lies outside"),
        ({"images": {"7": "a.jpg"}}, r"captions_train.json, images is no list"),
        ({"images": ["a.jpg"]}, r"images\[0\] is 'a.jpg', not a record"),
    ):
        write(path, sound | change)
        with refused(message):
            open_data("coco", values)
    write(path, [1])
    with refused("captions_train.json is not of COCO's format"):
        open_data("coco", values)


# Flickr8k


def test_flickr8k(tmp_path):
    lines = [f"{name}.jpg#{i}\tA {name} number {i} .\n" for name in "abc" for i in range(2)]
    write(tmp_path / "Flickr8k.token.txt", "".join(lines))
    write(tmp_path / "Flickr_8k.trainImages.txt", "a.jpg\nc.jpg\n")
    write(tmp_path / "Flickr_8k.devImages.txt", "b.jpg\n")
    pictures(tmp_path / "Flicker8k_Dataset", "a.jpg", "b.jpg", "c.jpg")
    values = {"root": str(tmp_path)}
    data = open_data("flickr8k", values)
    assert captions_of(data) == {
        "train": {name: (f"A {name} number 0 .", f"A {name} number 1 .") for name in "ac"},
        "val": {"b": ("A b number 0 .", "A b number 1 .")},
    }
    assert data.check("train") == []
    (tmp_path / "tokens.gz").write_bytes(gzip.compress("".join(lines).encode()))
    assert captions_of(open_data("flickr8k", values | {"captions": "tokens.gz"})) == captions_of(data)
    (tmp_path / "tokens.gz").write_bytes(gzip.compress("".join(lines).encode())[:-9])
    with refused("tokens.gz cannot be read as text"):
        open_data("flickr8k", values | {"captions": "tokens.gz"})
    write(tmp_path / "Flickr_8k.devImages.txt", "b.jpg\na.jpg\n")
    with refused("image id a in 'train' and in 'val'"):
        open_data("flickr8k", values)
    write(tmp_path / "Flickr_8k.devImages.txt", "b.jpg\nx.jpg\n")
    with refused(r"devImages.txt, line 2, names x.jpg, of which .*token.txt has no caption"):
        open_data("flickr8k", values)
    write(tmp_path / "Flickr8k.token.txt", "a.jpg a dog\n")
    with refused(r"token.txt, line 1, is 'a.jpg a dog': write picture#number"):
        open_data("flickr8k", values)


# The user's own lines


def lines(path: Path, *rows: Any) -> str:
    return str(write(path, "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)))


def test_jsonl_with_an_automatic_split(tmp_path):
    names = [f"p/{i}.jpg" for i in range(30)]
    pictures(tmp_path, *names)
    file = lines(tmp_path / "all.jsonl", *({"image": name, "captions": [f"number {name}"]} for name in names))
    data = open_data("jsonl", {"file": file})
    train, val = data.items("train"), data.items("val")
    assert len(train) + len(val) == 30
    assert 1 <= len(val) <= 9
    assert any("30" not in note and "10% of the pictures" in note for note in data.notes)
    assert train[0].id == train[0].source.removesuffix(".jpg")
    fewer = lines(tmp_path / "few.jsonl", *({"image": name, "captions": ["x"]} for name in names[:15]))
    assert {i.id for i in open_data("jsonl", {"file": fewer}).items("val")} <= {i.id for i in val}
    other = open_data("jsonl", {"file": file, "seed": 1})
    assert {i.id for i in other.items("val")} != {i.id for i in val}


def test_jsonl_with_splits(tmp_path):
    pictures(tmp_path / "photos", "a.jpg", "b.jpg", "c.png")
    rows = [
        {"image": "a.jpg", "captions": ["a dog", "ein Hund läuft"], "split": "test"},
        {"image": "b.jpg", "captions": [], "id": 5},
    ]
    own = lines(tmp_path / "own.jsonl", rows[0], "", rows[1])
    values = {"file": own, "root": str(tmp_path / "photos")}
    assert captions_of(open_data("jsonl", values)) == {"train": {"5": ()}, "test": {"a": ("a dog", "ein Hund läuft")}}
    val = lines(tmp_path / "val.jsonl", {"image": "c.png", "captions": ["c"]})
    assert captions_of(open_data("jsonl", values | {"val_file": val}))["val"] == {"c": ("c",)}
    with refused(r"picture a.jpg in 'val' and in 'test'|image id a in 'val' and in 'test'"):
        again = lines(tmp_path / "again.jsonl", {"image": "a.jpg", "captions": ["c"]})
        open_data("jsonl", values | {"val_file": again})
    with refused(r"own.jsonl is the val file, but a says split=test"):
        open_data("jsonl", values | {"val_file": own, "file": val})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"own.jsonl, line 2, is no JSON .*write \{\"image\": \"dog.jpg\""),
        ([1], r"line 2, is no JSON object"),
        ({"image": "a.jpg"}, r"line 2, lacks 'captions' \(it has image\)"),
        ({"image": "a.jpg", "caption": "a dog"}, r"line 2, has the key 'caption': did you mean 'captions'"),
        ({"image": "a.jpg", "captions": "a dog"}, r"line 2, has 'a dog' where the captions must be: write a list"),
        ({"image": 3, "captions": []}, r"line 2, has 3 where the name of a picture must be"),
        ({"image": "../a.jpg", "captions": []}, r"line 2, names '../a.jpg', which lies outside"),
        ({"image": "a.jpg", "captions": [], "split": "dev"}, r"line 2, has the split 'dev'"),
        ({"image": "a.jpg", "captions": [], "id": 1.5}, r"line 2, has the image id 1.5"),
        ({"image": "b.jpg", "captions": []}, r"has the image id b in 'train' twice"),
    ],
)
def test_jsonl_faults(tmp_path, line, message):
    pictures(tmp_path, "a.jpg", "b.jpg")
    file = lines(tmp_path / "own.jsonl", {"image": "b.jpg", "captions": [], "split": "train"}, line)
    with refused(message):
        open_data("jsonl", {"file": file})


def test_jsonl_files(tmp_path):
    with refused(r"data.file must be given: add data.file=FILE"):
        open_data("jsonl", {})
    with refused(r"x.jsonl is missing"):
        open_data("jsonl", {"file": str(tmp_path / "x.jsonl")})
    with refused(r"x.jsonl has no lines"):
        open_data("jsonl", {"file": lines(tmp_path / "x.jsonl")})
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe\x81")
    with refused(r"x.jsonl cannot be read as text"):
        open_data("jsonl", {"file": str(tmp_path / "x.jsonl")})


# VATEX


def test_vatex(tmp_path):
    clip = {"enCap": ["A man runs.", "He runs."], "chCap": ["一个人在跑。"]}
    write(tmp_path / "vatex_training_v1.0.json", [{"videoID": "v1_000_010", **clip}, {"videoID": "v2_000_010", **clip}])
    write(tmp_path / "vatex_validation_v1.0.json", [{"videoID": "v3_000_010"}])
    for folder, name, shape in (("train", "v1", (1, 5, 6)), ("train", "v2", (4, 6)), ("val", "v3", (1, 3, 6))):
        (tmp_path / "features" / folder).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "features" / folder / f"{name}_000_010.npy", np.ones(shape, np.float64))
    data = open_data("vatex", {"root": str(tmp_path)})
    assert captions_of(data)["train"]["v1_000_010"] == ("A man runs.", "He runs.")
    seen = [data.visual(item) for item in data.items("train")]
    assert [(tuple(s.features.shape), s.grid) for s in seen if s.features is not None] == [
        ((5, 6), (1, 5)),
        ((4, 6), (1, 4)),
    ]
    assert data.picture(data.items("val")[0]) is None
    assert data.items("val")[0].captions == ()
    chinese = open_data("vatex", {"root": str(tmp_path), "language": "zh"})
    assert chinese.items("train")[0].captions == ("一个人在跑。",)
    with refused("has no pictures: name the file or folder of its features with data.features=PATH"):
        open_data("vatex", {"root": str(tmp_path), "features": None})
    (tmp_path / "features/val/v3_000_010.npy").unlink()
    with refused(r"the only item of 'val' has no features in .*features"):
        open_data("vatex", {"root": str(tmp_path)})


# Real data


@pytest.mark.shared
def test_real_flickr8k(shared):
    root = shared / "data/flickr8k-mini"
    data = open_data("karpathy", {"root": str(root)})
    assert {split: len(data.items(split)) for split in data.splits} == {"train": 762, "val": 113}
    assert Counter(len(item.captions) for split in data.splits for item in data.items(split)) == {5: 875}
    first = data.items("train")[0]
    assert first.captions[1] == "A girl going into a wooden building ."
    assert first.tokens is not None
    assert first.tokens[1] == ("a", "girl", "going", "into", "a", "wooden", "building")
    seen = data.visual(first)
    assert seen.pixels is not None
    assert (seen.size, tuple(seen.pixels.shape)) == ((150, 200), (3, 224, 224))
    given_out = open_data(
        "flickr8k",
        {"root": str(root), "captions": "Flickr8k.token.train_dev.txt.gz", "images": "images", "missing": "drop"},
    )
    assert {split: len(given_out.items(split)) for split in given_out.splits} == {"train": 753, "val": 113}
    assert sum("dropped" in note for note in given_out.notes) == 2
    there = {item.source: item.captions for item in data.items("val")}
    assert {item.source: item.captions for item in given_out.items("val")} == there


@pytest.mark.shared
def test_real_coco(shared):
    data = open_data("coco", {"root": str(shared / "data/coco-mini")})
    assert {split: len(data.items(split)) for split in data.splits} == {"train": 410, "val": 67}
    assert sum(len(item.captions) for item in data.items("train")) == 2051
    assert sum(len(item.captions) for item in data.items("val")) == 335
    assert data.check("val") == []


# Configurations


@pytest.mark.parametrize("name", ["karpathy", "coco", "flickr8k", "vatex", "jsonl"])
def test_the_configuration_of_each_reader_parses(name: str) -> None:
    """Its settings are known ones; opening then fails on the missing place alone."""
    from vlplatform.cli.compose import compose

    values = dict(compose(["task=captioning", f"data={name}"])["data"])
    assert values.pop("name") == name
    with refused(r"data\.file must be given" if name == "jsonl" else r"data\.root must be given"):
        open_data(name, values)
