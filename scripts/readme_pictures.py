"""Draws README.md's pictures from a finished run: ``python scripts/readme_pictures.py runs/NAME RUN_WITH_CONTEXT``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from PIL import Image

import vlplatform
from vlplatform import registry
from vlplatform.interpret import draw

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"


def rows(source: str, kind: str) -> list[dict[str, Any]]:
    """The pictures of a run's sample predictions, or of its attention, row by row."""
    model: Any = vlplatform.load(source)
    task = registry.task("segmentation").build(model.loaded_config["sections"])
    exhibits = task.attention_exhibits(model, "val") if kind == "attention" else task.show(model, "val", 8)
    return [exhibit.images for exhibit in exhibits]


def main() -> None:
    """One row of predictions from the first run, one of attention from the second."""
    PICTURES.mkdir(exist_ok=True)
    for name, source, row in (("prediction", sys.argv[1], 3), ("attention", sys.argv[2], 0)):
        images = {caption: draw_large(picture) for caption, picture in rows(source, name)[row].items()}
        Image.fromarray(draw.side_by_side(images)).save(PICTURES / f"{name}.png", optimize=True)


def draw_large(picture: Any) -> Any:
    """At least 256 pixels high, without smoothing."""
    factor = max(1, 256 // picture.shape[0])
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


if __name__ == "__main__":
    main()
