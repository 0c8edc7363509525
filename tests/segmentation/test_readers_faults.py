"""Faulty data: each fault is one sentence that names the file and the remedy, and nothing is skipped."""

from __future__ import annotations

from pathlib import Path

import layouts
import numpy as np
import pytest
from PIL import Image

from vlp_segmentation.readers import open_data
from vlplatform.errors import UserError


@pytest.fixture
def root(tmp_path):
    """Three sound records, all in train.txt."""
    layouts.folder(tmp_path)
    (tmp_path / "train.txt").write_text("a\nb\nc\n")
    return tmp_path


def train(root: Path, **values):
    return open_data("folder", {"root": str(root)} | values).records("train", False)


def refused(message: str):
    return pytest.raises(UserError, match=message)


def test_root(tmp_path):
    for name in ("camvid", "cityscapes", "ade20k", "helen", "lfw_pl", "folder"):
        with refused(r"data\.root must be given: add data\.root=FOLDER, the one that holds"):
            open_data(name, {})
        with refused(r"nowhere is not a folder: give the one that holds"):
            open_data(name, {"root": str(tmp_path / "nowhere")})
        with refused(r"is empty: it must hold"):
            open_data(name, {"root": str(tmp_path)})


def test_a_folder_is_missing(root):
    (root / "masks").rename(root / "labels")
    with refused("masks is missing: data.root must hold images/, masks/ and classes.txt"):
        train(root)


def test_no_pictures(tmp_path):
    layouts.folder(tmp_path, names=())
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
    data = open_data("folder", {"root": str(tmp_path)})
    with refused("images has no pictures: put them there, or correct data.root"):
        data.records("train", False)
    for name in ("cityscapes", "ade20k"):
        with refused("has no pictures"):
            open_data(name, {"root": str(tmp_path)}).records("val", False)


def test_missing_lists(tmp_path):
    (tmp_path / "something").touch()
    lists = {"camvid": "val.txt", "helen": "tuning.txt", "lfw_pl": "parts_validation.txt"}
    for name, listed in lists.items():
        with refused(f"{listed} is missing: put the list"):
            open_data(name, {"root": str(tmp_path)}).records("val", False)


def test_list_without_text(root):
    (root / "train.txt").write_bytes(b"\xff\xfe\x00\x81")
    with refused(r"train\.txt cannot be read as text"):
        train(root)
    (root / "train.txt").write_text("\n\n")
    with refused(r"train\.txt lists no records"):
        train(root)


def test_listed_twice(root):
    (root / "train.txt").write_text("a\nb\na.png\n")
    with refused(r"train\.txt has the record 'a' twice"):
        train(root)


def test_listed_picture_is_missing(root):
    (root / "images/b.png").unlink()
    with refused(r"images/b \(named by .*train\.txt\) is missing"):
        train(root)


@pytest.mark.parametrize("line", ["../a", "/etc/passwd", "sub/../../a", "..\\a", "C:\\a"])
def test_list_leaves_the_root(root, line):
    (root / "train.txt").write_text(line + "\n")
    with refused("which lies outside"):
        train(root)
    (root / "val.txt").write_text(f"{line} a.png\n")
    with refused("which lies outside"):
        open_data("camvid", {"root": str(root)}).records("val", False)


def test_camvid_line_needs_two_names(root):
    with refused(r"train\.txt has the line 'a': write the picture and its label"):
        open_data("camvid", {"root": str(root)}).records("train", False)


def test_camvid_lists_as_their_author_wrote_them(root):
    (root / "train.txt").write_text("/SegNet/CamVid/images/a.png /SegNet/CamVid/masks/a.png\n")
    assert open_data("camvid", {"root": str(root)}).check("train") == []


def test_picture_without_mask(root):
    (root / "masks/b.png").unlink()
    with refused(r"images/b\.png has no mask: .*masks/b\.png is missing"):
        train(root)


def test_jpeg_mask(root):
    (root / "masks/b.png").unlink()
    Image.new("L", (8, 6)).save(root / "masks/b.jpg")
    with refused(r"masks/b\.jpg is a JPEG, .* save it as PNG"):
        train(root)


def test_two_files_of_one_name(root):
    Image.new("RGB", (8, 6)).save(root / "images/a.jpg")
    with refused(r"a\.jpg and a\.png have the same name"):
        train(root)


@pytest.mark.parametrize("part", ["images", "masks"])
@pytest.mark.parametrize("kept", [0, 10, 60, 0.7])
def test_truncated_file(root, part, kept):
    path = root / part / "b.png"
    layouts.save(path, np.random.default_rng(0).integers(0, 3, (60, 80, 3) if part == "images" else (60, 80)))
    content = path.read_bytes()
    path.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    records = train(root)
    assert records[0]["id"] == "a"
    with refused(rf"{part}/b\.png cannot be decoded .*: restore the file"):
        records[1]


def test_damaged_in_the_middle(root):
    path = root / "masks/b.png"
    layouts.save(path, np.random.default_rng(0).integers(0, 3, (60, 80)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with refused(r"masks/b\.png"):
        train(root)[1]


def test_text_instead_of_a_picture(root):
    (root / "images/b.png").write_text("not a picture")
    with refused(r"images/b\.png cannot be decoded"):
        train(root)[1]


def test_sizes_differ(root):
    layouts.save(root / "masks/b.png", np.zeros((6, 9)))
    with refused(r"masks/b\.png is 9 × 6 but its picture .*images/b\.png is 8 × 6: save both at the same size"):
        train(root)[1]


@pytest.mark.parametrize("label", [3, 254, 300])
def test_label_out_of_range(root, label):
    mask = np.zeros((6, 8), dtype=np.uint16 if label > 255 else np.uint8)
    mask[4, 5] = label
    Image.fromarray(mask).save(root / "masks/b.png")
    with refused(rf"masks/b\.png has the label id {label}, valid are 0 … 2 and 255 \(ignore\): correct"):
        train(root)[1]


@pytest.mark.parametrize("channels", [3, 4])
def test_colour_mask(root, channels):
    layouts.save(root / "masks/b.png", np.zeros((6, 8, channels)))
    with refused(r"masks/b\.png is a colour picture .*: save class ids as an 8-bit grey or palette PNG"):
        train(root)[1]


def test_file_vanishes_after_opening(root):
    records = train(root)
    (root / "images/c.png").unlink()
    with refused(r"images/c\.png is missing: restore the file"):
        records[2]


def test_check_reports_every_faulty_record(root):
    (root / "images/a.png").write_text("")
    layouts.save(root / "masks/c.png", np.full((6, 8), 7))
    faults = open_data("folder", {"root": str(root)}).check("train")
    assert len(faults) == 2
    assert "images/a.png" in faults[0]
    assert "label id 7" in faults[1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scale": "half"}, r"data\.scale='half' has the wrong type: expected real number"),
        ({"scale": -1.0}, r"data: scale=-1.0 must lie in"),
        ({"cache": 1}, r"data\.cache=1 has the wrong type"),
        ({"val_fraction": 1.0}, r"val_fraction=1.0"),
        ({"ignore_index": 256}, r"ignore_index=256"),
        ({"augment": {"crop": [32]}}, r"data\.augment\.crop"),
        ({"augment": {"scale_range": [2, 1]}}, r"data\.augment: scale_range"),
        ({"classes": "a,b"}, r"data\.classes='a,b' has the wrong type"),
    ],
)
def test_wrong_settings(root, values, message):
    with refused(message):
        train(root, **values)


def test_every_fault_is_one_sentence(root):
    (root / "images/a.png").write_text("")
    layouts.save(root / "masks/b.png", np.zeros((6, 9)))
    layouts.save(root / "masks/c.png", np.full((6, 8), 7))
    for fault in open_data("folder", {"root": str(root)}).check("train"):
        assert "\n" not in fault
        assert fault.endswith(".")
        assert str(root) in fault
