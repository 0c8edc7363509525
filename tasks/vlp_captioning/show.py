"""Pictures of captions for the report: what was written, what people wrote, where each word looked, what was joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vlp_captioning.cluster_pictures import described, over_boxes, over_cells
from vlp_captioning.clusters import Labels, clusters, has_clusters, nest, phrases, tree
from vlp_captioning.models import Captioner, Images
from vlp_captioning.records import images_of
from vlplatform.interpret import capture, draw
from vlplatform.interpret.rows import SMALLEST
from vlplatform.task import Exhibit

if TYPE_CHECKING:
    from vlp_captioning.task import CaptioningTask

Picture = NDArray[np.uint8]

WORDS = (
    "Each map shows with which weights one word of the caption read the image: those of the last attention to the "
    "image that ran in the decoder when it wrote the word, the mean of the heads (md-san, fig. 7), laid on the grid "
    "cells or regions they belong to, the greater where regions overlap, scaled to the map's own maximum, and hidden "
    "below 2 % of it. A map says where this one layer read, not why the word was chosen: the encoder has mixed the "
    "image's vectors before, lower layers have read them, too, and the words before count as well. Brightness cannot "
    "be compared between words."
)
"""What the maps of words show and do not show; stands above them."""
CLUSTERS = (
    "Clusters of Ada-ClustFormer (ACF, fig. 5), in layers from the bottom up: grid cells of one colour, or regions "
    "with frames of one colour, belong together, white lines are borders, what is uncoloured is alone; words that "
    "belong together stand in brackets, and the tree has the brackets of all layers. The matrix C̃ is soft: tokens are "
    "drawn as one cluster where every pair of them has at least 0.5. A cluster narrows what its tokens attend to in "
    "that layer; it has no name, and no cluster of words is tied to one of the image. Colours mean nothing else."
)
"""What the pictures of clusters show and do not show; stands above them."""
CLUSTERED = 3
"""Records whose clusters are shown."""


def exhibits(task: CaptioningTask, model: Captioner, split: str, count: int) -> list[Exhibit]:
    """``count`` images spread evenly over a split, each with its caption and up to five references."""
    records = task.records(split)
    batch = _moved(task.collate([records[place] for place in _spread(len(records), count)]), model)
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
    """Where the first words of the first image's caption looked, and the clusters of some images and captions.

    Both are left out where the model has no such thing, or nobody knows where the image's vectors lie.
    """
    records = task.records(split)
    made = []
    if len(records):
        made += word_exhibits(task, model, task.collate([records[0]]), words)
    if has_clusters(model):
        for place in _spread(len(records), CLUSTERED):
            made += cluster_exhibits(task, model, task.collate([records[place]]))
    return made


def word_exhibits(task: CaptioningTask, model: Captioner, batch: dict[str, Any], words: int) -> list[Exhibit]:
    """A picture per word for a batch of one image: the mean of the heads of the last attention to the image."""
    batch = _moved(batch, model)
    item, images = task.item(batch["ids"][0]), model.seen(images_of(batch, model))
    picture = _large(task.data.picture(item))
    if picture is None or not _placed(images, batch):
        return []
    caption, numbers = _written(task, model, images, batch["ids"])
    looked = word_weights(model, images, numbers[:words])
    if not looked:
        return []
    shown = {"image": picture}
    for place, weights in enumerate(looked):
        word = f"{place + 1}. {model.vocabulary.words[numbers[place]]}"
        shown[word] = draw.heat_overlay(picture, _heat(weights, images, batch, picture))
    return [Exhibit(item.id, shown, f"where the words of “{caption}” looked", note=WORDS)]


def cluster_exhibits(task: CaptioningTask, model: Captioner, batch: dict[str, Any]) -> list[Exhibit]:
    """A picture per layer for a batch of one image, and the caption's words in brackets."""
    batch = _moved(batch, model)
    item, images = task.item(batch["ids"][0]), model.seen(images_of(batch, model))
    caption, numbers = _written(task, model, images, batch["ids"])
    found, shown = clusters(model, images, numbers), dict[str, Picture]()
    picture = _large(task.data.picture(item))
    if picture is not None and found.image and _placed(images, batch):
        shown["image"] = picture
        for layer in _layers(len(found.image)):
            labels = found.image[layer]
            shown[f"layer {layer + 1}: {described(labels)}"] = _clustered(picture, labels, images, batch)
    said = [model.vocabulary.words[number] for number in numbers]
    lines = [f"“{caption}”"]
    if found.words and said:
        lines += [f"layer {layer + 1}: {phrases(said, found.words[layer])}" for layer in _layers(len(found.words))]
        lines += [f"tree: {tree(said, found.words)}"] if nest(found.words) else []
    return [Exhibit(item.id, shown, " — ".join(lines), note=CLUSTERS, heat=False)]


def word_weights(model: Captioner, images: Images, tokens: list[int]) -> list[Tensor]:
    """Per word the weights (N,) of one image's vectors in the last attention to them, the mean of its heads.

    Empty where no word looks at the image, as in ETA's variant ``semantic``.
    """
    memory = model.encode(images)
    count = memory.tokens[0].shape[1]
    state = model.start(memory)
    previous, found = model.vocabulary.bos, []
    for token in tokens:
        with capture(model) as captured:
            model.step(torch.tensor([previous], device=model.device), state)
        if names := [name for name in captured.names("tokens") if _over_image(name, model.image_attentions)]:
            looked = captured.weights(names[-1])[0, :, -1].mean(0)
            found.append(looked[:count])  # several memories read side by side begin with the image
        previous = token
    return found


def _over_image(name: str, ends: Sequence[str]) -> bool:
    return any(f".{name}".endswith(f".{end}") for end in ends)


def _spread(length: int, count: int) -> list[int]:
    """``count`` places spread evenly over a length, all of it where it is shorter."""
    count = min(length, count)
    return [(2 * i + 1) * length // (2 * count) for i in range(count)]


def _layers(count: int) -> list[int]:
    """Layers that are shown: every other one and the last; of six the paper's 1, 3, 5 and 6."""
    return sorted({*range(0, count, 2), count - 1})


def _written(task: CaptioningTask, model: Captioner, images: Images, ids: Sequence[str]) -> tuple[str, list[int]]:
    """The caption of one image, decoded as in an evaluation, and the numbers of its words."""
    caption = task.settings.decode.captions(model, images, ids)[0][0]
    return caption.text, [number for number in caption.tokens if number != model.vocabulary.eos]


def _placed(images: Images, batch: dict[str, Any]) -> bool:
    """Whether anybody knows where the image's vectors lie in the picture."""
    return batch.get("boxes") is not None or (images.geometry is not None and images.geometry.grid is not None)


def _boxes(batch: dict[str, Any], picture: Picture) -> list[tuple[int, int, int, int]]:
    """Left, top, right and bottom of the batch's first image's boxes in the picture's pixels, not below 0."""
    height, width = picture.shape[:2]
    sizes = batch.get("size")
    scale = torch.ones(2) if sizes is None else torch.tensor([width, height]) / sizes[0].cpu()
    corners = (batch["boxes"][0].cpu().view(-1, 2, 2) * scale).view(-1, 4).round().int().clamp_min(0)
    return [(left, top, right, bottom) for left, top, right, bottom in corners.tolist()]


def _heat(weights: Tensor, images: Images, batch: dict[str, Any], picture: Picture) -> Tensor:
    """Weights of boxes or grid cells as a map over the picture."""
    if batch.get("boxes") is None:
        assert images.geometry is not None
        assert images.geometry.grid is not None
        return weights.view(images.geometry.grid)
    heat = torch.zeros(picture.shape[:2])
    for weight, (left, top, right, bottom) in zip(weights.tolist(), _boxes(batch, picture)):
        heat[top:bottom, left:right].clamp_(min=weight)  # a sum would make slivers of overlap the brightest
    return heat


def _clustered(picture: Picture, labels: Labels, images: Images, batch: dict[str, Any]) -> Picture:
    """Clusters of grid cells or of boxes on the picture."""
    if batch.get("boxes") is None:
        assert images.geometry is not None
        assert images.geometry.grid is not None
        return over_cells(picture, labels.reshape(images.geometry.grid))
    return over_boxes(picture, labels, _boxes(batch, picture))


def _large(picture: Picture | None) -> Picture | None:
    """A small picture enlarged by a whole number, so that borders are thin and smooth maps look smooth."""
    if picture is None:
        return None
    times = max(1, round(SMALLEST / min(picture.shape[:2])))
    return picture.repeat(times, axis=0).repeat(times, axis=1)


def _moved(batch: dict[str, Any], model: Captioner) -> dict[str, Any]:
    return {key: value.to(model.device) if isinstance(value, Tensor) else value for key, value in batch.items()}
