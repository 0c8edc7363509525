"""Shards: what goes in comes out; a kill loses at most the shard being filled; damage is named."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from vlplatform.data.shards import INDEX, Record, Shards, ShardWriter
from vlplatform.errors import UserError

SETTINGS = {"backbone": "resnet18", "size": [224, 224]}


def record(number: int, width: int = 6) -> Record:
    """A different record for each number: none, one or more vectors; with boxes, a grid, or neither."""
    torch.manual_seed(number)
    count = number % 4
    features = torch.randn(count, width)
    if number % 3 == 0:
        return Record(features, boxes=torch.rand(count, 4), scores=torch.rand(count), size=(640, 480))
    if number % 3 == 1:
        return Record(features, grid=(1, count), words=("ein Hund", "rot"))
    return Record(features)


def write(folder: Path, numbers: range, finish: bool = True, **values) -> None:
    with ShardWriter(folder, SETTINGS, records=4, **values) as writer:
        for number in numbers:
            if f"p/{number}.jpg" not in writer.done:
                writer.add(f"p/{number}.jpg", record(number))
        if finish:
            writer.finish()


def same(a: Record, b: Record) -> bool:
    def equal(x, y):
        return x is y is None or (x is not None and y is not None and torch.equal(x, y))

    tensors = all(equal(getattr(a, n), getattr(b, n)) for n in ("features", "boxes", "scores"))
    return tensors and (a.grid, a.size, a.words) == (b.grid, b.size, b.words)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}


def test_round_trip(tmp_path):
    write(tmp_path / "out", range(10))
    shards = Shards(tmp_path / "out")
    assert list(shards) == [f"p/{i}.jpg" for i in range(10)]
    assert len(shards) == 10
    assert all(same(shards[f"p/{i}.jpg"], record(i)) for i in (9, 0, 3, *range(10)))
    assert shards.settings == SETTINGS
    assert shards.verify() == []
    assert "p/3.jpg" in shards
    assert "p/33.jpg" not in shards
    assert same(pickle.loads(pickle.dumps(shards))["p/5.jpg"], record(5))
    with pytest.raises(UserError, match=r"out has no record 'x'"):
        shards["x"]


def test_half_precision(tmp_path):
    write(tmp_path, range(5), dtype="float16")
    got = Shards(tmp_path)["p/3.jpg"]
    assert got.features.dtype == torch.float32
    assert torch.equal(got.features, record(3).features.half().float())
    assert same(Record(torch.ones(1), boxes=got.boxes), Record(torch.ones(1), boxes=record(3).boxes))
    too_large = pytest.raises(UserError, match=r"features of a are too large for float16: use dtype=float32")
    with ShardWriter(tmp_path / "large", SETTINGS, dtype="float16") as writer, too_large:
        writer.add("a", Record(torch.full((1, 2), 1e5)))


def test_continued_runs_write_the_same_bytes(tmp_path):
    write(tmp_path / "whole", range(10))
    write(tmp_path / "broken", range(7), finish=False)  # the second shard was never filled
    assert sorted(contents(tmp_path / "broken")) == [INDEX, "shard-00000.safetensors"]
    with pytest.raises(UserError, match="is unfinished: run the same vlp prepare again"):
        Shards(tmp_path / "broken")
    write(tmp_path / "broken", range(10))
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    write(tmp_path / "broken", range(10))  # nothing left to do
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


def test_killed_between_shard_and_index(tmp_path):
    write(tmp_path / "whole", range(10))
    write(tmp_path / "broken", range(10))
    path = tmp_path / "broken" / INDEX
    index = json.loads(path.read_text())
    path.write_text(json.dumps({**index, "shards": index["shards"][:1], "complete": False}))
    (tmp_path / "broken" / ".tmp-shard-00003.safetensors").write_bytes(b"half")
    with ShardWriter(tmp_path / "broken", SETTINGS, records=4) as writer:
        assert len(writer.done) == 10
    assert not (tmp_path / "broken" / ".tmp-shard-00003.safetensors").exists()
    write(tmp_path / "broken", range(10))
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["cut", "gone", "no header"])
def test_a_damaged_shard_is_made_anew(tmp_path, damage):
    write(tmp_path / "whole", range(12))
    write(tmp_path / "hurt", range(12))
    shard = tmp_path / "hurt/shard-00001.safetensors"
    data = shard.read_bytes()
    if damage == "gone":
        shard.unlink()
    else:
        shard.write_bytes(data[:-7] if damage == "cut" else data[:5])
    with pytest.raises(
        UserError, match=r"shard-00001.safetensors is missing or cut off: run the same vlp prepare again"
    ):
        Shards(tmp_path / "hurt")
    write(tmp_path / "hurt", range(12))
    assert contents(tmp_path / "hurt") == contents(tmp_path / "whole")


def test_flipped_bits_are_found(tmp_path):
    write(tmp_path, range(8))
    shard = tmp_path / "shard-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[-3] ^= 64
    shard.write_bytes(data)
    assert [fault.split(" is damaged")[0] for fault in Shards(tmp_path).verify()] == [str(shard)]


def test_a_kill_at_any_moment(tmp_path):
    """SIGKILL while shards are written; another run finishes the same folder."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from test_shards import SETTINGS, record\n"
        "from vlplatform.data.shards import ShardWriter\n"
        "with ShardWriter(Path(sys.argv[2]), SETTINGS, records=4) as writer:\n"
        "    print('ready', flush=True)\n"
        "    for number in range(60):\n"
        "        if f'p/{number}.jpg' not in writer.done:\n"
        "            writer.add(f'p/{number}.jpg', record(number)); time.sleep(0.002)\n"
        "    writer.finish()\n"
    )
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path / "out")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    write(tmp_path / "out", range(60))
    write(tmp_path / "whole", range(60))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_refusals(tmp_path):
    write(tmp_path / "out", range(3))
    with pytest.raises(
        UserError, match=r"out was written with backbone=resnet18, not resnet50: give the same settings"
    ):
        ShardWriter(tmp_path / "out", SETTINGS | {"backbone": "resnet50"})
    with pytest.raises(UserError, match=r"out was written with dtype=float32, not float16"):
        ShardWriter(tmp_path / "out", SETTINGS, dtype="float16")
    with ShardWriter(tmp_path / "out", SETTINGS) as writer:
        with pytest.raises(UserError, match=r"out is being written by another run"):
            ShardWriter(tmp_path / "out", SETTINGS)
        for bad in (torch.ones(6), torch.ones(2, 7)):
            with pytest.raises(ValueError, match="is expected"):
                writer.add("new", Record(bad))
        with pytest.raises(ValueError, match="boxes of shape"):
            writer.add("new", Record(torch.ones(2, 6), boxes=torch.ones(3, 4)))
        with pytest.raises(ValueError, match="is there already"):
            writer.add("p/1.jpg", record(1))
        with pytest.raises(ValueError, match="for a grid of"):
            writer.add("new", Record(torch.ones(2, 6), grid=(2, 2)))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/photo.jpg").touch()
    with pytest.raises(UserError, match=r"mine holds other files \(photo.jpg\): name a new or empty folder"):
        ShardWriter(tmp_path / "mine", SETTINGS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as an index of shards"),
        ('{"format": "x"}', "has the format x, not vlplatform.shards.1"),
        ('{"format": "vlplatform.shards.1"}', "cannot be read as an index"),
    ],
)
def test_faulty_index(tmp_path, text, message):
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(UserError, match=message):
        Shards(tmp_path)


def test_an_index_cannot_name_files_elsewhere(tmp_path):
    write(tmp_path / "out", range(3))
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    index["shards"][0]["file"] = "../other.safetensors"
    (tmp_path / "out" / INDEX).write_text(json.dumps(index))
    with pytest.raises(UserError, match="which is no plain file name"):
        Shards(tmp_path / "out")
