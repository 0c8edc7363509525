"""Pushing over HTTP, and the way back; the commands ``vlp pull`` and ``vlp push``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants
from server import Hub, Repository, cut, reset, status
from torch import Tensor

import vlplatform
from vlplatform.cli.main import main
from vlplatform.hub import pull, push

Refused = Callable[..., str]
# huggingface_hub uploads with an argument that its HTTP client calls old.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

THREE = {"config.json", "model.safetensors", "README.md"}


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    return "hf_writer"


@pytest.fixture(autouse=True)
def client_endpoint(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when HF_ENDPOINT is set before the start; older client libraries read addresses in answers by it."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def saved(model, tmp_path: Path) -> Path:
    return model.save(tmp_path / "saved", {"scores": {"miou": 0.5}, "licence": "apache-2.0"})


def test_push_pull_load_gives_equal_outputs(hub: Hub, saved: Path, model, x: Tensor):
    assert push(saved, "org/new") == f"{hub.url}/org/new"
    repository = hub.repositories["org/new"]
    assert set(repository.commits[repository.refs["main"]]) == {*THREE, ".gitattributes"}
    assert not repository.private
    assert {p.name: p.read_bytes() for p in pull("org/new").iterdir()} == {
        p.name: p.read_bytes() for p in saved.iterdir()
    }
    assert (vlplatform.load("org/new")(x) == model(x)).all()
    assert {headers.get("authorization") for line, headers in hub.asked if "/lfs/" not in line} == {"Bearer hf_writer"}


def test_folders_of_this_machine_stay_here(hub: Hub, saved: Path):
    config = json.loads((saved / "config.json").read_text())
    config["sections"] = {"data": {"root": "/home/me/data", "parts": ["C:\\me", "nose"]}, "attn": {"name": "conv"}}
    (saved / "config.json").write_text(json.dumps(config))
    push(saved, "org/new")
    pulled = json.loads((pull("org/new") / "config.json").read_text())
    assert pulled["sections"] == {"data": {"root": None, "parts": [None, "nose"]}, "attn": {"name": "conv"}}
    assert {**pulled, "sections": config["sections"]} == config


def test_pushing_again_and_from_a_run(hub: Hub, saved: Path, model, tmp_path: Path):
    push(saved, "org/new")
    model.save(tmp_path / "run" / "best", {"citation": ["second"]})
    push(tmp_path / "run", "org/new", message="better")
    assert b"second" in (pull("org/new") / "README.md").read_bytes()
    assert len(hub.repositories["org/new"].commits) == 3


def test_private_is_private(hub: Hub, saved: Path, refused: Refused):
    push(saved, "org/secret", private=True)
    assert hub.repositories["org/secret"].private
    hub.repositories["org/open"] = Repository()
    hub.repositories["org/open"].commit({})
    assert "is public" in refused(push, saved, "org/open", private=True)
    assert hub.count("POST /api/models/org/open/commit") == 0


def test_what_is_no_whole_export_is_not_pushed(hub: Hub, saved: Path, tmp_path: Path, refused: Refused):
    assert "is not a folder" in refused(push, tmp_path / "nothing", "org/new")
    (tmp_path / "empty").mkdir()
    assert "no exported model" in refused(push, tmp_path / "empty", "org/new")
    (saved / "README.md").unlink()
    assert "README.md" in refused(push, saved, "org/new")
    (saved / "README.md").write_text("card")
    (saved / "model.safetensors").write_bytes(b"tampered")
    assert "sha256" in refused(push, saved, "org/new")
    (saved / "config.json").write_text(json.dumps({"architectures": ["Bert"]}))
    assert "does not describe" in refused(push, saved, "org/new")
    assert hub.asked == []


def test_only_the_three_files_go(hub: Hub, saved: Path):
    (saved / "notes.py").write_text("private = 1")
    (saved / "optimizer.pt").write_text("private")
    push(saved, "org/new")
    repository = hub.repositories["org/new"]
    assert set(repository.commits[repository.refs["main"]]) == {*THREE, ".gitattributes"}


def test_pushing_needs_a_token_and_a_plain_id(hub: Hub, saved: Path, monkeypatch, refused: Refused):
    assert "names a revision" in refused(push, saved, "org/new@v1")
    assert "not a hub id" in refused(push, saved, "../new")
    monkeypatch.delenv("HF_TOKEN")
    assert "set HF_TOKEN" in refused(push, saved, "org/new")
    assert hub.asked == []


@pytest.mark.parametrize(
    ("where", "action", "words"),
    [
        ("POST /api/repos/create", status(401), "does not accept the token"),
        ("POST /api/repos/create", status(403), "forbids"),
        ("POST /api/models/org/new/commit", status(403), "forbids"),
        ("POST /api/models/org/new/commit", status(400), "(400)"),
        ("POST /api/models/org/new/preupload", status(500), "is failing (500)"),
        ("PUT /lfs/", status(507), "is failing (507)"),
        ("PUT /lfs/", cut(0), "broke off"),
    ],
)
def test_lasting_faults(hub: Hub, saved: Path, refused: Refused, where, action, words):
    hub.fail(where, action, times=1000)
    sentence = refused(push, saved, "org/new")
    assert words in sentence
    assert "hf_writer" not in sentence
    assert "org/new" not in hub.repositories or len(hub.repositories["org/new"].commits) == 1


def test_passing_faults(hub: Hub, saved: Path, naps: list[float]):
    hub.fail("POST /api/repos/create", status(503))
    hub.fail("POST /api/models/org/new/commit", status(429, Retry_After="5"))
    hub.fail("POST /org/new.git/info/lfs", reset)
    push(saved, "org/new")
    assert 5.0 in naps
    assert len(hub.repositories["org/new"].commits) == 2
    assert pull("org/new").is_dir()


def test_the_commands(hub: Hub, saved: Path, tmp_path: Path, capsys):
    assert main(["push", str(saved), "org/new", "--message", "first"]) == 0
    assert capsys.readouterr().out.strip() == f"{hub.url}/org/new"
    assert main(["pull", "org/new", "--cache", str(tmp_path / "c")]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert {p.name for p in folder.iterdir()} == THREE
    hub.asked.clear()
    assert main(["pull", "org/new", "--cache", str(tmp_path / "c"), "--offline"]) == 0
    assert hub.asked == []
    capsys.readouterr()
    assert main(["pull", "org/missing", "--endpoint", hub.url]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert main(["push", str(tmp_path), "org/new"]) == 2
    assert "no exported model" in capsys.readouterr().err
