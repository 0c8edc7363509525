"""Semantic segmentation as a task plugin of vlplatform; ``plugin`` is what its entry point names."""

from __future__ import annotations

from vlp_segmentation.plugin import SegmentationPlugin

__all__ = ["plugin"]

plugin = SegmentationPlugin()
