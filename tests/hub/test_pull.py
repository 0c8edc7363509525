"""Pulling over HTTP: what arrives, what is refused, and what faults of network and hub lead to."""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants
from server import Hub, Repository, cut, garbled, page, reset, status
from torch import Tensor

import vlplatform
from vlplatform.hub import pull

Refused = Callable[..., str]
WEIGHTS_GET = r"GET /org/toy/resolve/.*/model.safetensors"


def whole_files(cache: Path) -> list[str]:
    """Names of model files that someone could take for whole ones."""
    return sorted(p.name for p in cache.rglob("*") if p.suffix in (".json", ".safetensors", ".md") and p.exists())


def test_pull_fetches_three_files_and_load_gives_the_same_outputs(hub, published, model, x: Tensor):
    hub.repositories["org/toy"].commit({".gitattributes": b"", "notes.txt": b"not needed"})
    folder = pull("org/toy")
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == published
    loaded = vlplatform.load("org/toy")
    assert not loaded.training
    assert (loaded(x) == model(x)).all()
    assert hub.count(WEIGHTS_GET) == 1  # the second time it was cached


def test_revisions_by_tag_argument_and_commit(hub: Hub, published, model, tmp_path, refused: Refused):
    old = hub.repositories["org/toy"].refs["main"]
    hub.repositories["org/toy"].refs["v1"] = old
    hub.repositories["org/toy"].commit({"README.md": b"newer"})
    assert (pull("org/toy") / "README.md").read_bytes() == b"newer"
    for folder in (pull("org/toy@v1"), pull("org/toy", revision="v1"), pull(f"org/toy@{old}")):
        assert (folder / "README.md").read_bytes() == published["README.md"]
        assert folder.name == old
    assert "no revision 'v2'" in refused(pull, "org/toy@v2")
    assert "two revisions" in refused(pull, "org/toy@v1", revision="v2")


def test_offline_uses_what_was_pulled_and_asks_nobody(hub: Hub, published, monkeypatch, refused: Refused):
    folder = pull("org/toy")
    asked = len(hub.asked)
    assert pull("org/toy", offline=True) == folder
    assert pull(f"org/toy@{folder.name}", offline=True) == folder
    assert vlplatform.load("org/toy", offline=True).loaded_config["task"] == "toy"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert pull("org/toy") == folder
    assert "not in the cache" in refused(pull, "org/other")
    assert "vlp pull org/toy@v9" in refused(pull, "org/toy@v9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refused(pull, "org/toy", offline=False)
    assert len(hub.asked) == asked


def test_a_damaged_cache_is_noticed_offline_and_healed_online(hub: Hub, published, refused: Refused):
    weights = (pull("org/toy") / "model.safetensors").resolve()
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "taken out of the cache" in refused(pull, "org/toy", offline=True)
    assert "not in the cache" in refused(pull, "org/toy", offline=True)
    assert (pull("org/toy") / "model.safetensors").read_bytes() == published["model.safetensors"]


def test_cache_and_endpoint_may_be_named(hub: Hub, published, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT")
    folder = pull("org/toy", cache=tmp_path / "mine", endpoint=hub.url + "/")
    assert folder.is_relative_to(tmp_path / "mine")
    assert pull("org/toy", cache=tmp_path / "mine", offline=True) == folder
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pytorch_model.bin", "pickle"),
        ("last.PT", "pickle"),
        ("deep/down/state.pth", "pickle"),
        ("optimizer.pkl", "pickle"),
        ("epoch=3.ckpt", "pickle"),
        ("features.npy", "pickle"),
        ("features.npz", "pickle"),
        ("modeling_toy.py", "code"),
        ("kernel.so", "code"),
        ("setup.sh", "code"),
        ("Makefile", "code"),
        ("run.exe ", "code"),
        ("weights.tar.gz", "archive"),
    ],
)
def test_repositories_with_pickles_or_code_are_refused(hub: Hub, published, tmp_path, refused: Refused, name, reason):
    hub.repositories["org/toy"].commit({name: b"harmless, but who knows"})
    sentence = refused(pull, "org/toy")
    assert reason in sentence
    assert name in sentence
    assert hub.count("(GET|HEAD) /org/toy/resolve") == 0
    assert whole_files(tmp_path / "cache") == []


def test_repositories_that_are_no_vlplatform_model(hub: Hub, published, refused: Refused):
    for absent in ("config.json", "model.safetensors"):
        files = {name: body for name, body in published.items() if name != absent}
        hub.repositories["org/part"] = Repository()
        hub.repositories["org/part"].commit(files)
        assert f"no {absent}" in refused(pull, "org/part")
    hub.repositories["org/part"].commit({**published, "config.json": b'{"architectures": ["Bert"]}'})
    assert "does not describe a vlplatform model" in refused(pull, "org/part")
    assert hub.count("GET /org/part/resolve/.*/model.safetensors") == 0
    del published["README.md"]
    hub.repositories["org/bare"] = Repository()
    hub.repositories["org/bare"].commit(published)
    assert pull("org/bare").is_dir()  # a card is not needed


@pytest.mark.parametrize(
    "hub_id",
    ["toy", "../toy", "org/..", "org/toy/x", "/org/toy", "org/to y", "org\\toy", "http://org/toy", "org/toy.git",
     "org/.toy", "org//toy", "org/toy\n", "", "org/" + "x" * 100, "örg/toy"],
)  # fmt: skip
def test_hub_ids_that_could_be_something_else(hub: Hub, refused: Refused, hub_id: str):
    assert "not a hub id" in refused(pull, hub_id)
    assert hub.asked == []


@pytest.mark.parametrize("revision", ["", "../main", "a..b", "/main", "a//b", "main\n", "-x", "a b", "x.lock", "a?b"])
def test_revisions_that_could_be_something_else(hub: Hub, refused: Refused, revision: str):
    assert "is not a revision" in refused(pull, "org/toy", revision=revision)
    assert "is not a revision" in refused(pull, f"org/toy@{revision}")
    assert hub.asked == []


@pytest.mark.parametrize(
    "endpoint", ["ftp://x", "huggingface.co", "http://", "http://a:b@c", "http://x:99999", "http://x?y"]
)
def test_endpoints_that_are_none(monkeypatch, refused: Refused, endpoint: str):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    sentence = refused(pull, "org/toy")
    assert "endpoint" in sentence
    assert "a:b" not in sentence


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (status(401), "set HF_TOKEN"),
        (status(403), "forbids"),
        (status(403, X_Error_Code="GatedRepo"), "is gated"),
        (status(404), "check the spelling"),
        (status(404, X_Error_Code="RepoNotFound"), "check the spelling"),
        (status(500), "is failing (500)"),
        (status(503), "is failing (503)"),
        (status(418), "(418)"),
        (page, "not a hub's"),
        (reset, "broke off"),
    ],
)
@pytest.mark.parametrize("where", ["GET /api/models/", WEIGHTS_GET])
def test_lasting_faults_end_in_one_sentence(hub: Hub, published, tmp_path, refused, where, action, words):
    hub.fail(where, action, times=1000)
    sentence = refused(pull, "org/toy")
    if action is page and where == WEIGHTS_GET:
        words = "broke off"
    assert words in sentence
    assert hub.url in sentence or "org/toy" in sentence
    assert "model.safetensors" not in whole_files(tmp_path / "cache")
    hub.faults.clear()
    assert pull("org/toy").is_dir()


def test_unknown_repository(hub: Hub, refused: Refused):
    assert "has no org/nothing" in refused(pull, "org/nothing")


def test_lasting_faults_of_the_head_request(hub: Hub, published, refused: Refused):
    for code, words in ((401, "HF_TOKEN"), (503, "is failing (503)"), (429, "too many requests")):
        hub.faults.clear()
        hub.fail("HEAD /", status(code), times=1000)
        assert words in refused(pull, "org/toy")


def test_nobody_answers(monkeypatch, refused: Refused):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    sentence = refused(pull, "org/toy")
    assert "connection" in sentence
    assert str(port) in sentence


def test_a_hub_that_hangs(hub: Hub, published, monkeypatch, refused: Refused):
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.05)
    monkeypatch.setattr("vlplatform.hub.errand.ATTEMPTS", 2)

    def hang(handler: object, body: bytes) -> None:
        threading.Event().wait(0.3)

    hub.fail("GET /api/models/", hang, times=1000)
    assert "connection" in refused(pull, "org/toy")


def test_too_many_requests_is_waited_out_as_long_as_the_hub_asks(hub: Hub, published, naps: list[float]):
    hub.fail("GET /api/models/", status(429, Retry_After="7"), times=2)
    hub.fail(WEIGHTS_GET, status(429, Retry_After="9"))
    assert pull("org/toy").is_dir()
    assert naps[:2] == [7.0, 7.0]
    assert len(naps) > 2  # the client library's own
    assert hub.count("GET /api/models/") == 3


def test_too_many_requests_for_too_long(hub: Hub, published, naps: list[float], refused: Refused):
    hub.fail("GET /api/models/", status(429, Retry_After="3600"), times=1000)
    assert "in 3600 s" in refused(pull, "org/toy")
    assert naps == []
    hub.faults.clear()
    hub.fail("GET /api/models/", status(429), times=1000)
    assert "(429)" in refused(pull, "org/toy")
    assert naps == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(("keep", "resumed"), [(0, None), (1, None), (300, "bytes=512-")])
def test_a_cut_download_is_resumed(hub: Hub, published, monkeypatch, keep: int, resumed: str | None):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 256)
    hub.fail(WEIGHTS_GET, cut(keep), times=2)
    folder = pull("org/toy")
    assert (folder / "model.safetensors").read_bytes() == published["model.safetensors"]
    ranges = [headers.get("range") for line, headers in hub.asked if re.match(WEIGHTS_GET, line)]
    assert len(ranges) == 3
    assert ranges[0] is None
    assert ranges[-1] == resumed


def test_a_download_cut_for_ever_leaves_nothing(hub: Hub, published, tmp_path, refused: Refused):
    hub.fail(WEIGHTS_GET, cut(0), times=1000)
    assert "broke off" in refused(pull, "org/toy")
    assert "model.safetensors" not in whole_files(tmp_path / "cache")
    assert "not in the cache" in refused(pull, "org/toy", offline=True)
    hub.faults.clear()
    assert pull("org/toy").is_dir()


def test_a_wrong_hash_leaves_the_cache(hub: Hub, published, tmp_path, refused: Refused):
    hub.fail(WEIGHTS_GET, garbled)
    assert "sha256" in refused(pull, "org/toy")
    assert "model.safetensors" not in whole_files(tmp_path / "cache")
    assert "not in the cache" in refused(pull, "org/toy", offline=True)
    assert (pull("org/toy") / "model.safetensors").read_bytes() == published["model.safetensors"]


def test_weights_of_another_model(hub: Hub, published, refused: Refused):
    """The hub's own hash is right, the one in config.json is not."""
    wrong = published["model.safetensors"][:-1] + b"\x00"
    hub.repositories["org/toy"].commit({"model.safetensors": wrong})
    assert "sha256" in refused(pull, "org/toy")


def test_disk_full(hub: Hub, published, tmp_path, monkeypatch, refused: Refused):
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
        assert "no space left" in refused(pull, "org/toy")
    assert hub.count("(GET|HEAD) /org/toy/resolve") == 0

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    assert "no space left" in refused(pull, "org/toy")
    assert whole_files(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_written(hub: Hub, published, tmp_path, refused: Refused):
    (tmp_path / "cache").write_text("a file")
    assert "cannot be written to the cache" in refused(pull, "org/toy")


def test_the_token_comes_from_the_environment_alone_and_is_never_shown(
    hub: Hub, published, monkeypatch, capfd, caplog, tmp_path, refused: Refused
):
    def sent() -> set[str | None]:
        return {headers.get("authorization") for _, headers in hub.asked}

    pull("org/toy")
    assert sent() == {None}  # not the one of the token file
    secret = "hf_very_secret_0123456789"
    monkeypatch.setenv("HF_TOKEN", secret)
    hub.asked.clear()
    shutil.rmtree(tmp_path / "cache")
    pull("org/toy")
    assert sent() == {f"Bearer {secret}"}

    def echo(handler, body: bytes) -> None:
        handler.reply(418, b'{"error": "bad token ' + secret.encode() + b'"}', {"Content-Type": "application/json"})

    for action in (echo, status(401), status(403), status(429), status(500)):
        hub.faults.clear()
        hub.fail("", action, times=1000)
        assert secret not in refused(pull, "org/toy")
    hub.faults.clear()
    hub.fail("", echo)
    assert "***" in refused(pull, "org/toy")
    monkeypatch.setenv("HF_TOKEN", "two words")
    assert "two words" not in refused(pull, "org/toy")
    assert secret not in "".join(capfd.readouterr()) + caplog.text
    files = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert files
    assert all(secret.encode() not in p.read_bytes() for p in files)


def test_a_hub_that_names_a_path_as_commit(hub: Hub, published, refused: Refused):
    hub.fail("GET /api/models/", lambda handler, body: handler.reply(200, body.replace(b'"sha": "', b'"sha": "../../')))
    assert "names no commit" in refused(pull, "org/toy")
