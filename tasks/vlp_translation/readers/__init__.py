"""Readers of parallel texts: one file per data set, all of them making ``ParallelData``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlp_translation.readers import iwslt14, jsonl, multi30k, scenes, text, wmt14
from vlp_translation.readers.records import SPLITS, Pair, ParallelData
from vlplatform.data.readers import open_named

__all__ = ["DATA_SETS", "READERS", "SPLITS", "Pair", "ParallelData", "open_data"]

READERS: dict[str, Any] = {
    "iwslt14": iwslt14,
    "jsonl": jsonl,
    "multi30k": multi30k,
    "scenes": scenes,
    "text": text,
    "wmt14": wmt14,
}
"""Reader's name → its module: ``Settings``, ``SUMMARY`` and ``open_data``."""

DATA_SETS = {name: reader.SUMMARY for name, reader in READERS.items()}
"""Reader's name → one-line summary."""


def open_data(name: str, values: Mapping[str, Any]) -> ParallelData:
    """The data set ``name`` with the settings ``values`` (the section ``data`` less its ``name``).

    Looks for the files; reads no line.

    Raises:
        UserError: Unknown reader or setting, a wrong type, or data that are not where they should be.
    """
    return open_named(READERS, name, values, "parallel texts")
