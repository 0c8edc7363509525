"""Attribute words of a user's own pictures, or of features that come as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from vlp_captioning.attributes.detector import AttributeDetector
from vlp_captioning.attributes.task import AttributesSettings
from vlp_captioning.attributes.words import detected
from vlp_captioning.readers import Visual
from vlp_captioning.readers.features.arrays import ArrayFolder
from vlplatform import settings
from vlplatform.engine.files import json_bytes, write_whole
from vlplatform.errors import UserError
from vlplatform.vision.pictures import SUFFIXES, read_image

_ARRAYS = (".npz", ".npy")


def predict_files(model: AttributeDetector, inputs: Sequence[Path], out: Path, device: torch.device) -> list[Path]:
    """Print the words of each input with their probabilities, and write all words into ``out/attributes.json``.

    An input is a picture, or a file of features (.npz, .npy). How many words are told, and how sure ones, is as
    ``task.most`` and ``task.above`` of the model's run say. The file, whose path comes back, is one that
    ``data.attributes`` reads: file name (of features without the suffix) → words, the surest first. Everything is read
    before anything is printed.

    Raises:
        UserError: A file that cannot be read or used, two of the same name, or a folder that cannot be written.
    """
    model = model.to(device).eval()
    names: dict[str, Path] = {}
    for path in inputs:
        if (same := names.setdefault(path.name, path)) != path:
            raise UserError(
                f"{same} and {path} have the same name, by which words are kept: predict them one at a time."
            )
    task = getattr(model, "loaded_config", {}).get("sections", {}).get("task", {})
    told = settings.parse(AttributesSettings, task, "task")
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for path in names.values():
        try:
            (p,) = model.presence([_visual(model, path)])
        except UserError as error:
            raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
        (words,) = detected(p[None], model.words, most=told.most, above=told.above)
        key = path.stem if path.suffix.lower() in _ARRAYS else path.name
        found[key], sure = list(words), dict(zip(model.words, p.tolist()))
        lines.append(f"{path}: {', '.join(f'{word} {sure[word]:.2f}' for word in words) or 'no word'}")
    print("\n".join(lines))
    target = out / "attributes.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(target, json_bytes(found))
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror or error}): choose another --out.") from error
    return [target]


def _visual(model: AttributeDetector, path: Path) -> Visual:
    if path.suffix.lower() in _ARRAYS:
        return ArrayFolder(path.parent, [path]).features(path.stem)
    if path.suffix.lower() in SUFFIXES:
        return model.look([read_image(path, "give a sound JPEG, PNG or the like")])[0]
    raise UserError(
        f"{path} is neither a picture ({', '.join(SUFFIXES)}) nor features ({', '.join(_ARRAYS)}): give either."
    )
