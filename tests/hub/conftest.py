"""A toy task, a hub on loopback, and an environment in which nothing else can be reached."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from server import Hub, Repository
from torch import Tensor
from toy import Toy, ToyPlugin

from vlplatform import registry
from vlplatform.errors import UserError

DECOY = "hf_decoy_from_the_token_file"


@pytest.fixture(autouse=True)
def toy_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def task(name: str) -> ToyPlugin:
        if name != "toy":
            raise UserError(f"task={name} is not installed: valid: toy.")
        return ToyPlugin()

    monkeypatch.setattr(registry, "task", task)


@pytest.fixture
def model() -> Toy:
    torch.manual_seed(3)
    made = Toy()
    made.norm.running_mean.uniform_(-1, 1)
    return made.eval()


@pytest.fixture
def x() -> Tensor:
    return torch.linspace(-1, 1, 15).reshape(5, 3)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, in seconds; none of them is really waited for."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, naps: list[float]) -> Iterator[None]:
    """Cache and token file in the test's folder, no proxy, no way off this machine."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    token_file = tmp_path / "token"
    token_file.write_text(DECOY)
    for name, value in {
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_TOKEN_PATH": str(token_file),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_DOWNLOAD_TIMEOUT": 2,
        "HF_HUB_ETAG_TIMEOUT": 2,
    }.items():
        monkeypatch.setattr(constants, name, value, raising=False)  # some are of newer versions
    connect = socket.socket.connect

    def only_here(self: socket.socket, address: Any) -> None:
        assert address[0] in ("127.0.0.1", "localhost"), f"a test tried to reach {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", only_here)
    yield
    if close := getattr(huggingface_hub, "close_session", None):
        close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def published(hub: Hub, model: Toy, tmp_path: Path) -> dict[str, bytes]:
    """The files of org/toy on the hub, as a saved model; change the mapping and call ``publish`` for others."""
    folder = model.save(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.repositories["org/toy"] = Repository()
    hub.repositories["org/toy"].commit(files)
    return files


@pytest.fixture
def refused() -> Callable[..., str]:
    """Call something that must raise a UserError of one sentence; returns the sentence."""

    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
        with pytest.raises(UserError) as caught:
            function(*args, **kwargs)
        sentence = str(caught.value)
        assert "\n" not in sentence
        assert sentence.endswith((".", ").")), sentence
        return sentence

    return call
