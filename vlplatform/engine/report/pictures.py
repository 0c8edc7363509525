"""Exhibits as figures: pictures become data URIs, small enough that the whole report stays a file to be mailed."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from vlplatform.engine.report.text import escape
from vlplatform.task import Exhibit

BUDGET = 2_000_000
"""Bytes that all pictures of a report may take together (as base64)."""
SIDES = (640, 480, 360, 240, 160, 96)
"""Longest sides to try, until the pictures fit into the budget."""
LOSSLESS = 40_000
"""A picture whose PNG is larger than this is kept as JPEG: photographs, not label maps."""


def figures(exhibits: Sequence[Exhibit], side: int) -> str:
    """One ``<figure>`` per exhibit, its pictures side by side, none longer than ``side``."""
    return "".join(_figure(exhibit, side) for exhibit in exhibits)


def fitting_side(exhibits: Sequence[Exhibit]) -> int:
    """The largest of ``SIDES`` at which all pictures together stay within ``BUDGET``."""
    pictures = [np.asarray(picture) for exhibit in exhibits for picture in exhibit.images.values()]
    for side in SIDES[:-1]:
        total = 0
        for picture in pictures:
            total += len(_data_uri(picture, side))
            if total > BUDGET:
                break
        else:
            return side
    return SIDES[-1]


def legend(exhibits: Sequence[Exhibit]) -> str:
    """The colours of all exhibits as one list; empty where they carry none."""
    colours = {name: colour for exhibit in exhibits for name, colour in exhibit.legend.items()}
    entries = "".join(f"<li>{swatch(colour)}{escape(name)}</li>" for name, colour in colours.items())
    return f'<ul class="legend" aria-label="Colours">{entries}</ul>' if entries else ""


def swatch(colour: Sequence[int]) -> str:
    """A small square of the colour."""
    red, green, blue = (int(part) for part in colour)
    return f'<span class="swatch" style="background:rgb({red},{green},{blue})"></span>'


def _figure(exhibit: Exhibit, side: int) -> str:
    cells = []
    for caption, picture in exhibit.images.items():
        array = np.asarray(picture)
        height, width = array.shape[:2]
        tiny = ' class="tiny"' if max(height, width) < 200 else ""
        alt = f"{caption}: {exhibit.id}. {exhibit.text}" if exhibit.text else f"{caption}: {exhibit.id}"
        cells.append(
            f'<div><img{tiny} src="{_data_uri(array, side)}" width="{width}" height="{height}" '
            f'alt="{escape(alt)}" loading="lazy"><span>{escape(caption)}</span></div>'
        )
    text = f" {escape(exhibit.text)}" if exhibit.text else ""
    return (
        f'<figure class="card exhibit"><div class="pictures">{"".join(cells)}</div>'
        f"<figcaption><b>{escape(exhibit.id)}</b>{text}</figcaption></figure>"
    )


def _data_uri(picture: np.ndarray[Any, Any], side: int) -> str:
    image = Image.fromarray(np.ascontiguousarray(picture, dtype=np.uint8)).convert("RGB")
    if max(image.size) > side:
        few = image.getcolors(64) is not None  # a label map: no new colours between its own
        scale = side / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.NEAREST if few else Image.Resampling.LANCZOS)
    kind, data = "png", _encoded(image, "PNG", optimize=True)
    if len(data) > LOSSLESS:
        kind, data = "jpeg", _encoded(image, "JPEG", quality=86, subsampling=0)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
