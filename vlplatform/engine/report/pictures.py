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
"""A picture of more pixels than this is a JPEG unless it has few colours: photographs, not label maps."""


def fitted(exhibits: Sequence[Exhibit]) -> list[list[str]]:
    """Per exhibit its pictures as data URIs, at the largest of ``SIDES`` at which all stay within ``BUDGET``."""
    uris: list[list[str]] = []
    for side in SIDES:
        uris = [[_data_uri(np.asarray(p), side) for p in exhibit.images.values()] for exhibit in exhibits]
        if sum(len(uri) for row in uris for uri in row) <= BUDGET:
            break
    return uris


def figures(exhibits: Sequence[Exhibit], uris: Sequence[Sequence[str]]) -> str:
    """One ``<figure>`` per exhibit, its pictures (from :func:`fitted`) side by side."""
    return "".join(_figure(exhibit, row) for exhibit, row in zip(exhibits, uris))


def legend(exhibits: Sequence[Exhibit]) -> str:
    """The colours of all exhibits as one list; empty where they carry none."""
    colours = {name: colour for exhibit in exhibits for name, colour in exhibit.legend.items()}
    entries = "".join(f"<li>{swatch(colour)}{escape(name)}</li>" for name, colour in colours.items())
    return f'<ul class="legend" aria-label="Colours">{entries}</ul>' if entries else ""


def swatch(colour: Sequence[int]) -> str:
    """A small square of the colour."""
    red, green, blue = (int(part) for part in colour)
    return f'<span class="swatch" style="background:rgb({red},{green},{blue})"></span>'


def _figure(exhibit: Exhibit, uris: Sequence[str]) -> str:
    cells = []
    for (caption, picture), uri in zip(exhibit.images.items(), uris):
        height, width = np.asarray(picture).shape[:2]
        tiny = ' class="tiny"' if max(height, width) < 200 else ""
        alt = f"{caption}: {exhibit.id}. {exhibit.text}" if exhibit.text else f"{caption}: {exhibit.id}"
        cells.append(
            f'<div><img{tiny} src="{uri}" width="{width}" height="{height}" '
            f'alt="{escape(alt)}" loading="lazy"><span>{escape(caption)}</span></div>'
        )
    text = f" {escape(exhibit.text)}" if exhibit.text else ""
    return (
        f'<figure class="card exhibit"><div class="pictures">{"".join(cells)}</div>'
        f"<figcaption><b>{escape(exhibit.id)}</b>{text}</figcaption></figure>"
    )


def _data_uri(picture: np.ndarray[Any, Any], side: int) -> str:
    image = Image.fromarray(np.ascontiguousarray(picture, dtype=np.uint8)).convert("RGB")
    few = image.getcolors(64) is not None  # a label map: sharp, and no colours between its own
    if max(image.size) > side:
        scale = side / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.NEAREST if few else Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    if few or image.width * image.height <= LOSSLESS:
        image.save(buffer, kind := "png")
    else:
        image.save(buffer, kind := "jpeg", quality=86, subsampling=0)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
