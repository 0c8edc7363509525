"""Backbones: shapes, strides, frozen parts, and weights from files and from the hub."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from vlplatform import settings
from vlplatform.errors import UserError
from vlplatform.vision.backbone import Backbone, BackboneSettings, load_weights


def small(**values: Any) -> BackboneSettings:
    return BackboneSettings(**{"backbone": "resnet18", **values})


@pytest.mark.parametrize(("stride", "stages"), [(8, 4), (16, 4), (32, 4), (8, 3), (16, 3)])
def test_maps_have_the_announced_channels_and_sizes(stride: int, stages: int) -> None:
    backbone = Backbone(small(output_stride=stride, stages=stages)).eval()
    with torch.no_grad():
        maps = backbone(torch.rand(1, 3, 65, 50))
    assert backbone.channels == (64, 64, 128, 256, 512)[: stages + 1]
    assert backbone.strides[-1] == stride
    assert [m.shape for m in maps] == [
        (1, c, -(-65 // s), -(-50 // s)) for c, s in zip(backbone.channels, backbone.strides)
    ]


def test_frozen_norms_keep_their_statistics_and_frozen_parts_their_weights() -> None:
    backbone = Backbone(small(freeze=1, freeze_norms=3)).train()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    sum(m.square().mean() for m in backbone(torch.rand(2, 3, 32, 32))).backward()
    moved = {name for name, tensor in backbone.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved
    assert all(name.startswith(("net.layer3", "net.layer4")) for name in moved)
    still = {name for name, parameter in backbone.named_parameters() if parameter.grad is None}
    assert still == {"net.conv1.weight", "net.bn1.weight", "net.bn1.bias"}


def test_weights_from_a_file_under_torchvision_names(tmp_path: Path) -> None:
    import torchvision

    theirs = torchvision.models.resnet18(weights=None).eval()
    save_file(theirs.state_dict(), tmp_path / "r18.safetensors")
    chosen = small(weights=str(tmp_path / "r18.safetensors"), output_stride=32)
    backbone = Backbone(chosen).eval()
    assert load_weights(backbone, chosen) == str(tmp_path / "r18.safetensors")
    image = torch.rand(1, 3, 64, 64)
    x = (image - backbone.mean) / backbone.std
    with torch.no_grad():
        x = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(x))))
        expected = theirs.layer4(theirs.layer3(theirs.layer2(theirs.layer1(x))))
        torch.testing.assert_close(backbone(image)[-1], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.shared
def test_the_partial_file(shared: Path) -> None:
    file = str(shared / "data/weights/resnet18-imagenet-thru-layer3.safetensors")
    with pytest.raises(UserError, match=r"lacks .*layer4.*partial_weights=true.*stages=3"):
        load_weights(Backbone(small(weights=file)), small(weights=file))
    assert load_weights(Backbone(small(weights=file, stages=3)), small(weights=file, stages=3)) == file
    partial = small(weights=file, partial_weights=True)
    assert "without 20 tensors (layer4" in load_weights(Backbone(partial), partial)


def test_without_a_network_the_remedies_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"model\.weights=FILE.*model\.pretrained=false"):
        load_weights(Backbone(small()), small())


def test_a_hub_out_of_reach_is_told_at_once_and_in_one_line(monkeypatch, tmp_path, capfd) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

    def wait(seconds: float) -> None:
        raise AssertionError(f"it tries again after {seconds} s")

    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("time.sleep", wait)
    with pytest.raises(UserError, match=r"timm/resnet18.*model\.weights=FILE.*model\.pretrained=false"):
        load_weights(Backbone(small()), small())
    assert capfd.readouterr() == ("", "")


def test_weights_in_the_cache_need_no_network(monkeypatch, tmp_path) -> None:
    snapshot = tmp_path / "models--timm--resnet18.tv_in1k"
    (snapshot / "refs").mkdir(parents=True)
    (snapshot / "refs" / "main").write_text("0" * 40)
    (snapshot / "snapshots" / ("0" * 40)).mkdir(parents=True)
    save_file(Backbone(small()).net.state_dict(), snapshot / "snapshots" / ("0" * 40) / "model.safetensors")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert load_weights(Backbone(small()), small()) == "timm/resnet18.tv_in1k (ImageNet)"


def test_random_weights_when_asked_for() -> None:
    assert load_weights(nn.Module(), small(pretrained=False)) == "random"  # type: ignore[arg-type]


def test_faulty_files(tmp_path: Path) -> None:
    whole = tmp_path / "whole.safetensors"
    save_file(Backbone(small()).net.state_dict(), whole)
    (tmp_path / "cut.safetensors").write_bytes(whole.read_bytes()[:1000])
    (tmp_path / "old.pth").write_bytes(b"pickle")
    save_file({"something": torch.zeros(1)}, tmp_path / "other.safetensors")
    for name, network, problem in [
        ("none.safetensors", "resnet18", "does not exist"),
        ("cut.safetensors", "resnet18", "cannot be read"),
        ("old.pth", "resnet18", "not a .safetensors file"),
        ("other.safetensors", "resnet18", "torchvision's names"),
        ("whole.safetensors", "resnet50", "of shape"),
    ]:
        chosen = small(weights=str(tmp_path / name), backbone=network, stages=3)
        with pytest.raises(UserError, match=problem):
            load_weights(Backbone(chosen), chosen)


@pytest.mark.parametrize(
    "wrong",
    [
        {"backbone": "resnet19"},
        {"output_stride": 4},
        {"stages": 5},
        {"freeze": 6},
        {"freeze_norms": 5, "stages": 3},
        {"pretrained": False, "weights": "x.safetensors"},
        {"partial_weights": True},
        {"pretrianed": False},
    ],
)
def test_senseless_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="model"):
        settings.parse(BackboneSettings, wrong, "model")
