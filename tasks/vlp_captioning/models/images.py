"""What goes into a captioner, and what its encoder makes of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vlplatform.errors import UserError
from vlplatform.geometry import Geometry


@dataclass(frozen=True)
class Images:
    """A batch of B images as a captioner sees them.

    Attributes:
        features: Vectors of regions or grid cells, (B, N, F).
        mask: (B, N) booleans, true for real vectors; none: all are.
        geometry: Where they lie.
        attributes: Numbers of detected attribute words, (B, A), for models that read them.
        attribute_mask: (B, A) booleans, true for real ones.
        pixels: RGB pictures in 0..1, (B, 3, H, W), in place of features, for models with a backbone of their own.
    """

    features: Tensor | None = None
    mask: Tensor | None = None
    geometry: Geometry | None = None
    attributes: Tensor | None = None
    attribute_mask: Tensor | None = None
    pixels: Tensor | None = None

    def __len__(self) -> int:
        given = self.pixels if self.features is None else self.features
        return 0 if given is None else len(given)

    @classmethod
    def of(cls, given: Images | Tensor | Mapping[str, Any]) -> Images:
        """From what a user has: features, or pixels, or a mapping.

        A tensor (B, N, F) is features, whose rows of zeros are padding; one of shape (B, 3, H, W) is pixels. A mapping
        has ``features`` or ``pixels`` and any of ``mask``, ``boxes`` (B, N, 4) with ``size`` (width, height),
        ``points`` (B or 1, N, 2), ``grid`` (rows, columns), ``geometry``, ``attributes`` and ``attribute_mask``.
        Without any of the places, N = n² features count as a square grid, row by row, for mechanisms that need it.

        Raises:
            UserError: A key that is not known, or a shape or type that does not fit.
        """
        if isinstance(given, Images):
            return given
        if isinstance(given, Tensor):
            given = {"pixels" if given.ndim == 4 else "features": given}
        if not isinstance(given, Mapping):
            raise UserError(
                f"images is a {type(given).__name__}; expected a tensor, or a mapping with features or pixels."
            )
        known = {f.name for f in dataclasses.fields(cls)} | {"boxes", "size", "points", "grid"}
        if unknown := set(given) - known:
            raise UserError(f"images has the key '{min(unknown)}': expected some of {', '.join(sorted(known))}.")
        _check_places(given)
        for key, value in given.items():
            if key not in ("size", "grid", "geometry") and not isinstance(value, Tensor | None):
                raise UserError(f"{key} is a {type(value).__name__}; expected a tensor.")
        values: dict[str, Any] = {key: given[key] for key in given if key not in ("boxes", "size", "points", "grid")}
        features, pixels = values.get("features"), values.get("pixels")
        if (features is None) == (pixels is None):
            raise UserError("images needs either features (B, N, F) or pixels (B, 3, H, W).")
        if features is None:
            assert pixels is not None
            if pixels.ndim != 4 or pixels.shape[1] != 3 or not pixels.is_floating_point():
                shown = f"{tuple(pixels.shape)} and type {pixels.dtype}"
                raise UserError(f"pixels has shape {shown}; expected real numbers in 0..1 of shape (B, 3, H, W).")
            return cls(**values)
        if features.ndim != 3 or not features.is_floating_point():
            shown = f"{tuple(features.shape)} and type {features.dtype}"
            raise UserError(f"features has shape {shown}; expected real numbers of shape (B, N, F).")
        if not features.shape[1]:  # no vector in any image: one of padding, which nothing reads
            features = values["features"] = features.new_zeros(len(features), 1, features.shape[2])
            values |= {"mask": None, "geometry": None}
            given = {"grid": (1, 1)}
        if values.get("mask") is None:
            values["mask"] = (features != 0).any(-1)
        values["mask"] = _booleans(values["mask"], features.shape[:2], "mask")
        if values.get("geometry") is None:
            values["geometry"] = _place(given, features, values["mask"])
        if (attributes := values.get("attributes")) is not None:
            if attributes.ndim != 2 or len(attributes) != len(features) or attributes.is_floating_point():
                shown = f"{tuple(attributes.shape)} and type {attributes.dtype}"
                raise UserError(
                    f"attributes has shape {shown}; expected numbers of words of shape ({len(features)}, A)."
                )
            if values.get("attribute_mask") is not None:
                found = _booleans(values["attribute_mask"], attributes.shape, "attribute_mask")
                values["attribute_mask"] = found
        return cls(**values)

    def to(self, like: Tensor) -> Images:
        """On the device of ``like``; features and pixels in its precision."""

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(like.device, like.dtype if value.is_floating_point() else value.dtype)
            return value

        values = {f.name: moved(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "geometry"}
        return Images(**values, geometry=None if self.geometry is None else self.geometry.to(like))


@dataclass(frozen=True)
class Memory:
    """What an encoder leaves for the decoder; all of the same B images.

    Attributes:
        tokens: (B, N, D) for each memory that the decoder reads; most have one.
        masks: (B, N) booleans for each, true for real tokens, or none.
        whole: A vector for the whole image (B, D), where the model has one.
    """

    tokens: tuple[Tensor, ...]
    masks: tuple[Tensor | None, ...] = field(default=(None,))
    whole: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens[0])

    def lean(self) -> Memory:
        """The same without masks that mask nothing."""
        masks = tuple(None if mask is None or bool(mask.all()) else mask for mask in self.masks)
        return Memory(self.tokens, masks, self.whole)

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name but the geometry; :meth:`of` makes the memory again."""
        named = {f"tokens{i}": tokens for i, tokens in enumerate(self.tokens)}
        named |= {f"mask{i}": mask for i, mask in enumerate(self.masks) if mask is not None}
        return named if self.whole is None else {**named, "whole": self.whole}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Memory:
        """From what :meth:`tensors` gave, perhaps for fewer images by now."""
        count = sum(name.startswith("tokens") for name in tensors)
        tokens = tuple(tensors[f"tokens{i}"] for i in range(count))
        return cls(tokens, tuple(tensors.get(f"mask{i}") for i in range(count)), tensors.get("whole"))


def _booleans(mask: Tensor, shape: torch.Size, name: str) -> Tensor:
    if mask.shape != shape:
        raise UserError(f"{name} has shape {tuple(mask.shape)}; expected {tuple(shape)}, true for what is real.")
    return mask if mask.dtype == torch.bool else mask != 0


def _check_places(given: Mapping[str, Any]) -> None:
    """Refuse a grid that is no pair of whole numbers, and a geometry of another type."""
    grid, geometry = given.get("grid"), given.get("geometry")
    if grid is not None and not (
        isinstance(grid, tuple | list) and len(grid) == 2 and all(isinstance(side, int) and side > 0 for side in grid)
    ):
        raise UserError(f"grid={grid!r} must be two whole numbers above 0: (rows, columns).")
    if not isinstance(geometry, Geometry | None):
        raise UserError(f"geometry is a {type(geometry).__name__}; expected a vlplatform.geometry.Geometry.")


def square_grid(count: int, **like: Any) -> Geometry | None:
    """The places of ``count`` features of unknown places: a square grid, row by row, if they are n²; else None."""
    side = math.isqrt(count)
    return Geometry.from_grid(side, side, **like) if count and side * side == count else None


def _place(given: Mapping[str, Any], features: Tensor, mask: Tensor) -> Geometry | None:
    """The geometry that boxes, points or a grid tell; a square grid where nothing does and N allows it."""
    like = {"device": features.device, "dtype": torch.promote_types(features.dtype, torch.float32)}
    count = features.shape[1]
    size = given.get("size")
    if (boxes := given.get("boxes")) is not None:
        fitting = boxes.shape[-2] == count  # else told below
        geometry = Geometry.from_boxes(boxes.to(**like), size, mask=mask if fitting else None)
    elif (points := given.get("points")) is not None:
        geometry = Geometry.from_points(points.to(**like), size)
    elif (grid := given.get("grid")) is not None:
        geometry = Geometry.from_grid(int(grid[0]), int(grid[1]), **like)
    else:
        return square_grid(count, **like)
    if len(geometry) != count:
        raise UserError(f"boxes, points or grid tell the places of {len(geometry)} features, but {count} came.")
    return geometry
