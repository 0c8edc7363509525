"""``vlp predict`` of captioners that read features: files of features, and pictures whose features are made again."""

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
from tiny_models import TINY, VOCABULARY, WIDTH, make

from vlp_captioning.models import Captioner
from vlp_captioning.plugin import plugin
from vlp_captioning.predict import as_decoded
from vlp_captioning.task import CaptioningTask
from vlplatform.cli.main import main
from vlplatform.data.shards import Shards
from vlplatform.errors import UserError
from vlplatform.hub import save_model
from vlplatform.vision.extract import FeatureSettings, settings_of
from vlplatform.vision.grids import GridBackbone


def predict(model: Path, *inputs: Path) -> list[dict[str, Any]]:
    out = model.parent / "predictions"
    assert main(["predict", str(model), *map(str, inputs), "--out", str(out), "--device", "cpu"]) == 0
    return json.loads((out / "captions.json").read_text())


def refused(capsys: pytest.CaptureFixture[str], model: Path, *inputs: Path) -> str:
    capsys.readouterr()
    out = model.parent / "refused"
    assert main(["predict", str(model), *map(str, inputs), "--out", str(out), "--device", "cpu"]) == 2
    assert not out.exists()
    (line,) = capsys.readouterr().err.splitlines()
    return line


def saved(model: Captioner, folder: Path, **task: Any) -> Path:
    return save_model(model.float(), folder, task="captioning", sections={"task": task} if task else {})


def test_features(tmp_path, capsys):
    model = make("transformer")
    folder = saved(model, tmp_path / "model")
    rng = np.random.default_rng(0)
    features, boxes = rng.normal(size=(5, WIDTH)).astype(np.float32), np.array([[1, 2, 30, 40]] * 5, np.float32)
    np.savez(tmp_path / "a.npz", features=features, boxes=boxes, image_w=64, image_h=48)
    np.save(tmp_path / "b.npy", features.reshape(1, 5, 1, WIDTH))
    told = predict(folder, tmp_path / "a.npz", tmp_path / "b.npy", tmp_path / "a.npz")
    assert [each["input"] for each in told] == [str(tmp_path / name) for name in ("a.npz", "b.npy", "a.npz")]
    assert told[0]["captions"] == told[2]["captions"]
    given = {"features": torch.tensor(features)[None], "boxes": torch.tensor(boxes)[None], "size": (64, 48)}
    (want,) = model.generate(given, beam=3, returned=3)
    for found, caption in zip(told[0]["captions"], want, strict=True):
        assert found["text"] == caption.text
        assert found["log_prob"] == pytest.approx(sum(caption.log_probs), rel=1e-5)
        assert found["score"] == pytest.approx(caption.score, rel=1e-5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path / 'a.npz'}: {want[0].text} (log-probability {sum(want[0].log_probs):.2f})"
    assert lines[1] == f"    {want[1].text} (score {want[1].score:.2f})"
    assert len(lines) == 3 * 3 + 1
    assert lines[-1].endswith("captions.json")
    np.save(tmp_path / "wide.npy", np.zeros((5, 9), np.float32))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    (tmp_path / "x.txt").write_text("x")
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.png")
    for name, message in (
        ("wide.npy", f"wide.npy holds features that are 9 wide; this model was made for {WIDTH}"),
        ("broken.npz", "broken.npz cannot be read"),
        ("x.txt", "x.txt is neither a picture (.jpg"),
        ("photo.png", "photo.png is a picture, and this model reads features that vlp prepare did not make: pictures"),
    ):
        assert message in refused(capsys, folder, tmp_path / "a.npz", tmp_path / name)


def test_decoded_as_in_the_run(tmp_path):
    model = make("transformer", max_length=6)
    assert as_decoded(model).max_length == 6
    folder = saved(model, tmp_path / "model", decode={"beam": 2, "max_length": 4, "length_penalty": 1.0})
    np.save(tmp_path / "b.npy", np.ones((4, WIDTH), np.float32))
    (told,) = predict(folder, tmp_path / "b.npy")
    want = model.generate(torch.ones(1, 4, WIDTH), beam=2, max_length=4, length_penalty=1.0, returned=2)[0]
    assert [caption["text"] for caption in told["captions"]] == [caption.text for caption in want]
    assert told["captions"][0]["score"] != pytest.approx(told["captions"][0]["log_prob"])


def test_attribute_words(tmp_path, capsys):
    folder = saved(make("eta"), tmp_path / "model")
    features = np.ones((4, WIDTH), np.float32)
    np.savez(tmp_path / "a.npz", features=features, attributes=np.array(["red", "circle"]))
    np.savez(tmp_path / "b.npz", features=features, attributes=np.array(["blue", "unheard-of"]))
    np.savez(tmp_path / "numbers.npz", features=features, attributes=np.array([1, 2]))
    one, two = predict(folder, tmp_path / "a.npz", tmp_path / "b.npz")
    assert one["captions"][0]["log_prob"] != two["captions"][0]["log_prob"]
    np.save(tmp_path / "c.npy", features)
    for name in ("c.npy", "numbers.npz"):
        message = f"model=eta reads attribute words, and {tmp_path / name} has none: give an .npz with 'features'"
        assert message in refused(capsys, folder, tmp_path / name)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    lines = []
    for number in range(4):
        blocks = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8))
        blocks.resize((60 + number, 40), Image.Resampling.NEAREST).save(folder / f"{number}.png")
        split = "train" if number < 2 else "val"
        lines.append(json.dumps({"image": f"{number}.png", "captions": ["a red thing", "a thing"], "split": split}))
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder


def task_on(features: Path, pictures: Path) -> CaptioningTask:
    sections: dict[str, dict[str, Any]] = {
        "task": {"text": {"min_count": 1}, "decode": {"max_length": 6}},
        "attn": {"name": "auto"},
        "model": {"name": "transformer", "dim": 16, **TINY["transformer"]},
        "data": {"name": "jsonl", "file": str(pictures / "captions.jsonl"), "features": str(features)},
    }
    made = plugin.build(sections)
    assert isinstance(made, CaptioningTask)
    return made


def check_same(task: CaptioningTask, tmp_path: Path, pictures: Path) -> tuple[Captioner, Path]:
    """A model on prepared features says of a picture what it says of the features prepared from it."""
    torch.manual_seed(0)
    model = task.build_model()
    folder = save_model(model, tmp_path / "model", task="captioning", sections=task.sections)
    records = task.records("val")
    want = task.predict(model.eval(), task.collate([records[0], records[1]]))
    told = predict(folder, pictures / "2.png", pictures / "3.png")
    for found, prediction in zip(told, want, strict=True):
        assert found["captions"][0]["text"] == prediction["caption"]
        assert found["captions"][0]["log_prob"] == pytest.approx(prediction["log_prob"], abs=1e-3)
    return model, folder


def test_pictures_through_a_backbone(tmp_path, pictures, monkeypatch, capsys):
    weights = tmp_path / "r.safetensors"
    torch.manual_seed(1)
    net = GridBackbone("resnet18", stride=8, pretrained=False).net
    save_file({k: v.clone() for k, v in net.state_dict().items()}, weights)
    values = ["backbone=resnet18", "stride=8", "size=64", "grid=3", f"weights={weights}", "workers=0"]
    assert main(["prepare", "features", str(pictures), str(tmp_path / "out"), *values]) == 0
    shards = Shards(tmp_path / "out")
    assert shards.about == {"weights_path": str(weights)}
    assert str(tmp_path) not in json.dumps(dict(shards.settings))
    model, folder = check_same(task_on(tmp_path / "out", pictures), tmp_path, pictures)
    assert model.shape.extractor == {**shards.settings, **shards.about}

    # Moved to the current folder it is found, too; another file of its name is not taken.
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    weights.rename("r.safetensors")
    predict(folder, pictures / "2.png")
    Path("r.safetensors").write_bytes(b"x")
    told = refused(capsys, folder, pictures / "2.png")
    assert "the features were made with the weights r.safetensors (SHA-256" in told
    assert f"put it at {tmp_path / 'here/r.safetensors'}, or give features (.npz) in place of pictures." in told


def test_pictures_through_a_detector(tmp_path, pictures):
    values = ["detector=fasterrcnn_mobilenet_v3_large_320_fpn", "pretrained=false", "regions=5", "least=2", "workers=0"]
    assert main(["prepare", "features", str(pictures), str(tmp_path / "out"), *values]) == 0
    check_same(task_on(tmp_path / "out", pictures), tmp_path, pictures)


def test_identity_and_back(tmp_path):
    for settings in (
        FeatureSettings(backbone="resnet18", size=96, stride=16, grid=0, pretrained=False),
        FeatureSettings(detector="fasterrcnn_resnet50_fpn_v2", regions=9, least=1, score=0.5, nms=0.6),
    ):
        assert settings_of(json.loads(json.dumps(settings.identity()))) == settings
    (tmp_path / "w.pth").write_bytes(b"weights")
    settings = FeatureSettings(backbone="resnet18", weights=str(tmp_path / "w.pth"))
    assert settings_of({**settings.identity(), **settings.places()}) == settings
    with pytest.raises(UserError, match=r"weights w.pth \(SHA-256 [0-9a-f]{16} …\), and no such file is at w.pth"):
        settings_of(settings.identity())
    with pytest.raises(UserError, match="the extractor: give either backbone=NAME or detector=NAME"):
        settings_of({})


def test_shape_of_old_configs():
    values = make("transformer").float().settings()
    assert values["shape"] == {"feature_dim": WIDTH, "forbidden": None, "extractor": None}
    values["shape"] = {"feature_dim": WIDTH}
    rebuilt = plugin.rebuild(values)
    assert dataclasses.asdict(rebuilt.shape)["extractor"] is None
    assert len(rebuilt.vocabulary) == len(VOCABULARY)
