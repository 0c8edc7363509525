"""Scenes: an endless, seeded world of small pictures of overlapping shapes, annotated for every task.

Everything can be trained and tested on it in minutes on a CPU with nothing downloaded. It is a yardstick for code,
never a published result. ``load`` gives a split on disk, ``scene`` one scene in memory.
"""

from __future__ import annotations

from vlplatform.data.scenes.dataset import SPLITS, Pictures, load, split_seed
from vlplatform.data.scenes.render import Picture, picture
from vlplatform.data.scenes.scene import Scene, scene
from vlplatform.data.scenes.world import CLASSES, COLOURS, GROUNDS, PALETTE, SHAPES, ScenesSettings, Thing

__all__ = [
    "CLASSES",
    "COLOURS",
    "GROUNDS",
    "PALETTE",
    "SHAPES",
    "SPLITS",
    "Picture",
    "Pictures",
    "Scene",
    "ScenesSettings",
    "Thing",
    "load",
    "picture",
    "scene",
    "split_seed",
]
