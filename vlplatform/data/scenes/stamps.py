"""Stamps: the exact outline of each shape at each size and turn, computed once and then only copied."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from vlplatform.data.scenes.textures import COS, SCALE, SIN

_SYMMETRY = {"circle": 1, "ring": 1, "square": 6, "cross": 6, "triangle": 8, "star": 24}  # distinct turns
_SUB = 4  # samples per pixel and axis


@dataclass(frozen=True)
class Stamp:
    """A shape's outline in a square window of side 2·extent + 1 around its middle pixel.

    Attributes:
        coverage: Part of each pixel that the shape covers, in 1/64, (S, S) int16.
        mask: Pixels that count as the shape: at least half covered, (S, S) bool.
        shade: Brightening towards the upper left, in grey levels, (S, S) int16.
    """

    coverage: np.ndarray
    mask: np.ndarray
    shade: np.ndarray


def stamp(shape: str, extent: int, turn: int) -> Stamp:
    """The stamp of a shape that fits a circle of radius ``extent`` pixels, turned by ``turn`` × 15°."""
    return _stamp(shape, extent, turn % _SYMMETRY[shape])


@functools.cache
def _stamp(shape: str, extent: int, turn: int) -> Stamp:
    side = 2 * extent + 1
    axis = (2 * np.arange(side * _SUB, dtype=np.int64) - side * _SUB + 1) * SCALE // (2 * _SUB)  # 1/4096 pixel
    x, y = axis[None, :], axis[:, None]
    u, v = (x * COS[turn] + y * SIN[turn]) // SCALE, (y * COS[turn] - x * SIN[turn]) // SCALE
    inside = _inside(shape, u, v, extent * SCALE)
    covered = inside.reshape(side, _SUB, side, _SUB).sum(axis=(1, 3))
    rows, columns = np.mgrid[-extent : extent + 1, -extent : extent + 1]
    shade = -(rows + columns) * 14 // extent
    coverage = covered * (64 // _SUB**2)
    return Stamp(coverage.astype(np.int16), coverage >= 32, shade.astype(np.int16))


def _inside(shape: str, u: np.ndarray, v: np.ndarray, r: int) -> np.ndarray:
    """Which points (u, v) lie in a shape of circumradius ``r``, all in the same unit."""
    if shape == "circle":
        return u * u + v * v <= r * r
    if shape == "ring":
        distance = u * u + v * v
        return (distance <= r * r) & (100 * distance >= 27 * r * r)
    if shape == "square":
        return np.maximum(abs(u), abs(v)) * 1000 <= 707 * r
    if shape == "cross":
        return (np.minimum(abs(u), abs(v)) * 100 <= 31 * r) & (np.maximum(abs(u), abs(v)) * 100 <= 94 * r)
    if shape == "triangle":
        return _half_planes(u, v, 3, r * 500 // 1000) == 3
    # A five-pointed star: the points on the inner side of at least four of the five lines of a pentagram.
    return _half_planes(u, v, 5, r * 309 // 1000) >= 4


def _half_planes(u: np.ndarray, v: np.ndarray, count: int, distance: int) -> np.ndarray:
    """Of ``count`` lines at a distance from the middle, evenly turned: how many have the point on the inner side."""
    total = np.zeros(np.broadcast_shapes(u.shape, v.shape), np.int64)
    for k in range(count):
        angle = 2 * math.pi * k / count + math.pi / 2
        across, down = round(SCALE * math.cos(angle)), round(SCALE * math.sin(angle))
        total += u * across + v * down <= distance * SCALE
    return total
