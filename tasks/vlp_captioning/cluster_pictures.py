"""Clusters of an image's vectors drawn on the image (ACF, figure 5)."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from vlp_captioning.clusters import Labels
from vlplatform.interpret.draw import Picture


def over_cells(picture: Picture, labels: Labels) -> Picture:
    """Clusters of several cells (rows, columns) in colours, all clusters with white borders."""
    height, width = picture.shape[:2]
    row, column = (np.arange(size) * cells // size for size, cells in zip((height, width), labels.shape))
    wide = labels[row[:, None], column]
    drawn = 0.5 * picture + 0.5 * picture.mean(axis=-1, keepdims=True)
    for label, colour in _colours(labels).items():
        drawn[wide == label] = 0.5 * drawn[wide == label] + 0.5 * np.asarray(colour)
    border = np.zeros((height, width), dtype=bool)
    down, right = wide[1:] != wide[:-1], wide[:, 1:] != wide[:, :-1]
    border[1:] |= down
    border[:-1] |= down
    border[:, 1:] |= right
    border[:, :-1] |= right
    drawn[border] = 255
    return drawn.round().astype(np.uint8)


def over_boxes(picture: Picture, labels: Labels, boxes: Sequence[tuple[int, int, int, int]]) -> Picture:
    """Boxes in the colours of their clusters, those that are alone in thin white."""
    drawn = Image.fromarray((0.5 * picture + 0.5 * picture.mean(axis=-1, keepdims=True)).round().astype(np.uint8))
    pen, colours = ImageDraw.Draw(drawn), _colours(labels)
    for label, (left, top, right, bottom) in zip(labels.tolist(), boxes):
        colour = colours.get(label)
        corners = (left, top, max(left, right - 1), max(top, bottom - 1))
        pen.rectangle(corners, outline=colour or (255, 255, 255), width=1 if colour is None else 3)
    return np.asarray(drawn)


def _colours(labels: Labels) -> dict[int, tuple[int, int, int]]:
    """A colour for each cluster of several, by its first token: it stays as the cluster grows over the layers."""
    several, counts = np.unique(labels, return_counts=True)
    colours = {}
    for label in several[counts > 1].tolist():
        shades = colorsys.hsv_to_rgb(label * 0.618034 % 1, 0.85, 0.95)  # the golden ratio: neighbours are far apart
        colours[label] = (round(255 * shades[0]), round(255 * shades[1]), round(255 * shades[2]))
    return colours


def described(labels: Labels) -> str:
    """How many clusters of several there are, and how many tokens are alone."""
    _, counts = np.unique(labels, return_counts=True)
    several, alone = int((counts > 1).sum()), int((counts == 1).sum())
    return f"{several} {'cluster' if several == 1 else 'clusters'}, {alone} alone"
