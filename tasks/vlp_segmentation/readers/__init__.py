"""Readers of segmentation data: one file per data set, all of them making ``SegmentationData``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlp_segmentation.readers import ade20k, camvid, cityscapes, folder, helen, lfw_pl, scenes
from vlp_segmentation.readers.records import SegmentationData, SegmentationRecords
from vlplatform.data.readers import open_named

__all__ = ["DATA_SETS", "READERS", "SegmentationData", "SegmentationRecords", "open_data"]

READERS: dict[str, Any] = {
    "ade20k": ade20k,
    "camvid": camvid,
    "cityscapes": cityscapes,
    "folder": folder,
    "helen": helen,
    "lfw_pl": lfw_pl,
    "scenes": scenes,
}
"""Reader's name → its module: ``Settings``, ``SUMMARY`` and ``open_data``."""

DATA_SETS = {name: reader.SUMMARY for name, reader in READERS.items()}
"""Reader's name → one-line summary."""


def open_data(name: str, values: Mapping[str, Any]) -> SegmentationData:
    """The data set ``name`` with the settings ``values`` (the section ``data`` less its ``name``).

    Looks for folders and lists, and decodes nothing.

    Raises:
        UserError: Unknown reader or setting, a wrong type, or data that are not where they should be.
    """
    return open_named(READERS, name, values, "segmentation data")
