"""Segmentation scores against a slow reference, stored vectors, and what must hold for any labels."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from vlplatform.metrics.segmentation import METRICS, confusion, face_scores, scores

CLASSES = ("bg", "skin", "l_brow", "r_brow", "nose", "upper", "inner", "lower")
PARTS = {"brows": ["l_brow", "r_brow"], "nose": ["nose"], "mouth": ["upper", "inner", "lower"]}


def slow_confusion(prediction, target, num_classes, ignore):
    counts = [[0] * num_classes for _ in range(num_classes)]
    for p, t in zip(prediction.flatten().tolist(), target.flatten().tolist()):
        if t != ignore:
            counts[t][p] += 1
    return counts


def slow_f1(prediction, target, group, ignore=255):
    """F1 of a set of classes taken as one, pixel by pixel."""
    hit = given_ = true = 0
    for p, t in zip(prediction.flatten().tolist(), target.flatten().tolist()):
        if t != ignore:
            given_ += p in group
            true += t in group
            hit += p in group and t in group
    return 2 * hit / (given_ + true) if given_ + true else math.nan


@st.composite
def labelled(draw):
    num_classes = len(CLASSES)
    size = draw(st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)))
    count = math.prod(size)
    some = draw(st.lists(st.integers(0, num_classes - 1), min_size=1, max_size=num_classes, unique=True))
    prediction = draw(st.lists(st.sampled_from(some), min_size=count, max_size=count))
    target = draw(st.lists(st.sampled_from([*some[:3], num_classes - 1, 255]), min_size=count, max_size=count))
    return torch.tensor(prediction).reshape(size), torch.tensor(target).reshape(size)


@given(labelled())
@settings(max_examples=60, deadline=None)
def test_confusion_counts_pixels(pair):
    counts = confusion(*pair, len(CLASSES))
    assert counts.dtype == torch.int64
    assert counts.tolist() == slow_confusion(*pair, len(CLASSES), 255)


@given(labelled())
@settings(max_examples=60, deadline=None)
def test_confusion_adds_up_over_pictures(pair):
    whole = confusion(*pair, len(CLASSES))
    parts = sum(confusion(p.to(torch.uint8), t.to(torch.uint8), len(CLASSES)) for p, t in zip(*pair))
    assert torch.equal(whole, torch.as_tensor(parts))


@given(labelled())
@settings(max_examples=60, deadline=None)
def test_scores_against_the_definition(pair):
    prediction, target = pair
    score = scores(confusion(*pair, len(CLASSES)), CLASSES)
    counted = target != 255
    for class_id, name in enumerate(CLASSES):
        given_, true = (prediction == class_id) & counted, target == class_id
        union = int((given_ | true).sum())
        iou = int((given_ & true).sum()) / union if union else math.nan
        assert score.per_class["iou"][name] == pytest.approx(iou, nan_ok=True)
        assert score.per_class["f1"][name] == pytest.approx(slow_f1(*pair, {class_id}), nan_ok=True)
    known = [value for value in score.per_class["iou"].values() if not math.isnan(value)]
    assert score.values["miou"] == pytest.approx(sum(known) / len(known) if known else math.nan, nan_ok=True)
    right = ((prediction == target) & counted).sum() / counted.sum()
    assert score.values["pixel_accuracy"] == pytest.approx(right.item(), nan_ok=True)


@given(labelled())
@settings(max_examples=60, deadline=None)
def test_perfect_prediction_scores_one(pair):
    _, target = pair
    perfect = torch.where(target == 255, 0, target)
    score = scores(confusion(perfect, target, len(CLASSES)), CLASSES)
    for value in score.values.values():
        assert math.isnan(value) if bool((target == 255).all()) else value == 1


def test_unlabelled_pixels_may_hold_any_prediction():
    target = torch.tensor([[0, 255], [1, 255]])
    assert torch.equal(confusion(torch.tensor([[0, 1], [1, 0]]), target, 2), torch.eye(2, dtype=torch.int64))
    assert torch.equal(confusion(torch.tensor([[0, 99], [1, -1]]), target, 2), torch.eye(2, dtype=torch.int64))


def test_other_ignore_index():
    assert confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 7, 1]), 2, ignore_index=7).sum() == 2


@pytest.mark.parametrize(
    ("prediction", "target", "message"),
    [
        ([0, 2], [0, 1], "prediction has ids 0 … 2"),
        ([0, 1], [0, 3], "target has ids 0 … 3"),
        ([0, -1], [0, 1], "prediction has ids -1 … 0"),
        ([0, 1, 1], [0, 1], "differ in shape"),
    ],
)
def test_confusion_refuses_ids_out_of_range(prediction, target, message):
    with pytest.raises(ValueError, match=message):
        confusion(torch.tensor(prediction), torch.tensor(target), 2)


def test_stored_vectors(shared):
    golden = load_file(shared / "reference/golden/miou.safetensors")
    names = ("a", "b", "c", "d", "e")
    score = scores(confusion(golden["pred"], golden["gt"], 5), names)
    for table, key in (("iou", "IoU"), ("accuracy", "Acc"), ("f1", "Fscore")):
        got = torch.tensor([score.per_class[table][name] for name in names], dtype=torch.float64)
        torch.testing.assert_close(got, golden[key], rtol=0, atol=1e-6, equal_nan=True)
    assert score.values["pixel_accuracy"] == pytest.approx(golden["aAcc"].item(), abs=1e-6)
    assert score.values["miou"] == pytest.approx(golden["IoU"].nanmean().item(), abs=1e-6)
    assert math.isnan(score.per_class["iou"]["e"])


@given(labelled())
@settings(max_examples=60, deadline=None)
def test_face_scores_against_relabelled_pixels(pair):
    score = face_scores(confusion(*pair, len(CLASSES)), CLASSES, PARTS)
    groups = {part: {CLASSES.index(name) for name in names} for part, names in PARTS.items()}
    for part, group in groups.items():
        assert score.per_class["part_f1"][part] == pytest.approx(slow_f1(*pair, group), nan_ok=True)
    inner = set(itertools.chain(*groups.values()))
    assert score.values["overall_binary_f1"] == pytest.approx(slow_f1(*pair, inner), nan_ok=True)
    merged = [0, 0]
    prediction, target = pair
    for group in groups.values():
        for p, t in zip(prediction.flatten().tolist(), target.flatten().tolist()):
            if t != 255:
                merged[0] += p in group and t in group
                merged[1] += (p in group) + (t in group)
    pooled = 2 * merged[0] / merged[1] if merged[1] else math.nan
    assert score.values["overall_f1"] == pytest.approx(pooled, nan_ok=True)


def test_the_two_overall_readings_differ_where_parts_are_confused():
    nose, mouth, skin = CLASSES.index("nose"), CLASSES.index("inner"), CLASSES.index("skin")
    target = torch.tensor([nose, nose, mouth, skin])
    prediction = torch.tensor([nose, mouth, mouth, skin])
    values = face_scores(confusion(prediction, target, len(CLASSES)), CLASSES, PARTS).values
    assert values["overall_f1"] == pytest.approx(4 / 6)
    assert values["overall_binary_f1"] == 1


def test_mouth_is_merged_before_it_is_scored():
    upper, lower = CLASSES.index("upper"), CLASSES.index("lower")
    counts = confusion(torch.tensor([lower, upper]), torch.tensor([upper, lower]), len(CLASSES))
    assert scores(counts, CLASSES).per_class["f1"]["upper"] == 0
    assert face_scores(counts, CLASSES, PARTS).per_class["part_f1"]["mouth"] == 1


def test_face_parts_must_fit_the_classes():
    counts = torch.zeros(8, 8, dtype=torch.int64)
    with pytest.raises(ValueError, match="unknown classes: chin"):
        face_scores(counts, CLASSES, {"chin": ["chin"]})
    with pytest.raises(ValueError, match="two face parts"):
        face_scores(counts, CLASSES, {"a": ["nose"], "b": ["nose"]})


def test_every_value_is_described():
    counts = torch.eye(8, dtype=torch.int64)
    values = scores(counts, CLASSES).values | face_scores(counts, CLASSES, PARTS).values
    assert set(values) == set(METRICS)
