"""The feature files that people hold: each format as its authors write it, recognised, read, refused when damaged."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vlp_captioning.readers import open_data
from vlp_captioning.readers.features import open_features
from vlplatform.data.shards import INDEX, Record, ShardWriter
from vlplatform.errors import UserError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLP_CACHE", str(tmp_path / ".cache"))


def refused(message: str):
    return pytest.raises(UserError, match=message)


def regions(count: int, width: int = 5) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return RNG.random((count, width)).astype(np.float32), (RNG.random((count, 4)) * 99).astype(np.float32)


def line(key: object, boxes: np.ndarray[Any, Any], features: np.ndarray[Any, Any]) -> bytes:
    encoded = [base64.b64encode(array.tobytes()).decode() for array in (boxes, features)]
    return "\t".join([str(key), "640", "480", str(len(boxes)), *encoded]).encode() + b"\n"


# Bottom-up TSV


def test_tsv(tmp_path):
    made = {str(key): regions(count) for key, count in ((391895, 3), (7, 1), (42, 36))}
    file = tmp_path / "trainval.tsv"
    file.write_bytes(b"".join(line(key, boxes, vectors) for key, (vectors, boxes) in made.items()))
    found = open_features(file)
    assert found.found == "bottom-up TSV, 3 pictures, 5 values a region"
    assert len(found) == 3
    for key in ("42", "391895", "7"):
        assert key in found
        seen = found.features(key)
        assert seen.features is not None
        assert seen.boxes is not None
        assert np.array_equal(seen.features.numpy(), made[key][0])
        assert np.array_equal(seen.boxes.numpy(), made[key][1])
        assert (seen.size, seen.grid) == ((640, 480), None)
    assert "8" not in found
    with refused("has no features of '8'"):
        found.features("8")
    again = open_features(file)  # by the index that the first one left
    assert list((tmp_path / ".cache/tsv").glob("*.json"))
    assert torch.equal(_features(again, "7"), _features(pickle.loads(pickle.dumps(found)), "7"))


def _features(found: Any, key: str) -> torch.Tensor:
    features = found.features(key).features
    assert features is not None
    return features


def test_tsv_of_lxmert(tmp_path):
    made = {f"COCO_val2014_{key:012d}": regions(count) for key, count in ((391895, 3), (7, 2))}

    def lxmert(key: str) -> bytes:
        vectors, boxes = made[key]
        ids, sure = np.arange(len(boxes)), np.ones(len(boxes), np.float32)
        first = [base64.b64encode(array.tobytes()).decode() for array in (ids, sure, ids, sure)]
        last = [base64.b64encode(array.tobytes()).decode() for array in (boxes, vectors)]
        return "\t".join([key, "480", "640", *first, str(len(boxes)), *last]).encode() + b"\n"  # height goes first

    file = tmp_path / "val2014_obj36.tsv"
    file.write_bytes(b"".join(map(lxmert, made)))
    found = open_features(file)
    assert found.found == "LXMERT TSV, 2 pictures, 5 values a region"
    for key, (vectors, boxes) in made.items():
        seen = found.features(key)
        assert seen.features is not None
        assert seen.boxes is not None
        assert np.array_equal(seen.features.numpy(), vectors)
        assert np.array_equal(seen.boxes.numpy(), boxes)
        assert (seen.size, seen.grid) == ((640, 480), None)
    vectors, boxes = regions(2)
    file.write_bytes(lxmert(next(iter(made))) + line(2, boxes, vectors))
    with refused(
        r"line 2 \(image_id 2\), has 6 columns where there must be img_id, img_h, .*features: the file is cut"
    ):
        open_features(file)


def test_several_tsv_files(tmp_path):
    folder = tmp_path / "up_down"
    folder.mkdir()
    (first, boxes), (second, _) = regions(2), regions(2)
    (folder / "train.tsv.0").write_bytes(line(1, boxes, first) + line(2, boxes, first))
    (folder / "train.tsv.1").write_bytes(line(2, boxes, second) + line(3, boxes, second))
    found = open_features(folder)
    assert (
        found.found == "bottom-up TSV, 3 pictures, 5 values a region, lines of pictures that came before left aside: 1"
    )
    assert np.array_equal(_features(found, "2").numpy(), first)
    assert np.array_equal(_features(found, "3").numpy(), second)


def test_damaged_tsv(tmp_path):
    vectors, boxes = regions(3)
    whole, file = line(1, boxes, vectors), tmp_path / "x.tsv"
    file.write_bytes(whole + whole.replace(b"1\t", b"2\t", 1)[:-9])
    with refused(r"x.tsv, image_id 2, cannot be decoded .*copy the file again"):
        open_features(file).features("2")
    file.write_bytes(whole + b"2\t640\t480\t3")
    with refused(r"x.tsv, line 2 \(image_id 2\), has 4 columns where there must be image_id, image_w"):
        open_features(file)
    columns = whole.split(b"\t")
    file.write_bytes(whole + b"\t".join([b"2", *columns[1:3], b"4", *columns[4:]]))
    with refused(r"image_id 2, cannot be decoded"):
        open_features(file).features("2")
    file.write_bytes(whole + b"\t".join([b"2", *columns[1:5], b"!!!!\n"]))
    with refused(r"image_id 2, cannot be decoded"):
        open_features(file).features("2")
    vectors[1, 1] = np.nan
    file.write_bytes(line(5, boxes, vectors))
    with refused(r"x.tsv, image_id 5, has values that are no finite numbers"):
        open_features(file).features("5")
    found = open_features(file)
    file.write_bytes(b"9" * 4000)
    with refused(r"x.tsv has changed since it was opened"):
        found.features("5")


# Folders of numpy files


def test_npz_of_bottom_up(tmp_path):
    vectors, boxes = regions(4)
    np.savez(tmp_path / "9.npz", feat=vectors, bbox=boxes, info=np.array([{"a": 1}], dtype=object))
    np.savez_compressed(tmp_path / "10.npz", x=vectors.T, bbox=boxes, image_w=640, image_h=np.array(480))
    np.savez(tmp_path / "11.npz", features=vectors.astype(np.float16), boxes=boxes)
    np.savez(tmp_path / "12.npz", feat=vectors.reshape(2, 2, 5))
    found = open_features(tmp_path)
    assert (found.found, len(found)) == ("folder of 4 .npz files", 4)
    for key in ("9", "10"):
        assert np.array_equal(_features(found, key).numpy(), vectors)
        seen = found.features(key).boxes
        assert seen is not None
        assert np.array_equal(seen.numpy(), boxes)
    assert (found.features("9").size, found.features("10").size) == (None, (640, 480))
    assert _features(found, "11").dtype == torch.float32
    assert found.features("12").grid == (2, 2)
    assert np.array_equal(_features(found, "12").numpy(), vectors)


def test_npy(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "val").mkdir()
    vectors = RNG.random((6, 5))
    np.save(tmp_path / "train/a.npy", vectors)
    np.save(tmp_path / "val/b.npy", vectors.reshape(1, 2, 3, 5))
    np.save(tmp_path / "val/a.npy", vectors[:0])
    found = open_features(tmp_path)
    assert len(found) == 3
    assert "a" not in found  # two files are called so
    assert np.array_equal(_features(found, "train/a").numpy(), vectors.astype(np.float32))
    assert found.features("b").grid == (2, 3)
    assert _features(found, "val/a").shape == (0, 5)


def test_damaged_numpy_files(tmp_path):
    vectors, boxes = regions(4)
    np.savez(tmp_path / "a.npz", feat=vectors, bbox=boxes)
    np.savez(tmp_path / "b.npz", feature=vectors)
    np.savez(tmp_path / "c.npz", feat=vectors, bbox=boxes[:2])
    np.savez(tmp_path / "d.npz", feat=np.array([{"a": 1}], dtype=object))
    np.savez(tmp_path / "e.npz", feat=vectors[0])
    np.savez(tmp_path / "f.npz", feat=np.ones((8, 2, 2)))
    np.savez(tmp_path / "g.npz", feat=np.array(["text"]))
    data = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(data[: len(data) // 2])
    found = open_features(tmp_path)
    for key, message in (
        ("a", r"a.npz cannot be read"),
        ("b", r"b.npz holds feature: its features must be called feat or x or features"),
        ("c", r"c.npz has boxes of shape \(2, 4\)"),
        ("d", r"d.npz cannot be read .*allow_pickle"),
        ("e", r"e.npz has shape \(5,\) where \(N, F\) is expected"),
        ("f", r"f.npz has shape \(8, 2, 2\), channels first"),
        ("g", r"g.npz holds <U4, not numbers"),
        ("h", r"has no features of 'h': add the file"),
    ):
        with refused(message):
            found.features(key)


def test_a_pickle_is_never_opened(tmp_path):
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "opened",))

    np.save(tmp_path / "a.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Evil()))
    found = open_features(tmp_path)
    for key in "ab":
        with refused("cannot be read"):
            found.features(key)
    assert not (tmp_path / "opened").exists()


# HDF5


def hdf5(path: Path, **arrays: Any) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def test_hdf5_of_m2(tmp_path):
    vectors, boxes = regions(4)
    path = hdf5(
        tmp_path / "m2.hdf5", **{"7_features": vectors, "7_boxes": boxes, "7_cls_prob": boxes, "8_features": vectors}
    )
    found = open_features(path)
    assert (found.found, len(found)) == ("HDF5, regions of 2 pictures", 2)
    assert np.array_equal(_features(found, "7").numpy(), vectors)
    seen = found.features("7").boxes
    assert seen is not None
    assert np.array_equal(seen.numpy(), boxes)
    assert found.features("8").boxes is None
    assert torch.equal(_features(pickle.loads(pickle.dumps(found)), "7"), _features(found, "7"))
    with refused("has no regions of '9'"):
        found.features("9")
    with refused("has no grid: set data.feature_kind=regions"):
        open_features(path, "grid")


def test_hdf5_with_grids(tmp_path):
    cells, (vectors, boxes) = RNG.random((49, 5)).astype(np.float32), regions(4)
    path = hdf5(tmp_path / "grids.hdf5", **{"7_grids": cells})
    found = open_features(path)
    assert (found.found, found.features("7").grid) == ("HDF5, grids of 1 pictures", (7, 7))
    assert np.array_equal(_features(found, "7").numpy(), cells)
    both = hdf5(
        tmp_path / "both.hdf5",
        **{
            "7_grids": cells,
            "7_features": vectors,
            "7_boxes": boxes,
            "7_size": np.array([[640, 480]]),
            "9_grids": cells[:48],
        },
    )
    with refused(r"both.hdf5 has regions and grids: choose with data.feature_kind=regions or grid"):
        open_features(both)
    assert open_features(both, "grid").features("7").size == (640, 480)
    assert open_features(both, "regions").features("7").size == (640, 480)
    with refused(r"both.hdf5, 9_grids, has 48 vectors for a grid of 6 × 6"):
        open_features(both, "grid").features("9")


def test_damaged_hdf5(tmp_path):
    path = hdf5(tmp_path / "m2.hdf5", **{f"{i}_features": np.ones((50, 40), np.float32) for i in range(4)})
    path.write_bytes(path.read_bytes()[:4000])
    with refused(r"m2.hdf5 cannot be opened .*cut off or damaged; copy it again"):
        open_features(path)
    with refused(r"other.hdf5 holds images where ID_features or ID_grids is expected"):
        open_features(hdf5(tmp_path / "other.hdf5", images=np.ones(3)))


def test_without_h5py(tmp_path, monkeypatch):
    path = hdf5(tmp_path / "m2.hdf5", **{"7_features": np.ones((2, 3))})
    monkeypatch.setitem(sys.modules, "h5py", None)
    with refused(r"m2.hdf5 is HDF5, which needs h5py: pip install h5py"):
        open_features(path)


# Shards, and what is none of these


def test_shards(tmp_path):
    with ShardWriter(tmp_path / "out", {"backbone": "resnet18"}) as writer:
        writer.add("a.jpg", Record(torch.ones(4, 3), grid=(2, 2), size=(64, 48), words=("red", "dog")))
        writer.add("b.jpg", Record(torch.ones(1, 3), boxes=torch.ones(1, 4)))
        writer.finish()
    found = open_features(tmp_path / "out")
    assert found.found == "shards of vlp prepare, 2 pictures, resnet18"
    seen = found.features("a.jpg")
    assert (seen.grid, seen.size, seen.boxes, seen.attributes) == ((2, 2), (64, 48), None, ("red", "dog"))
    assert found.features("b.jpg").boxes is not None


def test_what_is_no_feature_file(tmp_path):
    with refused(r"nowhere do not exist: give the output of vlp prepare features, a bottom-up or LXMERT TSV"):
        open_features(tmp_path / "nowhere")
    with refused(r"it holds no features"):
        open_features(tmp_path)
    np.save(tmp_path / "a.npy", np.ones(3))
    with refused(r"a.npy cannot be used \(one file is not a data set\)"):
        open_features(tmp_path / "a.npy")
    np.savez(tmp_path / "b.npz", np.ones(3))
    with refused(r"it holds .npz and .npy files"):
        open_features(tmp_path)
    (tmp_path / "c.pkl").write_bytes(pickle.dumps({"a": 1}))
    with refused(r"c.pkl cannot be used .*pickled files are never opened"):
        open_features(tmp_path / "c.pkl")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / INDEX).write_text("{}")
    with refused("cannot be read as an index of shards"):
        open_features(tmp_path / "out")


# Through a reader


def test_a_reader_finds_what_the_features_are_called_by(tmp_path):
    (tmp_path / "feats").mkdir()
    rows = [{"id": 100 + i, "file_name": f"COCO_val2014_{100 + i:012d}.jpg"} for i in range(3)]
    (tmp_path / "captions_train.json").write_text(json.dumps({"images": rows, "annotations": []}))
    values = {"root": str(tmp_path), "val": None, "features": "feats"}
    for row in rows:
        np.save(tmp_path / "feats" / f"{row['id']}.npy", np.full((2, 3), row["id"]))
    data = open_data("coco", values)
    assert "features: folder of 3 .npy files; found by image id" in data.notes
    assert [float(data.visual(item).features[0, 0]) for item in data.items("train")] == [100, 101, 102]  # pyright: ignore
    assert data.picture(data.items("train")[0]) is None
    for row in rows:
        (tmp_path / "feats" / f"{row['id']}.npy").rename(tmp_path / "feats" / f"{row['file_name'][:-4]}.npy")
    data = open_data("coco", values)
    assert any("found by file name without its suffix" in note for note in data.notes)
    assert [float(data.visual(item).features[0, 0]) for item in data.items("train")] == [100, 101, 102]  # pyright: ignore
    next((tmp_path / "feats").glob("*101.npy")).unlink()
    with refused(
        r"1 of the 3 items of 'train' has no features in .*feats \(the first is images/COCO_val2014_000000000101"
    ):
        open_data("coco", values)
    for path in (tmp_path / "feats").iterdir():
        path.rename(path.with_name(f"x{path.name}"))
    with refused(r"feats has none of the data's pictures \(it calls its first one 'xCOCO.*would be '100', "):
        open_data("coco", values)


def test_boxes_apart_from_the_features(tmp_path):
    rows = [{"id": 100 + i, "file_name": f"COCO_val2014_{100 + i:012d}.jpg"} for i in range(2)]
    (tmp_path / "captions_train.json").write_text(json.dumps({"images": rows, "annotations": []}))
    values = {"root": str(tmp_path), "val": None, "features": "cocobu_att", "boxes": "cocobu_box"}
    made = [regions(count) for count in (3, 2)]
    for folder in ("cocobu_att", "cocobu_box"):
        (tmp_path / folder).mkdir()
    with refused(r"data\.boxes=.*cocobu_box is no folder with \.npy or \.npz files"):
        np.savez(tmp_path / "cocobu_att/100.npz", feat=made[0][0])
        open_data("coco", {**values, "missing": "drop"})
    for row, (vectors, boxes) in zip(rows, made):
        np.savez(tmp_path / f"cocobu_att/{row['id']}.npz", feat=vectors)
        np.save(tmp_path / f"cocobu_box/{row['id']}.npy", boxes)
    data = open_data("coco", values)
    for item, (vectors, boxes) in zip(data.items("train"), made):
        seen = data.visual(item)
        assert seen.features is not None
        assert seen.boxes is not None
        assert np.array_equal(seen.features.numpy(), vectors)
        assert np.array_equal(seen.boxes.numpy(), boxes)
    first = data.items("train")[0]
    np.save(tmp_path / "cocobu_box/100.npy", made[1][1])
    with refused(r"cocobu_box/100.npy has boxes of shape \(2, 4\) .* for 3 vectors"):
        data.visual(first)
    np.save(tmp_path / "cocobu_box/100.npy", made[0][0])
    with refused(r"100.npy holds an array of shape \(3, 5\) where boxes \(N, 4\) are expected"):
        data.visual(first)
    np.savez(tmp_path / "cocobu_att/100.npz", feat=made[0][0], bbox=made[0][1])
    with refused(r"the features of 100 have boxes of their own: leave out data\.boxes=cocobu_box"):
        data.visual(first)
    (tmp_path / "cocobu_box/100.npy").unlink()
    with refused(
        r"1 of the 2 items of 'train' has no features in .*cocobu_att or no boxes in .*cocobu_box \(the first"
    ):
        open_data("coco", values)
    with refused(r"boxes=cocobu_box are the boxes of features: name these, too"):
        open_data("coco", {**values, "features": None})


def test_an_opened_file_survives_a_fork(tmp_path):
    hdf5(tmp_path / "m2.hdf5", **{f"{i}_features": np.full((2, 3), i, np.float32) for i in range(8)})
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from torch.utils.data import DataLoader\n"
        "from vlp_captioning.readers.features import open_features\n"
        "found = open_features(Path(sys.argv[1]))\n"
        "found.features('0')\n"
        "class Records:\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): return found.features(str(i)).features\n"
        "print([int(x[0, 0, 0]) for x in DataLoader(Records(), num_workers=2)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m2.hdf5")], capture_output=True, text=True)
    assert done.stdout.strip() == str(list(range(8))), done.stderr
