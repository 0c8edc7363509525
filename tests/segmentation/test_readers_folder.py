"""The user's own data: class lists, ways to split, kinds of masks."""

from __future__ import annotations

import hashlib
import logging

import layouts
import numpy as np
import pytest
import torch
from PIL import Image

from vlp_segmentation.readers import open_data
from vlplatform.errors import UserError


def opened(root, **values):
    return open_data("folder", {"root": str(root)} | values)


def ids_of(data, split):
    records = data.records(split, False)
    return [records[i]["id"] for i in range(len(records))]


def test_lists_decide_the_split_and_their_order(tmp_path):
    root = layouts.folder(tmp_path, ("a", "b", "sub/c"))
    (root / "train.txt").write_text("sub/c\n\na.png\n")
    (root / "val.txt").write_text("\ufeffb\r\n")
    data = opened(root)
    assert data.splits == ("train", "val")
    assert data.notes == ()
    assert ids_of(data, "train") == ["sub/c", "a"]
    assert ids_of(data, "val") == ["b"]
    assert data.records("train", False)[0]["mask"].unique().tolist() == [2]
    with pytest.raises(UserError, match="no split 'test'"):
        data.records("test", False)


def test_dots_in_names_are_no_suffixes(tmp_path):
    root = layouts.folder(tmp_path, ("frame.0001", "frame.0002"))
    (root / "train.txt").write_text("frame.0001\nframe.0002.png\n")
    assert ids_of(opened(root), "train") == ["frame.0001", "frame.0002"]


def test_subfolders_decide_the_split(tmp_path):
    root = layouts.folder(tmp_path, ("train/a", "train/b", "val/a", "test/a"))
    data = opened(root)
    assert data.splits == ("train", "val", "test")
    assert ids_of(data, "train") == ["train/a", "train/b"]
    assert ids_of(data, "test") == ["test/a"]


def test_automatic_split_is_announced_stable_and_complete(tmp_path, caplog):
    names = [f"picture{i:02d}" for i in range(40)]
    root = layouts.folder(tmp_path, names)
    with caplog.at_level(logging.WARNING):
        data = opened(root, val_fraction=0.25)
    assert data.notes[0] in caplog.text
    assert "25% of the pictures" in data.notes[0]
    train, val = ids_of(data, "train"), ids_of(data, "val")
    assert sorted(train + val) == names
    assert 4 <= len(val) <= 16
    assert ids_of(opened(root, val_fraction=0.25, seed=1), "val") != val
    layouts.folder(tmp_path, ["another"])
    assert set(ids_of(opened(root, val_fraction=0.25), "val")) - {"another"} == set(val)


def test_automatic_split_without_a_picture(tmp_path):
    one = opened(layouts.folder(tmp_path / "one", ("a",)), val_fraction=0.0001)
    with pytest.raises(UserError, match=r"data\.val_fraction=0.0001 puts none into val"):
        one.records("val", False)
    two = opened(layouts.folder(tmp_path / "two", ("a", "b")), val_fraction=0.9999)
    with pytest.raises(UserError, match=r"data\.val_fraction=0.9999 puts none into train"):
        two.records("train", False)


def test_few_pictures_have_one_for_validation(tmp_path):
    names = [f"photo{i}" for i in range(6)]
    root = layouts.folder(tmp_path, names)
    data = opened(root)
    assert "at least one" in data.notes[0]
    assert ids_of(data, "val") == ["photo1"]  # the lowest hash of seed and name
    assert ids_of(data, "train") == [f"photo{i}" for i in (0, 2, 3, 4, 5)]
    assert ids_of(opened(root, val_fraction=0.0001), "val") == ["photo1"]
    values = {name: int(hashlib.sha256(f"0:{name}".encode()).hexdigest()[:16], 16) for name in names}
    assert min(values.values()) >= 0.1 * 2**64  # so the share alone would choose none
    assert min(values, key=values.__getitem__) == "photo1"


def test_class_list_with_colours(tmp_path):
    root = layouts.folder(tmp_path, classes="ground 1 2 3\ntraffic light\nroad 66\n")
    data = opened(root)
    assert data.classes == ("ground", "traffic light", "road 66")
    assert data.palette[0] == (1, 2, 3)
    assert len(set(data.palette)) == 3
    assert opened(root, classes=["ground", "traffic light", "road 66"]).palette == data.palette


def test_classes_may_be_given_inline(tmp_path):
    root = layouts.folder(tmp_path, classes=None)
    assert opened(root, classes=["x", "y", "z"]).classes == ("x", "y", "z")
    with pytest.raises(UserError, match=r"classes\.txt is missing: .* or give data\.classes"):
        opened(root)


@pytest.mark.parametrize(
    ("content", "given", "message"),
    [
        ("a\nb\nc\n", ["a", "c", "b"], r"data\.classes=\['a', 'c', 'b'\] differs from .*classes\.txt"),
        ("a\nb\na\n", None, r"classes\.txt has the class 'a' twice"),
        ("a\n", None, r"classes\.txt has 1 classes: 2 to 254"),
        ("\n \n", None, r"classes\.txt lists no records"),
        (None, ["a", "a"], r"data\.classes has the class 'a' twice"),
    ],
)
def test_class_lists_that_do_not_work(tmp_path, content, given, message):
    root = layouts.folder(tmp_path, classes=content)
    with pytest.raises(UserError, match=message):
        opened(root, **({"classes": given} if given else {}))


def test_flip_pairs_and_parts_name_classes(tmp_path):
    root = layouts.folder(tmp_path)
    data = opened(root, flip_pairs=[["left", "right"]], parts={"sides": ["left", "right"]})
    assert data.flip_pairs == ((1, 2),)
    assert data.parts == {"sides": ("left", "right")}
    with pytest.raises(UserError, match=r"data\.flip_pairs names 'rigth'.*did you mean 'right'"):
        opened(root, flip_pairs=[["left", "rigth"]])
    with pytest.raises(UserError, match=r"data\.parts names 'nose'"):
        opened(root, parts={"nose": ["nose"]})
    with pytest.raises(UserError, match=r"data\.parts names the class 'left' twice"):
        opened(root, parts={"one": ["left"], "two": ["left", "right"]})


def test_kinds_of_masks(tmp_path):
    root = layouts.folder(tmp_path, ("grey", "palette", "wide", "bits"))
    ids = np.arange(48).reshape(6, 8) % 3
    palette = Image.fromarray(ids.astype(np.uint8))
    palette.putpalette([10, 20, 30, 200, 0, 0, 0, 200, 0])
    palette.save(root / "masks/palette.png")
    layouts.save(root / "masks/grey.png", ids)
    Image.fromarray(ids.astype(np.uint16)).save(root / "masks/wide.png")
    Image.fromarray(ids == 1).save(root / "masks/bits.png")
    (root / "train.txt").write_text("grey\npalette\nwide\nbits\n")
    records = opened(root).records("train", False)
    for i in range(3):
        assert np.array_equal(records[i]["mask"], ids)
    assert np.array_equal(records[3]["mask"], ids == 1)


def test_ignore_index_becomes_255(tmp_path):
    root = layouts.folder(tmp_path, ("a",))
    (root / "train.txt").write_text("a\n")
    layouts.save(root / "masks/a.png", [[0, 1, 2, 9, 255, 0, 0, 0]] * 6)
    (fault,) = opened(root).check("train")
    assert "label id 9, valid are 0 … 2 and 255 (ignore)" in fault
    mask = opened(root, ignore_index=9).records("train", False)[0]["mask"]
    assert mask[0].tolist() == [0, 1, 2, 255, 255, 0, 0, 0]
    layouts.save(root / "masks/a.png", [[0, 1, 2, 1, 0, 0, 0, 0]] * 6)
    mask = opened(root, ignore_index=0).records("train", False)[0]["mask"]
    assert mask[0].tolist() == [255, 1, 2, 1, 255, 255, 255, 255]


def test_grey_and_transparent_pictures_become_rgb(tmp_path):
    root = layouts.folder(tmp_path, ("a", "b"))
    layouts.save(root / "images/a.png", np.full((6, 8), 51))
    layouts.save(root / "images/b.png", np.full((6, 8, 4), 102))
    (root / "train.txt").write_text("a\nb\n")
    records = opened(root).records("train", False)
    assert torch.allclose(records[0]["image"], torch.full((3, 6, 8), 0.2))
    assert torch.allclose(records[1]["image"], torch.full((3, 6, 8), 0.4))


def test_photographs_are_turned_upright(tmp_path):
    root = layouts.folder(tmp_path, ("a",))
    (root / "train.txt").write_text("a\n")
    (root / "images/a.png").unlink()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 90 degrees
    Image.new("RGB", (6, 8)).save(root / "images/a.jpg", exif=exif)
    assert opened(root).check("train") == []
    assert opened(root).records("train", False)[0]["image"].shape == (3, 6, 8)
