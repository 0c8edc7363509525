"""HELEN and LFW-PL in their published layouts, on tiny pictures."""

from __future__ import annotations

import layouts
import numpy as np
import pytest
from PIL import Image

from vlp_segmentation.readers import open_data
from vlplatform.errors import UserError


def test_helen_soft_maps_become_the_strongest_class(tmp_path):
    data = open_data("helen", {"root": str(layouts.helen(tmp_path))})
    ids = {split: data.records(split, False)[0]["id"] for split in ("train", "val", "test")}
    assert ids == {"train": "one_1", "val": "two_1", "test": "three_1"}
    assert data.records("train", False)[0]["mask"].tolist() == [[8, 9, 10, 3, 4, 5, 6, 7]] * 6


def test_helen_ties_and_empty_maps_go_to_the_first_class(tmp_path):
    root = layouts.helen(tmp_path)
    for i in range(11):
        layouts.save(root / f"labels/one_1/one_1_lbl{i:02d}.png", np.zeros((6, 8)))
    for i in (4, 6):
        layouts.save(root / f"labels/one_1/one_1_lbl{i:02d}.png", [[9] * 8] + [[0] * 8] * 5)
    mask = open_data("helen", {"root": str(root)}).records("train", False)[0]["mask"]
    assert mask.tolist() == [[4] * 8] + [[0] * 8] * 5


def test_helen_as_single_masks(tmp_path):
    data = open_data("helen", {"root": str(layouts.helen(tmp_path, soft=False))})
    assert data.records("test", False)[0]["mask"].flatten().tolist() == [i % 11 for i in range(48)]


def test_helen_parts_and_pairs_name_classes():
    from vlp_segmentation.readers import helen

    assert {name for group in helen._PARTS.values() for name in group} == set(helen._CLASSES) - {
        "background",
        "skin",
        "hair",
    }


def test_helen_flip_pairs(tmp_path):
    data = open_data("helen", {"root": str(layouts.helen(tmp_path))})
    swapped = [(data.classes[a], data.classes[b]) for a, b in data.flip_pairs]
    assert swapped == [("left brow", "right brow"), ("left eye", "right eye")]


def test_helen_incomplete_maps(tmp_path):
    root = layouts.helen(tmp_path)
    (root / "labels/one_1/one_1_lbl07.png").unlink()
    layouts.save(root / "labels/two_1/two_1_lbl03.png", np.zeros((5, 8)))
    data = open_data("helen", {"root": str(root)})
    assert "one_1_lbl07.png is missing" in data.check("train")[0]
    assert "two_1_lbl03.png differs in size" in data.check("val")[0]


def test_lfw_colours_and_lists(tmp_path):
    root = str(layouts.lfw(tmp_path))
    data = open_data("lfw_pl", {"root": root})
    assert {split: data.records(split, False)[0]["id"] for split in data.splits} == {
        "train": "Ann_Lee_0001",
        "val": "Ann_Lee_0012",
        "test": "Bo_0003",
    }
    first = data.records("train", False)[0]["mask"].flatten()[:3].tolist()
    assert [data.classes[i] for i in first] == ["hair", "skin", "background"]
    assert len(open_data("lfw_pl", {"root": root, "train_on": "train_val"}).records("train", False)) == 2


def test_lfw_unknown_colour(tmp_path):
    root = layouts.lfw(tmp_path)
    mask = root / "parts_lfw_funneled_gt_images/Bo_0003.ppm"
    pixels = np.array(Image.open(mask))
    pixels[2, 3] = 1, 2, 3
    layouts.save(mask, pixels)
    (fault,) = open_data("lfw_pl", {"root": str(root)}).check("test")
    assert "Bo_0003.ppm has the colour (1, 2, 3)" in fault


def test_lfw_malformed_line(tmp_path):
    root = layouts.lfw(tmp_path)
    (root / "parts_test.txt").write_text("Bo\n")
    with pytest.raises(UserError, match=r"parts_test.txt has the line 'Bo'"):
        open_data("lfw_pl", {"root": str(root)}).records("test", False)
