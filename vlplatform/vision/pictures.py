"""Picture files, read with every fault named: the file, what is wrong with it, the remedy."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vlplatform.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES: tuple[str, ...] = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")
"""Names of picture files end like this, in small or capital letters."""

RESTORE = "restore the file or drop it from the split"


def read_image(path: Path, remedy: str = RESTORE) -> Tensor:
    """A picture (3, H, W) uint8 RGB, upright as its EXIF orientation says, whatever its mode.

    16-bit grey is scaled to 8 bits; transparency is dropped.

    Args:
        path: The file.
        remedy: What to do if it cannot be read, for the message.

    Raises:
        UserError: The file is missing, truncated, or no picture.
    """
    return torch.from_numpy(read_rgb(path, remedy)).permute(2, 0, 1).contiguous()


def read_rgb(path: Path, remedy: str = RESTORE) -> np.ndarray:
    """As :func:`read_image`, but (H, W, 3); writable.

    Raises:
        UserError: The file is missing, truncated, or no picture.
    """
    with opened(path, remedy) as picture:
        if picture.mode.startswith("I"):  # 16-bit grey, which Pillow would clip to 8 bits
            grey = (np.asarray(picture).astype(np.float32) * (255 / 65535)).round().clip(0, 255).astype(np.uint8)
            return np.repeat(grey[..., None], 3, axis=2)
        return np.array(picture if picture.mode == "RGB" else picture.convert("RGB"))


@contextmanager
def opened(path: Path, remedy: str = RESTORE) -> Iterator[Image]:
    """The file as an upright Pillow picture; whatever goes wrong inside the block while it is decoded is named.

    Raises:
        UserError: The file is missing, truncated, or no picture.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as picture:
            ImageOps.exif_transpose(picture, in_place=True)
            yield picture
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be decoded ({error})"
        raise UserError(f"{path} {problem}: {remedy}.") from error


def listed(folder: Path) -> list[str]:
    """The picture files in a folder and the folders in it, as paths relative to it, in alphabetical order.

    Files and folders whose names begin with a dot are left out.
    """
    found = []
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = Path(here).relative_to(folder)
        found += [
            (inside / name).as_posix() for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        ]
    return sorted(found)
