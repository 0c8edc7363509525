"""Feature vectors like a detector's: what a thing looks like, never where it is.

A thing's vector is the sum of a fixed code for its shape, colour and texture and of a code scaled by its size,
plus noise keyed by the scene and the thing's number. Its place enters nowhere, so a model that needs to know it
must be told by the boxes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from vlplatform.data.scenes.dice import Dice
from vlplatform.data.scenes.world import COLOURS, FEATURES, SHAPES, TEXTURES, ScenesSettings, Thing

_CODE_KEY = 20_02


def features(things: Sequence[Thing], seed: int, index: int, settings: ScenesSettings) -> np.ndarray:
    """Feature vectors of a scene's things: (N, D) float32 with D = ``settings.feature_dim``, about −3 … 3."""
    codes, dim = _codes(settings.feature_dim), settings.feature_dim
    drawn = Dice(seed, index, FEATURES).bytes(len(things), 4, dim).astype(np.int32).sum(axis=1) - 510  # σ ≈ 148
    clean = np.stack(
        [
            codes[SHAPES.index(t.shape)]
            + codes[len(SHAPES) + list(COLOURS).index(t.colour)]
            + codes[len(SHAPES) + len(COLOURS) + TEXTURES.index(t.texture)]
            + codes[-1] * (t.radius * 8 // max(settings.size // 12, 1)) // 8
            for t in things
        ]
    )
    # The signal's standard deviation is about 2 codes' of 64 each, hence 148.
    return (clean + drawn * settings.feature_noise // 100).astype(np.float32) / np.float32(128)


@functools.cache
def _codes(dim: int) -> np.ndarray:
    """A code per shape, colour and texture and one for size: (K, dim) whole numbers, σ ≈ 74."""
    rows = len(SHAPES) + len(COLOURS) + len(TEXTURES) + 1
    return Dice(_CODE_KEY).bytes(rows, dim).astype(np.int32) - 128
