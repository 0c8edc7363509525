"""Pictures of labels and attention: shapes, colours, and sizes at the edge."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vlplatform.interpret.draw import (
    colour_labels,
    heat_overlay,
    label_overlay,
    mark,
    side_by_side,
    weight_matrix,
    with_legend,
)

PALETTE = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]


def grey(height: int, width: int, value: int = 128) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


@pytest.mark.parametrize("size", [(1, 1), (3, 50), (64, 48), (200, 7)])
@pytest.mark.parametrize("heat", [(1, 1), (5, 9), (300, 300)])
def test_heat_fits_any_image(size: tuple[int, int], heat: tuple[int, int]) -> None:
    drawn = heat_overlay(grey(*size), torch.rand(heat), (1.0, 0.0))
    assert drawn.shape == (*size, 3)
    assert drawn.dtype == np.uint8


def test_heat_below_two_percent_of_the_maximum_leaves_the_image() -> None:
    heat = torch.full((4, 4), 0.0019)
    heat[0, 0] = 0.1
    drawn = heat_overlay(grey(64, 64), heat)
    assert (drawn[40:, 40:] == 128).all()
    red, green, blue = drawn[2, 2].astype(int)
    assert red > 200, "viridis ends in yellow"
    assert green > 200
    assert blue < 100


def test_more_heat_is_brighter() -> None:
    drawn = heat_overlay(grey(8, 80, 0), torch.linspace(0.05, 1, 10)[None]).astype(float)
    luminance = drawn[4] @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(luminance[4:-4]) >= -1).all()


def test_no_heat_at_all_draws_nothing_and_bad_heat_is_refused() -> None:
    assert (heat_overlay(grey(9, 9), torch.zeros(3, 3)) == 128).all()
    for bad in (torch.rand(2, 3, 3), torch.tensor([[float("nan")]]), torch.tensor([[-1.0]])):
        with pytest.raises(ValueError, match="heat map"):
            heat_overlay(grey(9, 9), bad)


def test_mark_is_red_in_a_white_ring_at_the_point() -> None:
    drawn = mark(grey(200, 300, 0), (0.25, 0.5)).astype(int)
    assert tuple(drawn[50, 150]) == (220, 20, 30)
    assert tuple(drawn[50, 155]) == (255, 255, 255)
    assert (drawn[50, 165:] == 0).all()


def test_labels_take_their_colours() -> None:
    labels = torch.tensor([[0, 1], [2, 255]], dtype=torch.uint8)
    expected = np.array([[PALETTE[0], PALETTE[1]], [PALETTE[2], (0, 0, 0)]], np.uint8)
    np.testing.assert_array_equal(colour_labels(labels, PALETTE), expected)
    np.testing.assert_array_equal(colour_labels(labels.numpy().astype(int), PALETTE), expected)
    with pytest.raises(ValueError, match="label 2 has no colour"):
        colour_labels(labels, PALETTE[:2])
    with pytest.raises(ValueError, match=r"\(H, W\)"):
        colour_labels(labels[None], PALETTE)


def test_overlay_mixes_and_shows_ignored_pixels_bare() -> None:
    drawn = label_overlay(grey(1, 2, 100), np.array([[0, -1]]), PALETTE, alpha=0.5, ignore_index=-1)
    assert drawn.tolist() == [[[178, 50, 50], [100, 100, 100]]]
    with pytest.raises(ValueError, match="but its label map"):
        label_overlay(grey(2, 2), np.zeros((1, 2)), PALETTE)


@pytest.mark.parametrize("size", [(1, 1), (96, 96), (480, 640)])
def test_legend_keeps_the_picture_and_shows_every_colour(size: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    entries = [(f"class {c} – größer", colour) for c, colour in enumerate(PALETTE * 4)]
    drawn = with_legend(picture, entries)
    np.testing.assert_array_equal(drawn[: size[0], : size[1]], picture)
    below = drawn[size[0] :].reshape(-1, 3)
    assert all((below == colour).all(1).sum() >= 64 for colour in PALETTE)
    assert with_legend(picture, []) is picture


def test_legend_grows_with_the_picture() -> None:
    small, large = (with_legend(grey(s, s), [("road", PALETTE[0])]).shape[0] - s for s in (100, 1500))
    assert large > 2 * small


def test_side_by_side_scales_to_one_height_and_keeps_captions_apart() -> None:
    row = side_by_side({"a rather long caption": grey(10, 10, 0), "b": grey(40, 80, 0), "c": grey(20, 10, 0)})
    dark_columns = (row[-1] == 0).all(-1).sum()
    assert dark_columns == 40 + 80 + 20
    assert row.shape[0] == 40 + 24
    with pytest.raises(ValueError, match="no picture"):
        side_by_side({})


def test_weights_stand_at_their_rows_and_columns() -> None:
    """Row i and column j, brightest where a row's weight is greatest; the words at the left and above are whole."""
    weights = torch.tensor([[0.1, 0.4, 0.0], [0.02, 0.0, 0.01]])
    rows, columns = ["x", "a longer word"], ["I", "WWWW", "größer"]
    drawn = weight_matrix(weights, rows, columns, cell=20)
    height, width = drawn.shape[:2]
    left, top = width - 3 * 20, height - 2 * 20
    assert min(left, top) > 20
    cells = drawn[top:, left:].reshape(2, 20, 3, 20, 3)
    assert (cells == cells[:, :1, :, :1]).all(), "each cell is of one colour"
    colours = cells[:, 0, :, 0].astype(int)
    yellow, dark = (253, 231, 37), (68, 1, 84)
    assert tuple(colours[0, 1]) == tuple(colours[1, 0]) == yellow, "each row has its own maximum"
    assert tuple(colours[0, 2]) == tuple(colours[1, 1]) == dark
    ink = (drawn[:, :, 0].astype(int) < 128).astype(int)
    assert not ink[0].any(), "nothing is cut above"
    assert not ink[:, 0].any(), "nor on the left"
    beside = [ink[top + 20 * i : top + 20 * (i + 1), :left].sum() for i in range(2)]
    assert beside[1] > 5 * beside[0] > 0
    above = [ink[:top, left + 20 * j : left + 20 * (j + 1)] for j in range(3)]
    assert above[1].sum() > 3 * above[0].sum() > 0
    assert ink[:top, :left].sum() == 0


def test_columns_read_from_bottom_to_top() -> None:
    """A word above a column is the one on the left turned against the clock: its first letter is the lowest."""
    word = "Lj"
    drawn = weight_matrix(torch.ones(1, 1), [word], [word], cell=40)
    side = drawn.shape[0] - 40
    assert drawn.shape[:2] == (side + 40, side + 40)
    beside, above = drawn[side:, :side].astype(int), drawn[:side, side:].astype(int)
    ends = [(picture < 128).all(-1).nonzero() for picture in (np.rot90(beside), above)]
    for turned, plain in zip(*ends):
        assert abs(turned.min() - plain.min()) <= 8
        assert abs(turned.max() - plain.max()) <= 8
    assert np.abs(np.rot90(beside) - above).mean() < np.abs(np.rot90(beside, -1) - above).mean()


def test_no_weights_at_all_are_dark_and_bad_ones_are_refused() -> None:
    drawn = weight_matrix(torch.zeros(1, 2), ["a"], ["b", "c"])
    assert (drawn[-1, -1] == (68, 1, 84)).all()
    for bad in (torch.ones(2, 2), torch.tensor([[1.0, -1.0]]), torch.tensor([[float("nan"), 1.0]])):
        with pytest.raises(ValueError, match="weights"):
            weight_matrix(bad, ["a"], ["b", "c"])
    with pytest.raises(ValueError, match="do not fit"):
        weight_matrix(torch.zeros(0, 2), [], ["b", "c"])
