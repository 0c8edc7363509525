"""The output of ``vlp prepare features``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from vlp_captioning.readers.features.checked import checked
from vlp_captioning.readers.records import Visual
from vlplatform.data.shards import Record, Shards


class ShardFeatures:
    """Records of a folder of shards.

    Raises:
        UserError: The folder is unfinished or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shards = Shards(path)
        self.example = next(iter(self.shards), "")
        made = self.shards.settings.get("backbone") or self.shards.settings.get("detector") or "unknown network"
        self.found = f"shards of vlp prepare, {len(self.shards)} pictures, {made}"
        if "attributes" in self.shards.settings:
            self.found += f", attribute words of {self.shards.settings['attributes']}"

    @property
    def extractor(self) -> dict[str, Any]:
        """What :func:`vlplatform.vision.extract.settings_of` takes to make more such features."""
        return {**self.shards.settings, **self.shards.about}

    def __contains__(self, key: str) -> bool:
        return key in self.shards

    def __len__(self) -> int:
        return len(self.shards)

    def features(self, key: str) -> Visual:
        """The record as it was written, in float32.

        Raises:
            UserError: No such record, or a damaged shard.
        """
        return visual_of(self.shards[key], f"{self.path}, record {key},")


def visual_of(record: Record, where: str) -> Visual:
    """What a captioner sees of a record; ``where`` names it in messages.

    Raises:
        UserError: It is damaged.
    """
    boxes = None if record.boxes is None else record.boxes.numpy()
    seen = checked(record.features.numpy(), where, boxes=boxes, grid=record.grid, size=record.size)
    return dataclasses.replace(seen, attributes=record.words)
