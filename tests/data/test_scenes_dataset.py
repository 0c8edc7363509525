"""Scenes on disk: made once, whole or not at all, whoever asks at the same time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from datasets import are_progress_bars_disabled

from vlplatform.data.scenes import Pictures, ScenesSettings, dataset, load, scene, split_seed
from vlplatform.errors import UserError

SMALL = ScenesSettings(train=12, val=5, test=5, size=48, feature_dim=8)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scenes")


def test_records_are_the_scenes(cache: Path) -> None:
    data = load("train", SMALL, cache)
    assert len(data) == 12
    for index in (0, 7, 11):
        row, s = data[index], scene(split_seed(SMALL, "train"), index, SMALL)
        assert row["id"] == s.id
        assert row["captions"] == list(s.captions)
        assert [t["box"] for t in row["things"]] == [list(b) for b in s.boxes]
        assert [(t["size"], t["shape"]) for t in row["things"]] == [(t.size, t.shape) for t in s.things]
        np.testing.assert_array_equal(np.array(row["features"], np.float32), s.features)
        assert [(e["text"], e["target"]) for e in row["expressions"]] == [(e.text, e.target) for e in s.expressions]
        assert [tuple(q["answers"]) for q in row["questions"]] == [q.answers for q in s.questions]
        assert [(p["vela"], p["toru"]) for p in row["pairs"]] == list(s.pairs)
        assert row["instances"] == s.instances.tobytes()


def test_pictures_are_lossless_also_of_a_selection(cache: Path) -> None:
    data = load("train", SMALL, cache)
    for source, of in ((data, range(12)), (data.select([9, 2, 4]), [9, 2, 4])):
        pictures = Pictures(source, SMALL)
        assert len(pictures) == len(of)
        for position, index in enumerate(of):
            image, labels, name = pictures[position]
            s = scene(split_seed(SMALL, "train"), index, SMALL)
            np.testing.assert_array_equal(image, s.image)
            np.testing.assert_array_equal(labels, s.labels)
            assert name == s.id


def test_splits_differ(cache: Path) -> None:
    ids = [set(load(split, SMALL, cache)["id"]) for split in ("train", "val", "test")]
    assert [len(i) for i in ids] == [12, 5, 5]
    assert not ids[0] & ids[1] | ids[0] & ids[2] | ids[1] & ids[2]


def test_the_cache_is_used_and_keyed_by_settings(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    load("val", SMALL, cache)
    with monkeypatch.context() as patch:
        patch.setattr(dataset, "_build", lambda *_: pytest.fail("made a second time"))
        load("val", SMALL, cache)
        load("val", ScenesSettings(train=99, val=5, test=5, size=48, feature_dim=8), cache)  # another split's count
    before = set(cache.iterdir())
    load("val", ScenesSettings(val=5, size=48, feature_dim=8, noise=3), cache)
    assert len({p for p in set(cache.iterdir()) - before if p.is_dir()}) == 1
    assert capfd.readouterr() == ("", "")
    assert not are_progress_bars_disabled()


def test_default_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLP_CACHE", str(tmp_path))
    load("val", SMALL)
    assert [p.name.split("-")[0] for p in (tmp_path / "scenes").iterdir() if p.is_dir()] == ["val"]


def test_processes_at_once_get_one_whole_copy(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from vlplatform.data.scenes import ScenesSettings, load\n"
        "data = load('train', ScenesSettings(train=150, size=48), Path(sys.argv[1]))\n"
        "print(len(data), data[149]['id'])"
    )
    root = str(Path(dataset.__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(3)
    ]
    assert [p.communicate(timeout=120)[0] for p in running] == ["150 0-149\n"] * 3
    assert [p.returncode for p in running] == [0, 0, 0]
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 1


def test_a_killed_build_is_swept_away(tmp_path: Path) -> None:
    remains = tmp_path / f".{dataset._folder_name('val', SMALL)}.partial" / "whole"
    remains.mkdir(parents=True)
    (remains / "data-00000-of-00001.arrow").write_bytes(b"half")
    assert len(load("val", SMALL, tmp_path)) == 5
    assert not remains.parent.exists()


def test_no_space_left_is_one_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(dataset, "record", full)
    with pytest.raises(UserError, match=r"cannot be written to .*No space left on device.*VLP_CACHE"):
        load("val", SMALL, tmp_path)
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


def test_a_bug_is_not_called_a_users_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "record", lambda s: s.nonsense)
    with pytest.raises(Exception, match="generating") as caught:
        load("val", SMALL, tmp_path)
    assert not isinstance(caught.value, UserError)


def test_a_cache_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        load("val", SMALL, tmp_path / "file" / "scenes")


@pytest.mark.parametrize("name", ["data-00000-of-00001.arrow", "state.json", "dataset_info.json"])
def test_a_damaged_cache_is_named(tmp_path: Path, name: str) -> None:
    load("val", SMALL, tmp_path)
    (folder,) = [p for p in tmp_path.iterdir() if p.is_dir()]
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=rf"{folder.name}.*delete that folder"):
        load("val", SMALL, tmp_path)


def test_an_unknown_split(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no split 'valid': did you mean 'val'"):
        load("valid", SMALL, tmp_path)
