"""Tiny data sets in the published layouts, written by the tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def save(path: Path, pixels: np.ndarray | list, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path, **options)
    return path


def picture(path: Path, height: int = 6, width: int = 8, value: int = 100) -> Path:
    return save(path, np.full((height, width, 3), value))


def folder(root: Path, names=("a", "b", "c"), classes: str | None = "ground\nleft\nright\n", ids=3) -> Path:
    """A folder in the layout of the ``folder`` reader: record k's mask is class k mod ids."""
    for k, name in enumerate(names):
        picture(root / f"images/{name}.png", value=10 * k)
        save(root / f"masks/{name}.png", np.full((6, 8), k % ids))
    if classes is not None:
        (root / "classes.txt").write_text(classes)
    return root


def helen(root: Path, soft: bool = True) -> Path:
    for number, name in enumerate(("one_1", "two_1", "three_1")):
        picture(root / f"images/{name}.jpg")
        if soft:
            for i in range(11):
                strength = np.zeros((6, 8))
                strength[:, i % 8] = 200 if i < 8 else 255  # classes 8, 9, 10 win in columns 0, 1, 2
                save(root / f"labels/{name}/{name}_lbl{i:02d}.png", strength)
        else:
            save(root / f"labels/{name}.png", np.arange(48).reshape(6, 8) % 11)
        (root / ("exemplars.txt", "tuning.txt", "testing.txt")[number]).write_text(f"{number + 1} , {name}\n\n")
    return root


def lfw(root: Path) -> Path:
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]])
    for listed, line in (
        ("parts_train.txt", "Ann_Lee 1"),
        ("parts_validation.txt", "Ann_Lee 12"),
        ("parts_train_val.txt", "Ann_Lee 1\nAnn_Lee 12"),
        ("parts_test.txt", "Bo 3"),
    ):
        (root / listed).parent.mkdir(exist_ok=True)
        (root / listed).write_text(line + "\n")
        for record in line.splitlines():
            person, number = record.split()
            name = f"{person}_{int(number):04d}"
            picture(root / f"lfw_funneled/{person}/{name}.jpg")
            save(root / f"parts_lfw_funneled_gt_images/{name}.ppm", colours[np.arange(48).reshape(6, 8) % 3])
    return root
