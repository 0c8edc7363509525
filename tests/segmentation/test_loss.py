"""The pixel loss against torch's own cross-entropy, class weights, hard examples, and how it splits."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vlp_segmentation.loss import OhemSettings, PixelLoss, median_frequency
from vlp_segmentation.readers import open_data
from vlplatform.errors import UserError


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    target = torch.randint(0, 5, (3, 9, 7))
    target[torch.rand(target.shape) < 0.2] = 255
    return torch.randn(3, 5, 9, 7, requires_grad=True), target, torch.randn(3, 5, 9, 7)


def test_equals_torch(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target, aux = batch
    loss = PixelLoss(255, OhemSettings())(logits, target, aux, 0.4)
    assert loss.count == (target != 255).sum()
    main, extra = (F.cross_entropy(x, target, ignore_index=255) for x in (logits, aux))
    torch.testing.assert_close(loss.total / loss.count, main + 0.4 * extra)
    torch.testing.assert_close(loss.parts["main"] / loss.count, main.detach())
    torch.testing.assert_close(loss.parts["aux"] / loss.count, extra)
    assert not loss.count.requires_grad
    assert not loss.parts["main"].requires_grad


def test_class_weights_equal_torch(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target, _ = batch
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0, 3.0])
    loss = PixelLoss(255, OhemSettings(), weights)(logits, target)
    torch.testing.assert_close(loss.total / loss.count, F.cross_entropy(logits, target, weights, ignore_index=255))


@pytest.mark.parametrize("ohem", [OhemSettings(), OhemSettings(use=True, threshold=0.3, min_kept=20)])
def test_a_split_batch_gives_the_whole_gradient(batch: tuple[Tensor, Tensor, Tensor], ohem: OhemSettings) -> None:
    logits, target, _ = batch
    whole = PixelLoss(255, ohem)(logits, target)
    (expected,) = torch.autograd.grad(whole.total / whole.count, logits)
    parts = [PixelLoss(255, ohem)(logits[i : i + 1], target[i : i + 1]) for i in range(3)]
    count = sum(part.count for part in parts)
    assert count == whole.count
    (gradient,) = torch.autograd.grad(sum(part.total for part in parts) / count, logits)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(("threshold", "min_kept"), [(0.3, 0), (0.3, 20), (0.9, 5), (0.01, 30)])
def test_hard_examples_are_those_of_the_definition(
    batch: tuple[Tensor, Tensor, Tensor], threshold: float, min_kept: int
) -> None:
    logits, target, _ = batch
    loss = PixelLoss(255, OhemSettings(use=True, threshold=threshold, min_kept=min_kept))(logits, target)
    total, count = 0.0, 0
    for image, labels in zip(logits.detach(), target):
        valid = labels != 255
        truth = image.softmax(0).permute(1, 2, 0)[valid].gather(1, labels[valid][:, None])[:, 0]
        ranked = truth.sort().values
        kept = ranked[: max(min_kept, int((ranked < threshold).sum()))]
        total, count = total - kept.log().sum().item(), count + len(kept)
    assert loss.count == count
    assert loss.total.item() == pytest.approx(total, rel=1e-5)


def test_hard_examples_of_an_image_with_few_labels() -> None:
    target = torch.full((1, 4, 4), 255)
    target[0, 0, :3] = 1
    loss = PixelLoss(255, OhemSettings(use=True, min_kept=100))(torch.zeros(1, 2, 4, 4), target)
    assert loss.count == 3
    assert loss.total.item() == pytest.approx(3 * math.log(2))


def test_without_a_label_the_sums_are_zero() -> None:
    logits = torch.randn(1, 2, 4, 4, requires_grad=True)
    loss = PixelLoss(255, OhemSettings())(logits, torch.full((1, 4, 4), 255))
    assert loss.total == loss.count == 0
    loss.total.backward()
    assert logits.grad is not None
    assert not logits.grad.any()


def test_float32_under_autocast(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target, _ = batch
    with torch.autocast("cpu", torch.bfloat16):
        loss = PixelLoss(255, OhemSettings())(logits.bfloat16(), target)
    assert loss.total.dtype == torch.float32
    expected = F.cross_entropy(logits.bfloat16().float(), target, ignore_index=255, reduction="sum")
    torch.testing.assert_close(loss.total, expected)


def test_median_frequency_by_hand() -> None:
    masks = [torch.tensor([[0, 0, 0, 1]]), torch.tensor([[0, 1, 1, 255]])]
    # class 0: 4 of 7 labelled pixels; class 1: 3 of 7; class 2: never. Median 3.5 of 7.
    torch.testing.assert_close(median_frequency(masks, 3, 255), torch.tensor([3.5 / 4, 3.5 / 3, 1.0]))
    with pytest.raises(UserError, match="no labelled pixel"):
        median_frequency([torch.full((2, 2), 255)], 3, 255)


@pytest.mark.shared
def test_median_frequency_of_camvid_is_near_the_published_one(shared: Path) -> None:
    data = open_data("camvid", {"root": str(shared / "data/camvid"), "scale": 0.25})
    records = data.records("train", train=False)
    weights = median_frequency((records[i]["mask"] for i in range(len(records))), 11, 255)
    assert data.class_weights is not None
    published = torch.tensor(data.class_weights)
    others = torch.arange(11) != data.classes.index("SignSymbol")  # whose published weight is of another label set
    torch.testing.assert_close(weights[others], published[others], rtol=0.25, atol=0)


@pytest.mark.parametrize("wrong", [{"threshold": 0.0}, {"threshold": 1.5}, {"min_kept": -1}])
def test_senseless_settings(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        OhemSettings(**wrong)  # type: ignore[arg-type]
