"""Boxes, grids and distances."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import box_iou as torchvision_iou

from vlplatform import geometry


def _boxes(*shape: int, seed: int = 0) -> torch.Tensor:
    corners = torch.rand(*shape, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 10
    return torch.cat((corners.amin(dim=-2), corners.amax(dim=-2)), dim=-1)


def test_iou_is_torchvisions_per_item_of_a_batch() -> None:
    a, b = _boxes(3, 5), _boxes(3, 4, seed=1)
    got = geometry.box_iou(a, b)
    assert got.shape == (3, 5, 4)
    for k in range(3):
        torch.testing.assert_close(got[k], torchvision_iou(a[k], b[k]))


def test_iou_of_empty_and_inverted_boxes_is_zero_with_finite_gradients() -> None:
    boxes = torch.tensor([[1.0, 1, 1, 1], [5, 5, 2, 2], [0, 0, 4, 4]], requires_grad=True)
    iou = geometry.box_iou(boxes, boxes)
    torch.testing.assert_close(iou, torch.diag(torch.tensor([0.0, 0, 1])))
    iou.sum().backward()
    assert boxes.grad is not None
    assert boxes.grad.isfinite().all()


def test_grid_runs_row_by_row() -> None:
    assert geometry.grid(2, 3).tolist() == [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]


@pytest.mark.parametrize(
    ("metric", "length"),
    [("manhattan", lambda x, y: x + y), ("euclidean", math.hypot), ("chebyshev", max)],
)
def test_distances_on_a_grid(metric: geometry.Metric, length) -> None:
    points = geometry.grid(5, 4, dtype=torch.float64)
    got = geometry.distances(points, points, metric)
    for i, (xi, yi) in enumerate(points.tolist()):
        for j, (xj, yj) in enumerate(points.tolist()):
            assert got[i, j].item() == pytest.approx(length(abs(xi - xj), abs(yi - yj)), abs=1e-12)


@given(st.floats(0.1, 20), st.floats(-50, 50), st.floats(-50, 50))
@settings(max_examples=20, deadline=None)
def test_relative_boxes_ignore_scale_and_shift(scale: float, x: float, y: float) -> None:
    boxes = _boxes(6)
    moved = boxes * scale + torch.tensor([x, y, x, y], dtype=torch.float64)
    torch.testing.assert_close(geometry.relative_boxes(moved), geometry.relative_boxes(boxes), rtol=1e-6, atol=1e-6)


def test_relative_boxes_by_hand() -> None:
    boxes = torch.tensor([[0.0, 0, 2, 4], [6, 0, 10, 8]])
    got = geometry.relative_boxes(boxes)
    expected = [math.log(7 / 2), math.log(2 / 4), math.log(2 / 4), math.log(4 / 8)]  # sides of the query over the key's
    torch.testing.assert_close(got[0, 1], torch.tensor(expected))
    torch.testing.assert_close(got[0, 0], torch.tensor([math.log(1e-3), math.log(1e-3), 0, 0]))


def test_relative_boxes_of_an_empty_box_are_finite() -> None:
    assert geometry.relative_boxes(torch.tensor([[1.0, 1, 1, 1], [0, 0, 4, 4]])).isfinite().all()
