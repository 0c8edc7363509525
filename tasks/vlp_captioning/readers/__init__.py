"""Readers of captioned pictures and videos: one file per data set, all of them making ``CaptionData``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlp_captioning.readers import coco, flickr8k, jsonl, karpathy, scenes, vatex
from vlp_captioning.readers.records import CaptionData, Item, Visual
from vlplatform.data.readers import open_named

__all__ = ["DATA_SETS", "READERS", "CaptionData", "Item", "Visual", "open_data"]

READERS: dict[str, Any] = {
    "coco": coco,
    "flickr8k": flickr8k,
    "jsonl": jsonl,
    "karpathy": karpathy,
    "scenes": scenes,
    "vatex": vatex,
}
"""Reader's name → its module: ``Settings``, ``SUMMARY`` and ``open_data``."""

DATA_SETS = {name: reader.SUMMARY for name, reader in READERS.items()}
"""Reader's name → one-line summary."""


def open_data(name: str, values: Mapping[str, Any]) -> CaptionData:
    """The data set ``name`` with the settings ``values`` (the section ``data`` less its ``name``).

    Reads captions and looks for the features; decodes no picture.

    Raises:
        UserError: Unknown reader or setting, a wrong type, or data that are not where they should be.
    """
    return open_named(READERS, name, values, "captions")
