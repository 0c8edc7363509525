"""Draw label maps and attention on pictures: small functions from uint8 RGB arrays (H, W, 3) to the same."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

Picture = NDArray[np.uint8]
"""A picture, uint8 RGB (H, W, 3)."""
Colour = tuple[int, int, int]

TRUNCATION = 0.02
"""Attention below this share of the map's maximum is not drawn. The thesis (§3.4.5) cuts at the value 0.02; a
share of the maximum means the same for maps of any size."""

IGNORED: Colour = (0, 0, 0)
PAPER, INK = (255, 255, 255), (32, 33, 36)
SUPERSAMPLING = 4


def heat_overlay(image: Picture, heat: Tensor, point: tuple[float, float] | None = None) -> Picture:
    """Attention on an image: viridis colours (perceptually uniform), brighter where more is read.

    The heat is scaled to its own maximum, upsampled bilinearly, and hidden below ``TRUNCATION``.

    Args:
        image: (H, W, 3) uint8.
        heat: (h, w), non-negative, of any size.
        point: The query's (row, column) as fractions of the image, marked by a red dot in a white ring.

    Raises:
        ValueError: The heat is not two-dimensional, or not finite, or negative.
    """
    if heat.ndim != 2 or 0 in heat.shape:
        raise ValueError(f"a heat map must be (h, w), not {tuple(heat.shape)}")
    heat = heat.detach().float().cpu()
    if not bool(torch.isfinite(heat).all()) or bool((heat < 0).any()):
        raise ValueError("a heat map must be finite and not negative")
    height, width = image.shape[:2]
    share = heat / heat.max().clamp_min(torch.finfo(torch.float32).tiny)
    share = F.interpolate(share[None, None], (height, width), mode="bilinear", antialias=True)[0, 0].numpy()
    colours = _viridis()[np.clip(share * 255, 0, 255).astype(np.uint8)]
    ground = 0.5 * image + 0.5 * image.mean(axis=-1, keepdims=True)  # half drained, so that the heat stands out
    alpha = np.where(share < TRUNCATION, 0.0, 0.3 + 0.55 * share)[..., None]
    drawn = (ground * (1 - alpha) + colours * alpha).round().astype(np.uint8)
    return drawn if point is None else mark(drawn, point)


def weight_matrix(weights: Tensor, rows: Sequence[str], columns: Sequence[str], cell: int = 18) -> Picture:
    """Weights between two sequences of words as a matrix of viridis colours, each row scaled to its own maximum.

    Args:
        weights: (N, M), non-negative and finite: row i is where word i of ``rows`` looked.
        rows: N words, written on the left.
        columns: M words, written above, from bottom to top.
        cell: Pixels of a cell's side.

    Raises:
        ValueError: Another shape, or weights that are negative or not finite.
    """
    if weights.shape != (len(rows), len(columns)) or not weights.numel():
        raise ValueError(f"weights {tuple(weights.shape)} do not fit {len(rows)} rows and {len(columns)} columns")
    weights = weights.detach().float().cpu()
    if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
        raise ValueError("weights must be finite and not negative")
    share = weights / weights.amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    colours = _viridis()[(share * 255).byte().numpy()].repeat(cell, 0).repeat(cell, 1)
    font, gap = _font(max(8, round(0.7 * cell))), max(2, cell // 4)
    left = round(max(map(font.getlength, rows))) + 2 * gap
    top = round(max(map(font.getlength, columns))) + 2 * gap
    strip = Image.new("RGB", (top, colours.shape[1]), PAPER)  # the columns' words, lying; turned below
    pen = ImageDraw.Draw(strip)
    for i, word in enumerate(columns):
        pen.text((gap, (i + 0.5) * cell), word, fill=INK, font=font, anchor="lm")
    canvas = Image.new("RGB", (left + colours.shape[1], top + colours.shape[0]), PAPER)
    canvas.paste(strip.transpose(Image.Transpose.ROTATE_90), (left, 0))  # against the clock: the first stays left
    canvas.paste(Image.fromarray(colours), (left, top))
    pen = ImageDraw.Draw(canvas)
    for i, word in enumerate(rows):
        pen.text((left - gap, top + (i + 0.5) * cell), word, fill=INK, font=font, anchor="rm")
    return np.asarray(canvas)


def mark(image: Picture, point: tuple[float, float]) -> Picture:
    """``image`` with a red dot in a white ring at ``point``, its (row, column) as fractions of the image."""
    height, width = image.shape[:2]
    radius = max(2.0, min(height, width) / 50)
    row = min(point[0] * height, height - 1) * SUPERSAMPLING
    col = min(point[1] * width, width - 1) * SUPERSAMPLING
    # drawn large on a mask and shrunk: Pillow's circles have no smooth edges
    drawn = Image.fromarray(image)
    for r, colour in ((radius * 1.5, (255, 255, 255)), (radius, (220, 20, 30))):
        mask = Image.new("L", (width * SUPERSAMPLING, height * SUPERSAMPLING))
        reach = r * SUPERSAMPLING
        ImageDraw.Draw(mask).ellipse((col - reach, row - reach, col + reach, row + reach), fill=255)
        drawn.paste(colour, mask=mask.resize((width, height), Image.Resampling.BOX))
    return np.asarray(drawn)


def colour_labels(labels: Tensor | NDArray[Any], palette: Sequence[Colour], ignore_index: int = 255) -> Picture:
    """Class ids (H, W) as a picture (H, W, 3); ``palette[c]`` colours class c, ignored pixels are black.

    Raises:
        ValueError: The labels are not (H, W), or hold an id that the palette lacks.
    """
    ids = np.asarray(labels)
    if ids.ndim != 2:
        raise ValueError(f"a label map must be (H, W), not {ids.shape}")
    ids = ids.astype(np.int64)
    ignored = ids == ignore_index
    unknown = ~ignored & ((ids < 0) | (ids >= len(palette)))
    if unknown.any():
        raise ValueError(f"label {int(ids[unknown][0])} has no colour: the palette has {len(palette)}")
    table = np.asarray([*palette, IGNORED], dtype=np.uint8)
    return table[np.where(ignored, len(palette), ids)]


def label_overlay(
    image: Picture,
    labels: Tensor | NDArray[Any],
    palette: Sequence[Colour],
    alpha: float = 0.55,
    ignore_index: int = 255,
) -> Picture:
    """Class colours laid over the image (H, W, 3) with opacity ``alpha``; ignored pixels show the image itself.

    Raises:
        ValueError: As :func:`colour_labels`, or image and labels differ in size.
    """
    colours = colour_labels(labels, palette, ignore_index)
    if colours.shape != image.shape:
        raise ValueError(f"the image is {image.shape[:2]} but its label map is {colours.shape[:2]}")
    opacity = np.where(np.asarray(labels) == ignore_index, 0.0, alpha)[..., None]
    return (image * (1 - opacity) + colours * opacity).round().astype(np.uint8)


def with_legend(picture: Picture, entries: Sequence[tuple[str, Colour]]) -> Picture:
    """``picture`` with a legend below it: a swatch and a name per entry, in as many rows as are needed.

    The picture's own pixels stay as they are; the paper grows wider where a name needs it.
    """
    if not entries:
        return picture
    height, width = picture.shape[:2]
    size = _font_size(height, width)
    font, pad = _font(size), size // 2
    widths = [round(font.getlength(name)) + size + 3 * pad for name, _ in entries]
    width = max(width, max(widths) + pad)
    spots, x, y = [], pad, height + pad
    for entry in widths:
        if x > pad and x + entry > width:
            x, y = pad, y + round(1.6 * size)
        spots.append((x, y))
        x += entry
    canvas = Image.new("RGB", (width, y + size + pad), PAPER)
    canvas.paste(Image.fromarray(picture), (0, 0))
    pen = ImageDraw.Draw(canvas)
    for (name, colour), (x, y) in zip(entries, spots):
        pen.rectangle((x, y, x + size - 1, y + size - 1), fill=tuple(colour), outline=INK)
        pen.text((x + size + pad, y + size / 2), name, fill=INK, font=font, anchor="lm")
    return np.asarray(canvas)


def side_by_side(pictures: Mapping[str, Picture]) -> Picture:
    """The pictures in a row at the height of the tallest, each under its caption.

    Raises:
        ValueError: There is no picture.
    """
    if not pictures:
        raise ValueError("there is no picture to lay side by side")
    height = max(p.shape[0] for p in pictures.values())
    scaled = {caption: _to_height(picture, height) for caption, picture in pictures.items()}
    size = max(_font_size(picture.height, picture.width) for picture in scaled.values())
    font, gap = _font(size), size // 2
    columns = [max(p.width, round(font.getlength(caption)) + gap) for caption, p in scaled.items()]
    strip = 2 * size
    canvas = Image.new("RGB", (sum(columns) + gap * (len(columns) - 1), height + strip), PAPER)
    pen, x = ImageDraw.Draw(canvas), 0
    for (caption, picture), column in zip(scaled.items(), columns):
        pen.text((x + column / 2, strip / 2), caption, fill=INK, font=font, anchor="mm")
        canvas.paste(picture, (x + (column - picture.width) // 2, strip))
        x += column + gap
    return np.asarray(canvas)


def _to_height(picture: Picture, height: int) -> Image.Image:
    """Enlarged by repeating pixels, which keeps label maps crisp."""
    image = Image.fromarray(picture)
    if image.height == height:
        return image
    return image.resize((max(1, round(image.width * height / image.height)), height), Image.Resampling.NEAREST)


def _font_size(height: int, width: int) -> int:
    return max(12, round(min(height, width) / 30))


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which knows most alphabets; it comes with Matplotlib."""
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(io.BytesIO(path.read_bytes()), size)


@functools.cache
def _viridis() -> Picture:
    """The colour map as a table (256, 3)."""
    import matplotlib

    return (matplotlib.colormaps["viridis"](np.arange(256))[:, :3] * 255).round().astype(np.uint8)
