"""Records and batches of the captioning task: what is seen, and captions as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vlp_captioning.models import Captioner, Images
from vlp_captioning.models.images import square_grid
from vlp_captioning.readers import CaptionData, Item, Visual
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry
from vlplatform.text import Vocabulary


class CaptionRecords:
    """A split: each record an image with what is seen of it and, for training, some of its captions.

    Args:
        data: Where the visuals come from.
        items: The images.
        captions: Per item its captions as numbers, for training; None for evaluation.
        count: Captions per record. More than an image has: some come twice; fewer: a choice by torch's generator.
    """

    def __init__(
        self,
        data: CaptionData,
        items: Sequence[Item],
        captions: Sequence[Sequence[Sequence[int]]] | None = None,
        count: int = 5,
    ) -> None:
        self.data, self.items = data, items
        self.captions, self.count = captions, count

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int, /) -> Mapping[str, Any]:
        item = self.items[index]
        record: dict[str, Any] = {"id": item.id, "index": index, "visual": self.data.visual(item)}
        if self.captions is not None:
            record["captions"] = self._choose(self.captions[index])
        return record

    def _choose(self, captions: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """``count`` of an image's captions: each at most once more than any other."""
        chosen: list[Sequence[int]] = []
        while len(chosen) < self.count:
            chosen += [captions[i] for i in torch.randperm(len(captions))[: self.count - len(chosen)].tolist()]
        return chosen


def collate(records: Sequence[Mapping[str, Any]], vocabulary: Vocabulary | None = None) -> dict[str, Any]:
    """A batch of B records: plain tensors, padded.

    ``features`` (B, N, F) with ``mask`` (B, N), or ``pixels`` (B, 3, H, W) in 0..1; ``boxes`` (B, N, 4) and ``size``
    (B, 2), or ``grid``, where the records have them; ``attributes``, words per record; ``ids`` and ``index``; for
    training, which takes the vocabulary, ``tokens`` (B · r, T) from begin to end symbol and ``lengths`` (B · r,), the
    end symbol counted.

    Raises:
        UserError: Records of different kinds or widths.
    """
    visuals: list[Visual] = [record["visual"] for record in records]
    batch: dict[str, Any] = {"ids": [record["id"] for record in records]}
    batch["index"] = torch.tensor([record["index"] for record in records])
    batch |= _seen(visuals, batch["ids"])
    batch["attributes"] = [list(visual.attributes) for visual in visuals]
    if vocabulary is not None and "captions" in records[0]:
        captions = [caption for record in records for caption in record["captions"]]
        whole = [[vocabulary.bos, *caption, vocabulary.eos] for caption in captions]
        batch["tokens"] = _padded(whole, vocabulary.pad)
        batch["lengths"] = torch.tensor([len(caption) - 1 for caption in whole])
    return batch


def images_of(batch: Mapping[str, Any], model: Captioner) -> Images:
    """The images of a batch as a model reads them: with their geometry, and attributes as numbers of its words."""
    given = batch["features"] if "features" in batch else batch["pixels"]
    geometry = None
    if (boxes := batch.get("boxes")) is not None:
        geometry = Geometry.from_boxes(boxes, batch.get("size"), mask=batch.get("mask"))
    elif (grid := batch.get("grid")) is not None:
        geometry = Geometry.from_grid(*grid, device=given.device)
    elif "features" in batch:
        geometry = square_grid(given.shape[1], device=given.device)
    named: dict[str, Any] = {key: batch[key] for key in ("features", "mask", "pixels") if key in batch}
    if model.reads_attributes:
        coded = [model.vocabulary.encode(words) for words in batch["attributes"]]
        named["attributes"] = _padded([row or [model.vocabulary.pad] for row in coded], model.vocabulary.pad)
        named["attribute_mask"] = _real(coded)
        named |= {key: named[key].to(given.device) for key in ("attributes", "attribute_mask")}
    return Images(**named, geometry=geometry)


def _seen(visuals: Sequence[Visual], ids: Sequence[str]) -> dict[str, Any]:
    first = visuals[0]
    if first.pixels is not None:
        pixels = [visual.pixels for visual in visuals if visual.pixels is not None]
        if len(pixels) != len(visuals) or len({p.shape for p in pixels}) > 1:
            raise UserError("the pictures of a batch differ in size: set data.size=[height,width].")
        return {"pixels": torch.stack(pixels).float() / 255}
    features: list[Tensor] = []
    for visual, id in zip(visuals, ids):
        if visual.features is None or visual.features.shape[1:] != _width(first):
            raise UserError(f"the features of {id} are unlike those of {ids[0]}: prepare all images alike.")
        if (visual.boxes is None) != (first.boxes is None):
            raise UserError(f"{id} and {ids[0]} differ: one has boxes, the other none; prepare all images alike.")
        features.append(visual.features)
    seen: dict[str, Any] = {"features": pad_sequence(features, batch_first=True)}
    seen["mask"] = _real(features)
    if seen["features"].shape[1] == 0:  # no region in any image: one of padding, which nothing reads
        seen = {"features": seen["features"].new_zeros(len(features), 1, seen["features"].shape[2])}
        seen["mask"] = torch.zeros(len(features), 1, dtype=torch.bool)
    if first.boxes is not None:
        boxes = pad_sequence([visual.boxes for visual in visuals if visual.boxes is not None], batch_first=True)
        seen["boxes"] = boxes if boxes.shape[1] else boxes.new_zeros(len(features), 1, 4)
        sizes = [visual.size for visual in visuals if visual.size is not None]
        if len(sizes) == len(visuals):
            seen["size"] = torch.tensor(sizes, dtype=boxes.dtype)
    elif first.grid is not None:
        grids = {visual.grid for visual in visuals}
        if len(grids) == 1:
            seen["grid"] = first.grid
        elif all(grid is not None and grid[0] == 1 for grid in grids):
            seen["grid"] = (1, seen["features"].shape[1])  # videos: rows of frames, of which some are longer
        else:
            raise UserError("the grids of a batch differ in size: prepare all images with the same grid.")
    return seen


def _width(visual: Visual) -> torch.Size:
    assert visual.features is not None
    return visual.features.shape[1:]


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=filler)


def _real(rows: Sequence[Any]) -> Tensor:
    """(B, longest) booleans, true for what each row has."""
    lengths = torch.tensor([len(row) for row in rows])
    return torch.arange(max(1, int(lengths.max()))) < lengths[:, None]
