"""The script of the translation table: what is finished is not run again, and never taken for other settings."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/table_translation.py"


@pytest.fixture
def script() -> Any:
    spec = importlib.util.spec_from_file_location("table_translation", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_finished_is_compared_and_not_run_again(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(script, "_vlp", lambda name, threads, words: called.append(words))
    args = argparse.Namespace(root=tmp_path / "data", out=tmp_path, steps=5, settings=["model.dim=8"], threads=1)
    script.run("sa", 0, args)
    assert [words[0] for words in called] == ["train", "eval"]
    folder = tmp_path / "sa-0"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"data": {"root": str(tmp_path / "data")}}))
    for name, time in (("metrics.json", 100), ("test_2016_flickr.json", 101)):
        (folder / name).write_text("{}")
        os.utime(folder / name, (time, time))
    called.clear()
    script.run("sa", 0, args)
    ((command, *words),) = called
    assert command == "train"  # which refuses other settings of a run that is finished
    assert {"resume=auto", "trainer.steps=5", "model.dim=8"} <= set(words)
    os.utime(folder / "metrics.json", (102, 102))  # it has grown longer
    script.run("sa", 0, args)
    assert [words[0] for words in called[1:]] == ["train", "eval"]
    args.root = tmp_path / "other"
    with pytest.raises(SystemExit, match=r"settings.json has data.root=.*data, not .*other: give that as --root"):
        script.run("sa", 0, args)
    assert len(called) == 3


def test_data_without_the_test_set_is_refused_before_any_run(script: Any, tmp_path: Path) -> None:
    for name in ("train.en", "train.de", "test_2016_flickr.en.gz"):
        (tmp_path / name).touch()
    with pytest.raises(SystemExit, match=r"lacks test_2016_flickr\.de \(or \.gz\)"):
        script._has_test_set(tmp_path)
    (tmp_path / "test_2016_flickr.de").touch()
    script._has_test_set(tmp_path)
