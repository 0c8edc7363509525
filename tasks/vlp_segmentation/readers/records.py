"""What every reader makes: ``SegmentationData``, and the records that the engine draws from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from vlp_segmentation.augmentation import IGNORE, Augmentation
from vlplatform.errors import UserError, nearest

if TYPE_CHECKING:
    from torchvision.transforms import v2


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Settings that every reader has.

    Attributes:
        scale: Factor on both sides of every picture and mask, training and evaluation alike; scores are then
            those of the scaled masks.
        cache: Keep decoded (and scaled) pictures in memory, per process: 4 bytes a pixel.
        augment: The training transforms; evaluation has none.
    """

    scale: float = 1.0
    cache: bool = False
    augment: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 4:
            raise ValueError(f"scale={self.scale} must lie in 0 … 4, above 0")


class Source(Protocol):
    """One split: ids, and decoded pairs on demand."""

    @property
    def ids(self) -> Sequence[str]:
        """The records' ids, each once."""
        ...

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """Picture (3, H, W) and mask (H, W), both uint8; class ids, or 255 where unlabelled."""
        ...


@dataclass(frozen=True, kw_only=True)
class SegmentationData:
    """An opened data set.

    Attributes:
        name: The reader's name.
        classes: Class names; a name's place is its id.
        palette: RGB colour per class, 0 … 255.
        source: Split → its pairs.
        reading: Settings common to all readers.
        splits: The names that ``records`` takes.
        ignore_index: Id of unlabelled pixels in every mask, whatever the files use.
        flip_pairs: Ids that swap in a mirror image.
        parts: Inner face parts → the classes merged into each (thesis table 4.3); None for other data.
        class_weights: Published weights of the loss per class, where there are any.
        licence: In a few words.
        citation: In a few words.
        notes: Choices made on the user's behalf, to be shown (an automatic split).
    """

    name: str
    classes: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...]
    source: Callable[[str], Source]
    reading: Reading
    splits: tuple[str, ...] = ("train", "val", "test")
    ignore_index: int = IGNORE
    flip_pairs: tuple[tuple[int, int], ...] = ()
    parts: Mapping[str, Sequence[str]] | None = None
    class_weights: tuple[float, ...] | None = None
    licence: str = ""
    citation: str = ""
    notes: tuple[str, ...] = ()
    _opened: dict[str, Source] = field(default_factory=dict, init=False, repr=False, compare=False)

    def records(self, split: str, train: bool) -> SegmentationRecords:
        """The records of a split: with ``train`` transformed at random to one size, else whole.

        Raises:
            UserError: No such split, or a file that it needs is missing.
        """
        from vlp_segmentation.transforms import training_transform  # takes seconds: torchvision loads its models

        transform = training_transform(self.reading.augment, self.flip_pairs) if train else None
        return SegmentationRecords(self._open(split), transform)

    def check(self, split: str) -> list[str]:
        """Decode every record of a split; one sentence per faulty one (empty: all are sound)."""
        source, faults = self._open(split), []
        for index in range(len(source.ids)):
            try:
                source.load(index)
            except UserError as error:
                faults.append(str(error))
        return faults

    def _open(self, split: str) -> Source:
        if split not in self.splits:
            raise UserError(f"data={self.name} has no split '{split}': {nearest(split, self.splits)}.")
        if split not in self._opened:
            self._opened[split] = Scaled(self.source(split), self.reading.scale, self.reading.cache)
        return self._opened[split]


class Scaled:
    """A source at another size, optionally kept in memory."""

    def __init__(self, source: Source, scale: float, cache: bool) -> None:
        self.source = source
        self.ids = source.ids
        self.scale = scale
        self.cache = cache
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """Picture (3, H, W) and mask (H, W), scaled; treat both as read-only."""
        if index in self.kept:
            return self.kept[index]
        image, mask = self.source.load(index)
        if self.scale != 1:
            from torchvision.transforms.v2 import functional

            from vlp_segmentation.transforms import resize_mask

            size = [max(2, round(side * self.scale)) for side in mask.shape]
            image, mask = functional.resize(image, size, antialias=True), resize_mask(mask, size)
        if self.cache:
            self.kept[index] = image, mask
        return image, mask


class SegmentationRecords:
    """A split's records for the engine: ``id``, ``image`` (3, H, W) float32 in 0 … 1, ``mask`` (H, W) int64."""

    def __init__(self, source: Source, transform: v2.Transform | None) -> None:
        self.source = source
        self.transform = transform

    def __len__(self) -> int:
        return len(self.source.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        from torchvision import tv_tensors
        from torchvision.transforms.v2 import functional

        image, mask = self.source.load(index)
        if self.transform:
            image, mask = self.transform(tv_tensors.Image(image), tv_tensors.Mask(mask))
            image, mask = image.as_subclass(Tensor), mask.as_subclass(Tensor)
        else:
            image = functional.to_dtype(image, torch.float32, scale=True)
        return {"id": self.source.ids[index], "image": image.contiguous(), "mask": mask.to(torch.int64)}
