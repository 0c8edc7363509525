"""Captioners that see pixels: trained, saved, loaded, and the backbone frozen or not as told."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tiny_models import TINY, VOCABULARY

import vlplatform
from vlp_captioning.models import MODELS, Images, Shape
from vlp_captioning.models.base import Captioner
from vlp_captioning.models.vision import Vision, VisionSettings
from vlp_captioning.plugin import plugin
from vlp_captioning.records import images_of
from vlp_captioning.task import CaptioningTask
from vlplatform import settings as typed
from vlplatform.cli.main import main
from vlplatform.errors import UserError

WORLD = {"size": 48, "train": 8, "val": 3, "test": 2}
SEES = {"pretrained": False, "stride": 8, "grid": 3}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("VLP_CACHE", str(tmp_path_factory.getbasetemp() / "scenes"))


def task(visual: str = "pixels", model: str = "transformer", **vision: Any) -> CaptioningTask:
    sections: dict[str, dict[str, Any]] = {
        "task": {"text": {"min_count": 1}, "decode": {"max_length": 8}},
        "attn": {"name": "auto"},
        "model": {"name": model, "dim": 16, **TINY[model], "vision": {**SEES, **vision}},
        "data": {"name": "scenes", "visual": visual, **WORLD},
    }
    made = plugin.build(sections)
    assert isinstance(made, CaptioningTask)
    return made


def batch_of(made: CaptioningTask, split: str = "train") -> dict[str, Any]:
    records = made.records(split)
    return made.collate([records[i] for i in range(2)])


def test_trains_saves_loads_and_predicts(tmp_path, capsys):
    made = task()
    torch.manual_seed(0)
    model = made.build_model()
    assert made.sections["model"]["vision"]["backbone"] == "resnet18"
    assert model.model_settings.vision.size == (48, 48)
    assert model.shape == Shape(128)
    assert made.describe()["initial_weights"] == "resnet18 from random weights"
    groups = made.parameter_groups(model, 0.01, 0.1)
    assert {g["name"]: g["lr"] for g in groups}["backbone weights"] == 0.01
    optimizer = torch.optim.AdamW(groups)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(2):
        loss = made.loss(model.train(), batch_of(made))
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
    still = [name for name, p in model.named_parameters() if torch.equal(p, before[name])]
    assert not [name for name in still if name.startswith("vision")]

    vlplatform.hub.save_model(model, tmp_path / "model", task="captioning", sections=made.sections)
    loaded = vlplatform.load(tmp_path / "model")
    assert isinstance(loaded, Captioner)
    batch = batch_of(made, "val")
    want = [found["caption"] for found in made.predict(model.eval(), batch)]
    assert [found["caption"] for found in made.predict(loaded, batch)] == want
    assert [c[0].text for c in loaded.generate(batch["pixels"], max_length=8)] == want
    assert made.attention_exhibits(loaded, "val")[0].images

    # The command line sees what the reader saw.
    picture = made.data.picture(made.item(batch["ids"][1]))
    assert picture is not None
    Image.fromarray(picture).save(tmp_path / "photo.png")
    arguments = ["predict", str(tmp_path / "model"), str(tmp_path / "photo.png"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--device", "cpu"]) == 0
    (told,) = json.loads((tmp_path / "out/captions.json").read_text())
    assert told["input"] == str(tmp_path / "photo.png")
    assert told["captions"][0]["text"] == want[1]
    assert f"photo.png: {want[1]} (log-probability" in capsys.readouterr().out
    np.save(tmp_path / "a.npy", np.zeros((4, 128), np.float32))
    assert main(["predict", str(tmp_path / "model"), str(tmp_path / "a.npy")]) == 2
    assert "a.npy holds features, and this model sees pixels: give pictures." in capsys.readouterr().err


@pytest.mark.parametrize("name", MODELS)
def test_every_model_sees(name):
    kind = MODELS[name]
    vision = VisionSettings(backbone="resnet18", pretrained=False, stride=4, grid=2, size=(32, 32))
    values = {"dim": 16, **TINY[name]}
    settings = dataclasses.replace(typed.parse(kind.Settings, values, "model"), vision=vision)
    torch.manual_seed(0)
    model = kind(VOCABULARY, Shape(64), {"name": kind.default_attn}, settings).eval()
    given: dict[str, Any] = {"pixels": torch.rand(2, 3, 40, 48)}
    if kind.reads_attributes:
        given |= {"attributes": torch.tensor([[4], [5]]), "attribute_mask": torch.ones(2, 1, dtype=torch.bool)}
    seen = model.seen(Images.of(given))
    assert seen.features is not None
    assert seen.features.shape == (2, 4, 64)
    assert seen.pixels is None
    assert seen.geometry is not None
    assert seen.geometry.grid == (2, 2)
    assert model.seen(seen) is seen
    alone = {key: value for key, value in given.items() if key != "pixels"} | {"features": seen.features}
    tokens = torch.tensor([[1, 4, 5], [1, 6, 7]])
    torch.testing.assert_close(model.log_probs(given, tokens), model.log_probs(alone, tokens))
    assert len(model.generate(given, beam=2, max_length=4)) == 2
    model.train().encode(Images.of(given)).tokens[0].sum().backward()
    assert model.vision is not None
    assert all(p.grad is not None for p in model.vision.parameters())


def vision(**values: Any) -> Vision:
    return Vision(VisionSettings(**{"backbone": "resnet18", "pretrained": False, "grid": 2, **values}))


def test_freezing():
    def learning(made: Vision) -> set[str]:
        return {name.split(".")[2] for name, p in made.named_parameters() if p.requires_grad}

    def updating(made: Vision) -> set[str]:
        modules = made.train().backbone.net.named_children()
        return {name for name, module in modules if module.training and any(True for _ in module.parameters())}

    for freeze, want in (
        (0, {"conv1", "bn1", "layer1", "layer2", "layer3"}),
        (1, {"layer1", "layer2", "layer3"}),
        (3, {"layer3"}),
        ("all", set()),
    ):
        made = vision(freeze=freeze, stride=16)
        assert (learning(made), updating(made)) == (want, want)
    pixels = torch.rand(2, 3, 32, 32)
    assert not vision(freeze="all")(pixels).requires_grad
    assert vision(freeze=1)(pixels).requires_grad
    with pytest.raises(UserError, match="freeze=5 is more than the 4 parts of resnet18"):
        vision(freeze=5, stride=16)
    with pytest.raises(UserError, match="mobilenetv3_small_100 cannot be frozen in part; choose all, or 0"):
        vision(backbone="mobilenetv3_small_100", freeze=1)
    assert vision(backbone="vit_tiny_patch16_224", size=(32, 32), grid=0)(pixels).shape == (2, 2, 2, 192)


def test_weights_from_a_file(tmp_path):
    torch.manual_seed(1)
    source = vision(stride=8)
    file = tmp_path / "r.safetensors"
    save_file({k: v.clone() for k, v in source.backbone.net.state_dict().items()}, file)
    made = task(pretrained=True, weights=str(file), freeze=2)
    model = made.build_model()
    assert model.vision is not None
    for name, tensor in model.vision.backbone.net.state_dict().items():
        assert torch.equal(tensor, source.backbone.net.state_dict()[name])
    assert made.describe()["initial_weights"] == "resnet18 from a local file, r.safetensors; its licence is unknown"
    rates = {group["name"]: group["lr"] for group in made.parameter_groups(model, 1.0, 0.0)}
    assert (rates["backbone weights"], rates["weights"]) == (0.1, 1.0)
    file.unlink()  # neither a fresh model to be filled nor a rebuilt one looks for it
    made.build_model(pretrained=False)
    plugin.rebuild(json.loads(json.dumps(model.settings())))
    with pytest.raises(
        UserError, match=r"^model\.vision\.weights=.*r\.safetensors: .* is not a file: give an .* one\.$"
    ):
        made.build_model()
    save_file({"conv1.weight": torch.zeros(64, 3, 7, 7)}, file)
    with pytest.raises(UserError, match=r"r.safetensors: the weights lack .*partial_weights=true lets them lack some"):
        made.build_model()
    partly = task(pretrained=True, weights=str(file), partial_weights=True).build_model()
    assert partly.vision is not None
    assert not next(partly.vision.backbone.net.parameters()).any()


def test_refusals(tmp_path):
    with pytest.raises(UserError, match=r"gives features and model\.vision\.backbone=resnet18 sees pixels: leave out"):
        task("regions", backbone="resnet18")
    with pytest.raises(UserError, match=r"gives pixels and model\.vision\.backbone=none reads features: give"):
        task(backbone="none")
    with pytest.raises(UserError, match=r"model: vision.size=\[4, 4\] must lie|vision: vision.size"):
        task(size=[4, 4])
    with pytest.raises(UserError, match=r"^model\.vision\.backbone=resnet is not a model of timm: did you mean"):
        task(backbone="resnet").build_model()
    made = task("regions")
    assert made.sections["model"]["vision"]["backbone"] == "none"
    model = made.build_model()
    assert model.vision is None
    with pytest.raises(UserError, match="this model reads features and not pixels"):
        model.generate(torch.rand(1, 3, 32, 32))


def test_old_configs():
    model = task("regions").build_model()
    saved = model.settings()
    del saved["model"]["vision"], saved["shape"]["extractor"]
    rebuilt = plugin.rebuild(saved)
    assert rebuilt.state_dict().keys() == model.state_dict().keys()
    assert rebuilt.shape.extractor is None


def test_resnet18_of_imagenet(shared: Path):
    file = shared / "data/weights/resnet18-imagenet-thru-layer3.safetensors"
    made = task(pretrained=True, weights=str(file), stride=16)
    model = made.build_model().eval()
    batch = batch_of(made, "val")
    features = model.seen(images_of(batch, model)).features
    assert features is not None
    assert features.shape == (2, 9, 256)
    assert bool((features.std(0) > 0).any())
