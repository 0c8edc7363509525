"""Pictures of captions for the report: what was written, what people wrote, and where each word looked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vlp_captioning.models import Captioner
from vlp_captioning.records import images_of
from vlplatform.interpret import capture, draw
from vlplatform.task import Exhibit

if TYPE_CHECKING:
    from vlp_captioning.task import CaptioningTask

Picture = NDArray[np.uint8]


def exhibits(task: CaptioningTask, model: Captioner, split: str, count: int) -> list[Exhibit]:
    """``count`` images spread evenly over a split, each with its caption and up to five references."""
    items = task.data.items(split)
    count = min(len(items), count)
    places = [(2 * i + 1) * len(items) // (2 * count) for i in range(count)]
    records = task.records(split)
    batch = _moved(task.collate([records[place] for place in places]), model)
    found = task.predict(model, batch)
    made = []
    for prediction in found:
        item = task.item(prediction["id"])
        references = " · ".join(f"“{caption}”" for caption in item.captions[:5]) or "none"
        picture = task.data.picture(item)
        text = f"“{prediction['caption']}” (log-probability {prediction['log_prob']:.1f}) — people: {references}"
        made.append(Exhibit(item.id, {} if picture is None else {"image": picture}, text))
    return made


def attention_exhibits(task: CaptioningTask, model: Captioner, split: str, words: int = 12) -> list[Exhibit]:
    """The first image of a split, a picture per word of its caption: where the decoder's last attention looked.

    Each picture shows the mean of the heads. What a word's weights fall on is no proof that the word was chosen for it.
    """
    records = task.records(split)
    batch = _moved(task.collate([records[0]]), model)
    item = task.item(batch["ids"][0])
    picture = task.data.picture(item)
    if picture is None:
        return []
    images = model.seen(images_of(batch, model))
    if images.geometry is not None and images.geometry.grid is not None:
        batch["grid"] = images.geometry.grid
    caption = model.generate(images, beam=3, max_length=words)[0][0]
    shown = {"image": picture}
    if not (batch.get("boxes") is not None or batch.get("grid")):
        return []  # nobody knows where the features lie
    numbered = [number for number in caption.tokens if number != model.vocabulary.eos]
    for place, weights in enumerate(word_weights(model, batch, numbered)):
        word = f"{place + 1}. {model.vocabulary.words[numbered[place]]}"
        shown[word] = draw.heat_overlay(picture, _heat(weights, batch, picture))
    return [Exhibit(item.id, shown, f"where the words of “{caption.text}” looked")]


def word_weights(model: Captioner, batch: dict[str, Any], tokens: list[int]) -> list[Tensor]:
    """Per word the weights (N,) of the image's vectors in the last attention to them, the mean of its heads."""
    memory = model.encode(images_of(batch, model))
    count = memory.tokens[0].shape[1]
    state = model.start(memory)
    previous, found = model.vocabulary.bos, []
    for token in tokens:
        with capture(model) as captured:
            model.step(torch.tensor([previous], device=model.device), state)
        looked = [w for w in map(captured.weights, _over_memory(captured.names("tokens"))) if w.shape[-1] == count]
        if looked:
            found.append(looked[-1][0, :, -1].mean(0))
        previous = token
    return found


def _over_memory(names: list[str]) -> list[str]:
    """Attentions to the image: all but those of the words to each other."""
    return [name for name in names if not name.endswith((".attention", ".of_words")) or name == "attention"]


def _heat(weights: Tensor, batch: dict[str, Any], picture: Picture) -> Tensor:
    """Weights of boxes or grid cells as a map over the picture."""
    if (boxes := batch.get("boxes")) is None:
        return weights[: batch["grid"][0] * batch["grid"][1]].view(batch["grid"])
    height, width = picture.shape[:2]
    sizes = batch.get("size")
    scale = torch.ones(2) if sizes is None else torch.tensor([width, height]) / sizes[0].cpu()
    heat = torch.zeros(height, width)
    for weight, box in zip(
        weights.tolist(), (boxes[0].cpu().view(-1, 2, 2) * scale).view(-1, 4).round().int().tolist()
    ):
        left, top, right, bottom = (max(0, value) for value in box)
        heat[top:bottom, left:right] += weight
    return heat


def _moved(batch: dict[str, Any], model: Captioner) -> dict[str, Any]:
    return {key: value.to(model.device) if isinstance(value, Tensor) else value for key, value in batch.items()}
