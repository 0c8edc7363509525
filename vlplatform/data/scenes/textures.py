"""Patterns, light and noise from which pictures are made: tables computed once per picture size.

Every table is larger than a picture, which takes a window at a random place: a new look at no cost. All is
whole-number arithmetic, so that pictures are the same everywhere.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from vlplatform.data.scenes.dice import Dice

STEPS = 24
SCALE = 4096
COS: tuple[int, ...] = tuple(round(SCALE * math.cos(2 * math.pi * k / STEPS)) for k in range(STEPS))
SIN: tuple[int, ...] = tuple(round(SCALE * math.sin(2 * math.pi * k / STEPS)) for k in range(STEPS))
"""Cosine and sine of multiples of 15°, in 1/4096."""

_NOISE_KEY = 20_01


def _wave(phase: np.ndarray, period: int) -> np.ndarray:
    """A smooth wave of the given period, −128 … 127 (a triangle wave through t²(3 − 2t))."""
    t = np.abs((phase % period) * 512 // period - 256)  # 256 … 0 … 256
    return t * t * (768 - 2 * t) // 65536 - 128


def _turned(side: int, turn: int) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (side, side) in 1/16 pixel along two axes turned by ``turn`` × 15°."""
    y, x = np.mgrid[0:side, 0:side].astype(np.int64) * 16
    return (x * COS[turn] + y * SIN[turn]) // SCALE, (y * COS[turn] - x * SIN[turn]) // SCALE


def _waves(side: int, turn: int, period: int) -> np.ndarray:
    u, v = _turned(side, turn)
    return _wave(v + _wave(u, 5 * period) * period // 400, period)


def _tiles(side: int, turn: int, period: int) -> np.ndarray:
    u, v = _turned(side, turn)
    joint = np.minimum(u % period, v % period) < max(period // 7, 16)
    tile = np.where((u // period + v // period) % 2 == 0, 96, -40)
    return np.where(joint, -128, tile)


def _sand(side: int, turn: int, period: int) -> np.ndarray:
    grains = Dice(_NOISE_KEY, turn, period).bytes(side + 1, side + 1).astype(np.int64) - 128
    soft = (2 * grains[1:, 1:] + grains[:-1, 1:] + grains[1:, :-1]) // 3
    u, v = _turned(side, turn)
    return np.clip(soft * 5 // 4 + _wave(u + v // 3, 3 * period) // 6, -128, 127)


def _stripes(side: int, turn: int, period: int) -> np.ndarray:
    return np.clip(3 * _wave(_turned(side, turn)[0], period), -128, 127)


def _dots(side: int, turn: int, period: int) -> np.ndarray:
    u, v = _turned(side, turn)
    du, dv = u % period - period // 2, v % period - period // 2
    distance = du * du + dv * dv
    return np.clip((period * period // 9 - distance) * 900 // (period * period), -128, 127)


_MAKERS = {"waves": _waves, "tiles": _tiles, "sand": _sand, "striped": _stripes, "dotted": _dots}
_PERIODS = {  # per variant, in 1/16 pixel of a 96-pixel picture
    "waves": (112, 144, 176, 224),
    "tiles": (144, 176, 208, 256),
    "sand": (160, 224, 288, 352),
    "striped": (84, 96, 108, 120),
    "dotted": (88, 96, 104, 112),
}
VARIANTS = 16
"""Variants of each pattern: four turns of each period."""


@functools.cache
def pattern(name: str, variant: int, size: int) -> np.ndarray:
    """One variant of a pattern for pictures of ``size`` pixels: (2·size, 2·size) int16, −128 … 127."""
    turn = (0, 3, 9, 11)[variant % 4] if name != "tiles" else (0, 1, 3, 5)[variant % 4]
    period = max(_PERIODS[name][variant // 4] * size // 96, 48)
    return _MAKERS[name](2 * size, turn, period).astype(np.int16)


@functools.cache
def light(turn: int, size: int) -> np.ndarray:
    """A slanting light over the picture: factors in 1/64, (size, size) int16, about 52 … 76."""
    u, _ = _turned(size, turn)
    middle = u[size // 2, size // 2]
    return (64 + (u - middle) * 17 // (16 * size)).astype(np.int16)


@functools.cache
def shore(turn: int, size: int) -> np.ndarray:
    """Distance from a gently winding line through the middle, in 1/16 pixel: (size, size) int16, signed."""
    u, v = _turned(size, turn)
    winding = _wave(v, 16 * size * 2 // 3) * size // 192  # up to a twenty-fourth of the picture
    return (u - u[size // 2, size // 2] + winding).astype(np.int16)


@functools.cache
def noise(size: int, strength: int) -> np.ndarray:
    """Pixel noise of mean 0 per channel: (3, 2·size, 2·size) int16, −strength … strength, peaked at 0."""
    drawn = Dice(_NOISE_KEY).bytes(2, 3, 2 * size, 2 * size).astype(np.int32)
    return ((drawn[0] - drawn[1]) * strength // 255).astype(np.int16)
