"""The task as the engine uses it: batches, loss, groups, predictions, scores, pictures, and settings that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from vlp_segmentation import plugin
from vlp_segmentation.task import SegmentationTask
from vlplatform.errors import UserError
from vlplatform.hub.card import model_card

CLASSES = ("ground", "left", "right")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five pictures of two sizes; the class can be seen from the colour."""
    rng = np.random.default_rng(0)
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    for split, count in (("train", 3), ("val", 2)):
        names = [f"{split}{i}" for i in range(count)]
        (tmp_path / f"{split}.txt").write_text("\n".join(names))
        for i, name in enumerate(names):
            size = (40, 48) if i else (36, 44)
            mask = rng.integers(0, 3, size).astype(np.uint8)
            image = np.eye(3, dtype=np.uint8)[mask] * 200
            mask[:2] = 255
            Image.fromarray(image).save(tmp_path / "images" / f"{name}.png")
            Image.fromarray(mask).save(tmp_path / "masks" / f"{name}.png")
    return tmp_path


def sections(root: Path, **changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    start: dict[str, dict[str, Any]] = {
        "task": {"name": "segmentation"},
        "attn": {"name": "crisscross"},
        "model": {"name": "auto", "backbone": "resnet18", "stages": 3, "channels": 16, "pretrained": False},
        "data": {"name": "folder", "root": str(root), "augment": {"crop": [32, 32]}},
    }
    return {
        group: {key: value for key, value in {**section, **changes.get(group, {})}.items() if value is not None}
        for group, section in start.items()
    }


def build(root: Path, **changes: dict[str, Any]) -> SegmentationTask:
    task = plugin.build(sections(root, **changes))
    assert isinstance(task, SegmentationTask)
    return task


def test_what_it_says_of_its_data_makes_a_card(root: Path) -> None:
    described = build(root, data={"citation": "Me: My pictures, 2026", "licence": "cc-by-4.0"}).describe()
    card = model_card(task="segmentation", card={"scores": {"miou": 0.5}, **described})
    assert "```\nMe: My pictures, 2026\n```" in card
    assert "- name: folder" in card
    assert "license: cc-by-4.0" in card
    assert "metrics:\n    - type: miou\n      value: 0.5" in card  # the result is tied to the data set


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"pretrained": False}, "resnet18 from random weights"),
        ({"pretrained": True}, "timm/resnet18.tv_in1k on the hub (ImageNet); its licence is not recorded"),
        (
            {"pretrained": True, "weights": "/home/me/r18.safetensors"},
            "a local file, r18.safetensors; its licence is unk",
        ),
    ],
    ids=["random", "hub", "file"],
)
def test_card_says_where_the_weights_came_from_and_names_no_folder(
    root: Path, model: dict[str, Any], words: str
) -> None:
    card = model_card(task="segmentation", card=build(root, model=model).describe())
    section = card.partition("## Initial weights")[2].partition("##")[0]
    assert words in section
    assert "/home/me" not in card


def test_class_weights_are_damped(root: Path) -> None:
    weights = build(root, task={"class_weights": [4.0, 1.0, 0.25], "class_weights_power": 0.5}).pixel_loss.class_weights
    assert weights is not None
    assert weights.tolist() == [2.0, 1.0, 0.5]


def test_auto_chooses_the_model_by_socket(root: Path) -> None:
    task = build(root)
    assert task.sections["model"]["name"] == "context"
    assert task.describe()["model"] == "context"
    local = build(root, attn={"name": "bilateral"})
    assert local.sections["model"]["name"] == "deeplabv3plus"
    assert local.sections["attn"]["name"] == "local_bilateral"
    assert local.build_model().settings()["attn"]["name"] == "local_bilateral"
    json.dumps(local.sections)
    again = plugin.build(local.sections)  # what a run saves builds the same task
    assert isinstance(again, SegmentationTask)
    assert again.sections == local.sections


def test_family_name_means_the_model_s_socket(root: Path) -> None:
    assert build(root, attn={"name": "bilateral"}, model={"name": "context"}).sections["attn"]["name"] == "bilateral_cc"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn": {"name": "local_content"}, "model": {"name": "context"}}, "does not fit the context socket"),
        ({"attn": {"name": "crisscros"}}, "did you mean 'crisscross'"),
        ({"attn": {"reduktion": 8}}, "did you mean 'reduction'"),
        ({"attn": {"reduction": "many"}}, r"attn\.reduction='many' has the wrong type"),
        ({"attn": {"name": "conv", "out_dim": 8}}, r"attn\.out_dim is set by"),
        ({"model": {"name": "segnet"}}, "model=segnet is not a segmentation model"),
        ({"model": {"chanels": 8}}, "did you mean 'channels'"),
        ({"model": {"backbone": "resnet19"}}, "did you mean 'resnet18'"),
        ({"model": {"aux_weight": -1.0}}, "aux_weight"),
        ({"task": {"class_weights": [1.0, 2.0]}}, "each of the 3 classes"),
        ({"task": {"class_weights": "published"}}, "no published class weights"),
        ({"task": {"class_weights": "ballanced"}}, r"task\.class_weights"),
        ({"task": {"ohem": {"treshold": 0.5}}}, "did you mean 'threshold'"),
        ({"task": {"test": {"mode": "slide"}}}, "needs crop"),
        ({"task": {"backbone_lr": -1.0}}, "backbone_lr"),
        ({"data": {"name": "foldr"}}, "did you mean 'folder'"),
    ],
)
def test_faulty_settings_stop_before_any_work(root: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(root, **changes)


def test_training_batch_and_loss(root: Path) -> None:
    torch.manual_seed(0)
    task = build(root)
    records = task.records("train")
    batch = task.collate([records[i] for i in range(3)])
    assert batch["image"].shape == (3, 3, 32, 32)
    assert batch["mask"].shape == (3, 32, 32)
    assert batch["ids"] == ["train0", "train1", "train2"]
    model = task.build_model().train()
    loss = task.loss(model, batch)
    outputs = model.eval(), model.train()(batch["image"])
    assert loss.count == (batch["mask"] != 255).sum()
    main = F.cross_entropy(outputs[1].logits, batch["mask"], ignore_index=255).item()
    # dropout differs between the passes, and batch statistics do not
    assert (loss.parts["main"] / loss.count).item() == pytest.approx(main, rel=0.2)
    torch.testing.assert_close(loss.total, loss.parts["main"] + 0.4 * loss.parts["aux"])
    loss.total.backward()


def test_a_few_steps_learn_one_batch(root: Path) -> None:
    torch.manual_seed(0)
    task = build(root, attn={"name": "conv"}, model={"name": "unet", "channels": None, "dropout": 0.0})
    model = task.build_model().train()
    records = task.records("train")
    batch = task.collate([records[i] for i in range(3)])
    batch["mask"][:, :, :16], batch["mask"][:, :, 16:] = 1, 2
    optimiser = torch.optim.AdamW(task.parameter_groups(model, 1e-3, 0.0))
    losses = []
    for _ in range(10):
        loss = task.loss(model, batch)
        losses.append((loss.total / loss.count).item())
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
    assert losses[-1] < 0.5 * losses[0], losses


def test_balanced_weights_come_from_the_training_masks(root: Path) -> None:
    task = build(root, task={"class_weights": "balanced"})
    weights = task.pixel_loss.class_weights
    assert weights is not None
    assert weights.shape == (3,)
    assert weights.median() == 1.0


def test_unequal_pictures_in_training_are_refused(root: Path) -> None:
    task = build(root)
    batch = task.collate([task.records("val")[i] for i in range(2)])
    with pytest.raises(UserError, match=r"data\.augment\.crop"):
        task.loss(task.build_model(), batch)


def test_parameter_groups(root: Path) -> None:
    task = build(root, model={"freeze": 1})
    model = task.build_model()
    groups = {group["name"]: group for group in task.parameter_groups(model, 0.1, 1e-4)}
    assert set(groups) == {"backbone", "backbone (no decay)", "head", "head (no decay)"}
    assert {group["weight_decay"] for name, group in groups.items() if "no decay" in name} == {0.0}
    assert groups["head"]["weight_decay"] == 1e-4
    assert {group["lr"] for group in groups.values()} == {0.1}
    listed = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    slow = build(root, task={"backbone_lr": 0.5, "decay_norms": True}, model={"pretrained": True})
    rates = {group["name"]: group["lr"] for group in slow.parameter_groups(model, 0.1, 1e-4)}
    assert rates == {"backbone": 0.05, "head": 0.1}
    default = build(root, model={"pretrained": True}).parameter_groups(model, 0.1, 1e-4)
    assert default[0]["lr"] == pytest.approx(0.01)


def test_predictions_are_scored_over_the_split(root: Path) -> None:
    torch.manual_seed(0)
    task = build(root)
    model = task.build_model().eval()
    records = task.records("val")
    batch = task.collate([records[i] for i in range(2)])
    assert isinstance(batch["image"], list)
    with torch.no_grad():
        together = task.predict(model, batch)
        apart = [p for i in range(2) for p in task.predict(model, task.collate([records[i]]))]
        assert [p["id"] for p in together] == ["val0", "val1"]
        hits = pixels = 0
        for i in range(2):
            labels = model(records[i]["image"][None]).argmax(1)[0]
            counted = records[i]["mask"] != 255
            hits += int((labels == records[i]["mask"])[counted].sum())
            pixels += int(counted.sum())
        mixed = task.predict(model, task.collate([records[0], records[1], records[0]]))  # sizes a, b, a
        assert [p["id"] for p in mixed] == ["val0", "val1", "val0"]
        assert all(torch.equal(p["cells"], q["cells"]) for p, q in zip(mixed, [*together, together[0]]))
    score = task.score(together)
    assert score.values == pytest.approx(task.score(apart[::-1]).values, nan_ok=True)
    assert score.values["pixel_accuracy"] == pytest.approx(hits / pixels)
    assert set(score.per_class["iou"]) == set(CLASSES)


def test_face_parts_are_scored(root: Path) -> None:
    task = build(root, data={"parts": {"sides": ["left", "right"]}, "flip_pairs": [["left", "right"]]})
    assert task.best_metric == "mean_f1"
    cells = torch.tensor([[0, 10], [4, 5], [5, 5], [8, 3]])  # 5 of the left pixels taken for right ones
    score = task.score([{"id": "a", "cells": cells}])
    assert score.per_class["part_f1"]["sides"] == 1.0
    assert score.values["pixel_accuracy"] == pytest.approx(18 / 23)
    assert task.best_metric in score.values


def test_model_of_other_classes_is_refused(root: Path) -> None:
    task = build(root)
    model = task.build_model()
    (root / "classes.txt").write_text("ground\nwest\neast\nsky")
    other = build(root)
    with pytest.raises(UserError, match=r"3 classes apart .* has 4 \(ground, west, east, …\)"):
        other.predict(model, other.collate([other.records("val")[0]]))


def test_pictures_for_the_report(root: Path) -> None:
    task = build(root)
    model = task.build_model().eval()
    shown = task.show(model, "val", 5)
    assert [exhibit.id for exhibit in shown] == ["val0", "val1"]
    for exhibit in shown:
        assert list(exhibit.images) == ["input", "truth", "prediction"]
        assert len({image.shape for image in exhibit.images.values()}) == 1
        assert set(exhibit.legend) <= set(CLASSES)
    assert (shown[0].images["truth"][:2] == 0).all()
    rows = task.attention_exhibits(model, "val")
    assert len(rows) == 3
    assert {"query", "content"} <= set(rows[0].images)


def test_the_splits(root: Path) -> None:
    task = build(root)
    assert len(task.records("train")) == 3
    with pytest.raises(UserError, match="test"):
        task.records("test")


def test_no_weights_are_looked_for_when_a_checkpoint_will_fill_the_model(root: Path) -> None:
    task = build(root, model={"pretrained": True, "weights": str(root / "gone.safetensors")})
    task.build_model(pretrained=False)
    with pytest.raises(UserError, match=r"gone\.safetensors does not exist"):
        task.build_model()


def test_the_plugin_lists_what_it_has() -> None:
    assert set(plugin.models()) == {"deeplabv3plus", "unet", "context"}
    assert {"scenes", "camvid", "folder"} <= set(plugin.data_sets())
    assert {"miou", "pixel_accuracy"} <= set(plugin.metrics())
