"""Sliding windows, scales and mirror images at test time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vlp_segmentation.testing import InferenceSettings, probabilities, swapped
from vlplatform import settings
from vlplatform.errors import UserError

IMAGE = torch.rand(2, 3, 23, 31, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(3, 4, 3, padding=1).requires_grad_(False)


def pointwise(image: Tensor) -> Tensor:
    """Logits that depend on each pixel alone, and a class for the left or right half."""
    return torch.cat([image, image.sum(1, keepdim=True)], dim=1) * 3


def test_one_pass_is_the_softmax(network: nn.Module) -> None:
    torch.testing.assert_close(probabilities(network, IMAGE, InferenceSettings()), network(IMAGE).softmax(1))


@pytest.mark.parametrize("crop", [(23, 31), (40, 50), (23, 64)])
def test_a_window_as_large_as_the_image_changes_nothing(network: nn.Module, crop: tuple[int, int]) -> None:
    slid = probabilities(network, IMAGE, InferenceSettings(mode="slide", crop=crop))
    torch.testing.assert_close(slid, probabilities(network, IMAGE, InferenceSettings()))


@pytest.mark.parametrize(("crop", "stride"), [((8, 8), (8, 8)), ((9, 10), (4, 7)), ((8, 8), None), ((40, 8), (40, 5))])
def test_windows_cover_every_pixel_and_count_it_once(crop: Any, stride: Any) -> None:
    slid = probabilities(pointwise, IMAGE, InferenceSettings(mode="slide", crop=crop, stride=stride))
    torch.testing.assert_close(slid, pointwise(IMAGE).softmax(1))


def test_overlapping_windows_average_their_logits() -> None:
    calls: list[float] = []

    def numbered(image: Tensor) -> Tensor:
        calls.append(float(len(calls)))
        return torch.full((1, 1, *image.shape[-2:]), calls[-1])

    image = torch.zeros(1, 3, 4, 6)
    probabilities(
        lambda x: torch.cat([numbered(x), torch.zeros(1, 1, *x.shape[-2:])], dim=1),
        image,
        InferenceSettings(mode="slide", crop=(4, 4), stride=(4, 2)),
    )
    assert calls == [0.0, 1.0]
    calls.clear()
    result = probabilities(
        lambda x: torch.cat([numbered(x), torch.zeros(1, 1, *x.shape[-2:])], dim=1),
        image,
        InferenceSettings(mode="slide", crop=(4, 4), stride=(4, 2)),
    )
    logits = torch.tensor([0.0, 0.0, 0.5, 0.5, 1.0, 1.0])  # the middle columns lie in both windows
    torch.testing.assert_close(result[0, 0, 0], logits.sigmoid())


def test_mirror_of_a_symmetric_network_changes_nothing() -> None:
    once, both = (probabilities(pointwise, IMAGE, InferenceSettings(flip=flip)) for flip in (False, True))
    torch.testing.assert_close(once, both)


def test_mirror_swaps_left_and_right_classes() -> None:
    def sides(image: Tensor) -> Tensor:
        """Class 1 on the left half, class 2 on the right half, of any picture."""
        logits = torch.zeros(len(image), 3, *image.shape[-2:])
        middle = image.shape[-1] // 2
        logits[:, 1, :, :middle] = logits[:, 2, :, middle:] = 5.0
        return logits

    image = torch.rand(1, 3, 4, 8)
    once = probabilities(sides, image, InferenceSettings())
    torch.testing.assert_close(probabilities(sides, image, InferenceSettings(flip=True), [(1, 2)]), once)
    assert not torch.allclose(probabilities(sides, image, InferenceSettings(flip=True)), once)
    assert swapped(4, [(1, 3)]) == [0, 3, 2, 1]


def test_scales_average_probabilities(network: nn.Module) -> None:
    both = probabilities(network, IMAGE, InferenceSettings(scales=(0.5, 1.0)))
    small = F.interpolate(IMAGE, size=(12, 16), mode="bilinear", align_corners=False)
    resized = F.interpolate(network(small), size=(23, 31), mode="bilinear", align_corners=False)
    torch.testing.assert_close(both, (resized.softmax(1) + network(IMAGE).softmax(1)) / 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "slide"},
        {"crop": [8, 8]},
        {"mode": "slide", "crop": [8, 8], "stride": [9, 8]},
        {"mode": "slide", "crop": [0, 8]},
        {"scales": []},
        {"scales": [1.0, -1.0]},
        {"mode": "patch"},
        {"crop": 8, "mode": "slide"},
    ],
)
def test_senseless_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"task\.test"):
        settings.parse(InferenceSettings, wrong, "task.test")
