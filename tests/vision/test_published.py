"""Published weights of backbones: out of one safetensors file, and one quick sentence where there is none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vlplatform.errors import UserError
from vlplatform.vision import grids
from vlplatform.vision.grids import GridBackbone
from vlplatform.vision.published import published_file

timm = pytest.importorskip("timm")


def test_a_backbone_takes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = timm.create_model("resnet18", pretrained=False)
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    asked: list[str] = []

    def found(repository: str, what: str, remedy: str) -> Path:
        asked.append(repository)
        return tmp_path / "model.safetensors"

    monkeypatch.setattr(grids, "published_file", found)
    taken = GridBackbone("resnet18", stride=8, pretrained=True).net.state_dict()
    assert asked == ["timm/resnet18.a1_in1k"]
    for name, tensor in taken.items():
        torch.testing.assert_close(tensor, net.state_dict()[name])


def test_without_network_the_answer_comes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    began = time.monotonic()
    with pytest.raises(UserError, match=r"the weights are neither cached nor to be had from the hub \(.*: do this\."):
        published_file("timm/none.none", "the weights", "do this")
    assert time.monotonic() - began < 10
