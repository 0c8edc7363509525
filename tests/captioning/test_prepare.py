"""``vlp prepare features``: the features are the network's, whatever the batch and the interruptions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

from vlp_captioning.readers import open_data
from vlplatform.cli.main import main
from vlplatform.data.shards import Shards
from vlplatform.vision.grids import GridExtractor
from vlplatform.vision.pictures import read_image
from vlplatform.vision.regions import Choice, DetrDetector, TorchvisionDetector, choose

RANDOM = ["backbone=resnet18", "stride=16", "size=64", "grid=3", "pretrained=false", "workers=0", "batch=2"]


def random_but(*words: str) -> list[str]:
    """``RANDOM`` with some words in place of those of the same key."""
    keys = {word.partition("=")[0] for word in words}
    return [word for word in RANDOM if word.partition("=")[0] not in keys] + list(words)


def photos(folder: Path, count: int = 5) -> Path:
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / ("more" if number % 2 else ".") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40 + number, 60, 3), dtype=np.uint8)).save(path)
    return folder


def prepare(*arguments: object) -> int:
    return main(["prepare", "features", *map(str, arguments)])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_grids(tmp_path, capsys):
    folder = photos(tmp_path / "photos")
    assert prepare(folder, tmp_path / "out", *RANDOM) == 0
    assert "5 pictures (5 of them now) in" in capsys.readouterr().out
    shards = Shards(tmp_path / "out")
    assert sorted(shards) == ["0.png", "2.png", "4.png", "more/1.png", "more/3.png"]
    assert shards.settings["backbone"] == "resnet18"
    torch.manual_seed(0)
    net = GridExtractor("resnet18", size=64, stride=16, grid=3, pretrained=False)
    for key, record in shards.items():
        image = read_image(folder / key)
        small = functional.resize(image, [64, 64], antialias=True)[None]
        torch.testing.assert_close(record.features, net(small)[0].flatten(0, 1), rtol=1e-4, atol=1e-5)
        assert (record.grid, record.size) == ((3, 3), (60, image.shape[1]))
        assert record.features.shape == (9, 256)


def test_stopped_and_continued(tmp_path, monkeypatch):
    folder = photos(tmp_path / "photos", 9)
    small = random_but("shard=2", "batch=1")
    assert prepare(folder, tmp_path / "whole", *small) == 0
    forward, calls = GridExtractor.forward, []

    def stopped(self: GridExtractor, images: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return forward(self, images)

    with monkeypatch.context() as patch:
        patch.setattr(GridExtractor, "forward", stopped)
        assert prepare(folder, tmp_path / "out", *small) == 130
    assert len(list((tmp_path / "out").glob("shard-*"))) == 2
    assert prepare(folder, tmp_path / "out", *small) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_more_pictures_are_added(tmp_path, capsys):
    folder = photos(tmp_path / "photos", 3)
    prepare(folder, tmp_path / "out", *RANDOM)
    photos(tmp_path / "photos", 5)
    capsys.readouterr()
    prepare(folder, tmp_path / "out", *random_but("batch=1"))
    assert "5 pictures (2 of them now)" in capsys.readouterr().out
    assert len(Shards(tmp_path / "out")) == 5


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert prepare(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_broken_pictures(tmp_path, capsys):
    folder, out = photos(tmp_path / "photos"), tmp_path / "out"
    (folder / "3.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    assert "3.jpg cannot be decoded" in refused(capsys, folder, out, *RANDOM)
    assert "on_error=skip" in refused(capsys, folder, out, *RANDOM)
    assert prepare(folder, out, *random_but("on_error=skip", "workers=1")) == 0
    printed = capsys.readouterr().out
    assert "pictures that could not be read and were skipped: 1" in printed
    assert (out / "skipped.txt").read_text().startswith("3.jpg\t")
    assert len(Shards(out)) == 5
    (folder / "3.jpg").unlink()
    assert prepare(folder, out, *RANDOM) == 0
    assert not (out / "skipped.txt").exists()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.png").write_bytes(b"x")
    assert "none of the 1 pictures of" in refused(capsys, tmp_path / "bad", tmp_path / "o2", *RANDOM, "on_error=skip")


def test_a_list_of_pictures(tmp_path):
    photos(tmp_path, 4)
    (tmp_path / "list.txt").write_text(f"more/3.png\n\n{tmp_path / '0.png'}\n")
    assert prepare(tmp_path / "list.txt", tmp_path / "out", *RANDOM) == 0
    assert list(Shards(tmp_path / "out")) == ["more/3.png", "0.png"]


def test_a_folder_of_a_detr_that_is_not_there(tmp_path, capsys):
    pytest.importorskip("transformers")
    folder = photos(tmp_path / "photos", 1)
    told = refused(capsys, folder, tmp_path / "out", "detector=./nowhere")
    assert "detector=./nowhere is no folder: give a hub id" in told


def test_refusals(tmp_path, capsys):
    folder, out = photos(tmp_path / "photos", 1), tmp_path / "out"
    for arguments, message in (
        ((folder, out), "prepare: give either backbone=NAME or detector=NAME"),
        ((folder, out, "backbone"), "'backbone' is no setting: write KEY=VALUE"),
        ((folder, out, "backbone=resnet18", "gird=3"), "prepare.gird is not a setting of prepare: did you mean 'grid'"),
        ((folder, out, "backbone=resnet18", "grid=x"), "prepare.grid='x' has the wrong type: expected whole number"),
        (
            (folder, out, "backbone=resnet180", "pretrained=false"),
            "backbone=resnet180 is not a model of timm: did you mean",
        ),
        (
            (folder, out, *random_but("stride=7")),
            "stride=7 is none of the backbone resnet18: choose one of 2, 4, 8, 16, 32",
        ),
        ((folder, out, "backbone=resnet18", "weights=x.pth"), "prepare.weights=x.pth is not a file"),
        ((folder, out, "detector=fasterrcnn", "pretrained=false"), "detector=fasterrcnn is unknown: did you mean"),
        ((tmp_path / "nowhere", out, *RANDOM), "nowhere do not exist: give a folder, or a text file"),
    ):
        assert message in refused(capsys, *arguments)
    assert prepare(folder, out, *RANDOM) == 0
    assert "was written with grid=3, not 4" in refused(capsys, folder, out, *random_but("grid=4"))
    (tmp_path / "empty").mkdir()
    assert "empty holds no pictures" in refused(capsys, tmp_path / "empty", out, *RANDOM)


def test_backbones_of_other_kinds():
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    assert GridExtractor("vit_tiny_patch16_224", size=64, grid=0, pretrained=False)(images).shape == (2, 4, 4, 192)
    swin = GridExtractor("swin_tiny_patch4_window7_224", size=64, stride=16, grid=2, pretrained=False)
    assert swin(images).shape == (2, 2, 2, 384)


def test_choice_of_boxes():
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30], [50, 50, 60, 60]])
    scores = torch.tensor([[0.9, 0.0], [0.8, 0.3], [0.1, 0.5], [0.01, 0.02]])
    kept, sure = choose(boxes, scores, Choice(most=3, least=1, score=0.2, nms=0.5))
    assert kept.tolist() == [0, 2, 1]  # box 1 loses class 0 to box 0, and is the best of class 1 there
    torch.testing.assert_close(sure, torch.tensor([0.9, 0.5, 0.3]))
    assert choose(boxes, scores, Choice(most=2, least=0, score=0.6))[0].tolist() == [0]
    assert choose(boxes, scores, Choice(most=4, least=4, score=0.6))[0].tolist() == [0, 2, 1, 3]
    assert choose(boxes[:0], scores[:0], Choice())[0].tolist() == []


def test_choice_of_boxes_against_a_loop():
    torch.manual_seed(0)
    from torchvision.ops import nms

    for _ in range(20):
        corner = torch.rand(12, 2) * 30
        boxes, scores = torch.cat([corner, corner + 5 + torch.rand(12, 2) * 20], 1), torch.rand(12, 4)
        sure = torch.zeros(12)
        for c in range(4):
            for k in nms(boxes, scores[:, c], 0.3).tolist():
                sure[k] = max(float(sure[k]), float(scores[k, c]))
        number = min(max(int((sure > 0.7).sum()), 2), 6)
        kept, got = choose(boxes, scores, Choice(most=6, least=2, score=0.7, nms=0.3))
        assert kept.tolist() == sure.argsort(descending=True, stable=True)[:number].tolist()
        torch.testing.assert_close(got, sure[kept])


def test_torchvision_detector():
    torch.manual_seed(0)
    choice = Choice(most=4, least=2, score=0.9)
    detector = TorchvisionDetector("fasterrcnn_mobilenet_v3_large_320_fpn", choice, pretrained=False)
    images = [torch.randint(0, 256, (3, h, w), dtype=torch.uint8) for h, w in ((40, 90), (64, 50))]
    together = detector(images)
    for image, found in zip(images, together):
        height, width = image.shape[1:]
        assert found.features.shape == (2, 1024)
        assert (found.boxes >= 0).all()
        assert (found.boxes <= torch.tensor([width, height, width, height])).all()
        assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()
        assert found.scores[0] >= found.scores[1]


def test_detr(tmp_path):
    transformers = pytest.importorskip("transformers")
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = transformers.DetrConfig(
        backbone_config=backbone,
        num_queries=5,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_labels=3,
    )
    torch.manual_seed(0)
    transformers.DetrForObjectDetection(config).save_pretrained(tmp_path / "detr")
    transformers.DetrImageProcessor(size={"shortest_edge": 64, "longest_edge": 96}).save_pretrained(tmp_path / "detr")
    detector = DetrDetector(str(tmp_path / "detr"), Choice(most=4, least=3, score=0.99, nms=1.0))
    images = [torch.randint(0, 256, (3, h, w), dtype=torch.uint8) for h, w in ((40, 90), (64, 50))]
    together = detector(images)
    for image, found in zip(images, together):
        assert (found.features.shape, found.boxes.shape) == ((3, 16), (3, 4))
        assert (found.boxes <= torch.tensor([image.shape[2], image.shape[1]] * 2)).all()
        alone = detector([image])[0]
        torch.testing.assert_close(alone.features, found.features, rtol=1e-3, atol=1e-4)
    photos(tmp_path / "photos", 2)
    assert prepare(tmp_path / "photos", tmp_path / "out", f"detector={tmp_path / 'detr'}", "workers=0", "least=2") == 0
    assert Shards(tmp_path / "out")["0.png"].boxes is not None


@pytest.mark.shared
def test_resnet18_of_a_partial_file(shared, tmp_path, capsys):
    weights = shared / "data/weights/resnet18-imagenet-thru-layer3.safetensors"
    root = shared / "data/flickr8k-mini"
    images = json.loads((root / "dataset_flickr8k.json").read_text())["images"]
    names = [next(i["filename"] for i in images if i["split"] == split) for split in ("train", "val")]
    (tmp_path / "list.txt").write_text("\n".join(str(root / "images" / name) for name in names))
    values = ["backbone=resnet18", f"weights={weights}", "workers=0"]
    assert "the weights lack" in refused(capsys, tmp_path / "list.txt", tmp_path / "out", *values)
    assert prepare(tmp_path / "list.txt", tmp_path / "out", *values, "stride=16", "dtype=float16") == 0
    record = Shards(tmp_path / "out")[names[0]]
    assert record.features.shape == (49, 256)
    assert 0.05 < float(record.features.mean()) < 0.3
    data = open_data("karpathy", {"root": str(root), "features": str(tmp_path / "out"), "missing": "drop"})
    assert sum(len(data.items(split)) for split in data.splits) == 2
    seen = data.visual(data.items("train")[0])
    assert seen.grid == (7, 7)
    assert data.picture(data.items("train")[0]) is not None
