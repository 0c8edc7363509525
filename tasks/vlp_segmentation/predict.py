"""Label maps and overlays of a user's own pictures."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vlp_segmentation.models import Labels, SegmentationModel
from vlp_segmentation.testing import InferenceSettings, probabilities
from vlplatform import settings
from vlplatform.errors import UserError
from vlplatform.interpret import draw
from vlplatform.vision.pictures import read_image


@torch.no_grad()
def predict_files(model: SegmentationModel, inputs: Sequence[Path], out: Path, device: torch.device) -> list[Path]:
    """Write NAME.labels.png and NAME.overlay.png into ``out`` for each input, and return their paths.

    The label map is a palette PNG: its values are class ids, its palette the classes' colours. The overlay has
    a legend of the classes that were found. Pictures may be of any size and mode; EXIF orientation is honoured. They
    are tested as the model was: at ``data.scale`` times their size, with the windows, scales and mirror images of
    ``task.test``, where the model's config tells; the label map has the picture's own size.

    Raises:
        UserError: Two inputs of one name, an unreadable picture, or a folder that cannot be written.
    """
    stems = [path.stem for path in inputs]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None:
        raise UserError(f"two inputs are called '{twice}' and would overwrite each other's results: rename one.")
    model = model.to(device).eval()
    test, pairs = as_tested(model)
    written: list[Path] = []
    for path in inputs:
        image = read_image(path, remedy="give a sound JPEG, PNG or the like").float() / 255
        labels = probabilities(model, image[None].to(device), test, pairs)[0].argmax(0).byte().cpu()
        for suffix, picture in _pictures(image, labels, model.labels).items():
            target = out / f"{path.stem}.{suffix}.png"
            _save(picture, target)
            written.append(target)
    return written


def as_tested(model: SegmentationModel) -> tuple[InferenceSettings, list[tuple[int, int]]]:
    """The test procedure of a loaded model's run, and the classes that a mirror exchanges; else the defaults."""
    sections = getattr(model, "loaded_config", {}).get("sections", {})
    task, data = sections.get("task", {}), sections.get("data", {})
    test = settings.parse(InferenceSettings, task.get("test", {}), "task.test")
    scales = tuple(scale * data.get("scale", 1.0) for scale in test.scales)
    names = model.labels.names
    pairs = [(names.index(a), names.index(b)) for a, b in data.get("flip_pairs") or () if a in names and b in names]
    return dataclasses.replace(test, scales=scales), pairs


def _pictures(image: Tensor, labels: Tensor, classes: Labels) -> dict[str, Image.Image]:
    ids = labels.numpy()
    coloured = Image.fromarray(ids)
    coloured.putpalette([value for colour in classes.palette for value in colour])
    ground = (image * 255).round().byte().permute(1, 2, 0).numpy()
    # A model has at most 254 classes, so no id is taken for "ignore" here.
    overlay = draw.label_overlay(ground, ids, classes.palette)
    present = [(classes.names[c], classes.palette[c]) for c in np.unique(ids)]
    return {"labels": coloured, "overlay": Image.fromarray(draw.with_legend(overlay, present))}


def _save(picture: Image.Image, target: Path) -> None:
    """Written aside and renamed, so that no half picture is ever found under the name."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            picture.save(aside, format="PNG")
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror or error}): choose another --out.") from error
