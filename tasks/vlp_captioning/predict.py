"""Captions of a user's own pictures, or of features that come as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from vlp_captioning.decoding import DecodeSettings
from vlp_captioning.models import Caption, Captioner
from vlp_captioning.readers import Visual
from vlp_captioning.readers.features.arrays import ArrayFolder
from vlp_captioning.readers.features.shards import visual_of
from vlp_captioning.records import collate, images_of
from vlplatform import settings
from vlplatform.engine.files import json_bytes, write_whole
from vlplatform.errors import UserError
from vlplatform.vision import extract
from vlplatform.vision.pictures import SUFFIXES, read_image

SHOWN = 3
"""So many captions of an input are told."""

_ARRAYS = (".npz", ".npy")

Look = Callable[[Path], Visual]


@torch.no_grad()
def predict_files(model: Captioner, inputs: Sequence[Path], out: Path, device: torch.device) -> list[Path]:
    """Print the best captions of each input, and write all into ``out/captions.json``, whose path comes back.

    An input is a picture, or a file of features (.npz, .npy; see
    :class:`~vlp_captioning.readers.features.arrays.ArrayFolder`). Pictures need a model that sees pixels, or one whose
    features ``vlp prepare`` made: they are made again alike. Captions are decoded as ``task.decode`` says, of the
    model's run or of the command line, else by a beam of three. The file is a list with ``input`` and ``captions``
    (``text``, ``log_prob``, ``score``; the best first) per input; everything is read before any caption is printed.

    Raises:
        UserError: A file that cannot be read or used by this model, or a folder that cannot be written.
    """
    model = model.to(device).eval()
    decode = as_decoded(model)
    visuals = _visuals(model, inputs, device)
    made = []
    for path, visual in zip(inputs, visuals):
        captions = _captions(model, path, visual, decode)
        print(_told(path, captions))
        shown = [{"text": c.text, "log_prob": sum(c.log_probs), "score": c.score} for c in captions]
        made.append({"input": str(path), "captions": shown})
    target = out / "captions.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(target, json_bytes(made))
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror or error}): choose another --out.") from error
    return [target]


def as_decoded(model: Captioner) -> DecodeSettings:
    """How the model's run decoded in evaluation; the defaults, no longer than the model can write, without a run."""
    task = getattr(model, "loaded_config", {}).get("sections", {}).get("task", {})
    if "decode" in task:
        return settings.parse(DecodeSettings, task["decode"], "task.decode")
    return DecodeSettings(max_length=min(DecodeSettings().max_length, model.model_settings.max_length))


def _captions(model: Captioner, path: Path, visual: Visual, decode: DecodeSettings) -> list[Caption]:
    batch = collate([{"id": str(path), "index": 0, "visual": visual}])
    images = images_of(batch, model).to(next(model.parameters()))
    try:
        return decode.captions(model, images, [str(path)], returned=min(SHOWN, decode.most))[0]
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _told(path: Path, captions: Sequence[Caption]) -> str:
    """The best caption with its log-probability, and the next ones with their scores."""
    best, *others = captions
    lines = [f"{path}: {best.text} (log-probability {sum(best.log_probs):.2f})"]
    return "\n".join([*lines, *(f"    {other.text} (score {other.score:.2f})" for other in others)])


def _visuals(model: Captioner, inputs: Sequence[Path], device: torch.device) -> list[Visual]:
    """What the model sees of each input."""
    look: Look | None = None  # made for the first picture: it may load a detector
    found = []
    for path in inputs:
        if path.suffix.lower() in _ARRAYS:
            visual = _of_arrays(model, path)
        elif path.suffix.lower() in SUFFIXES:
            look = look or (_pixels(model) if model.vision is not None else _extracted(model, path, device))
            visual = look(path)
        else:
            raise UserError(
                f"{path} is neither a picture ({', '.join(SUFFIXES)}) nor features ({', '.join(_ARRAYS)}): give either."
            )
        if model.reads_attributes and not visual.attributes:
            raise UserError(
                f"model={model.name} reads attribute words, and {path} has none: give an .npz with 'features' and, "
                "as an array of texts, 'attributes'."
            )
        found.append(visual)
    return found


def _of_arrays(model: Captioner, path: Path) -> Visual:
    """Features out of an .npz or .npy file."""
    if model.vision is not None:
        raise UserError(f"{path} holds features, and this model sees pixels: give pictures.")
    visual = ArrayFolder(path.parent, [path]).features(path.stem)
    assert visual.features is not None
    if visual.features.shape[1] != model.shape.feature_dim:
        raise UserError(
            f"{path} holds features that are {visual.features.shape[1]} wide; this model was made for "
            f"{model.shape.feature_dim}: give features made like those that it was trained on."
        )
    return visual


def _pixels(model: Captioner) -> Look:
    """Pictures in the size that the model's backbone was trained on."""
    from torchvision.transforms.v2 import functional

    def look(path: Path) -> Visual:
        image, size = read_image(path, "give a sound JPEG, PNG or the like"), model.model_settings.vision.size
        return Visual(pixels=image if size is None else functional.resize(image, list(size), antialias=True))

    return look


def _extracted(model: Captioner, path: Path, device: torch.device) -> Look:
    """Features of pictures, made as those that the model was trained on."""
    if model.shape.extractor is None:
        raise UserError(
            f"{path} is a picture, and this model reads features that vlp prepare did not make: pictures cannot be "
            "turned into them; give features (.npz)."
        )
    given = extract.settings_of(model.shape.extractor, words=model.reads_attributes)
    extractor = extract.extractor(given, device)

    def look(path: Path) -> Visual:
        image = read_image(path, "give a sound JPEG, PNG or the like")
        (record,) = extractor([extract.fitted(image, given)])
        return visual_of(record, str(path))

    return look
