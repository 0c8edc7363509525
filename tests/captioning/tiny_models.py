"""Tiny captioners of every kind, and images that fit them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vlp_captioning.models import MODELS, Captioner, Shape
from vlplatform.settings import parse
from vlplatform.text import Vocabulary

WORDS = ("a", "red", "blue", "square", "circle", "above", "below", "left", "of", "the")
VOCABULARY = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", *WORDS))
WIDTH = 6

_LAYERS: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "hidden": 24}
TINY: dict[str, dict[str, Any]] = {
    "transformer": {"heads": 2, **_LAYERS},
    "mdsan": {"heads": 2, **_LAYERS},
    "ngsan": {"heads": 2, **_LAYERS},
    "acf": {"heads": 2, **_LAYERS},
    "xlan": {"heads": 2, "encoder_layers": 2},
    "xtransformer": {"heads": 2, **_LAYERS},
    "eta": {"heads": 2, **_LAYERS},
    "updown": {"attention_dim": 5},
    "m2": {"heads": 2, "slots": 3, **_LAYERS},
}


def make(
    name: str, *, seed: int = 0, attn: dict[str, Any] | None = None, vocabulary: Vocabulary = VOCABULARY, **model: Any
) -> Captioner:
    """A model of a kind with random weights in double precision, biases and gains included, in evaluation mode."""
    kind = MODELS[name]
    torch.manual_seed(seed)
    settings = parse(kind.Settings, {"dim": 16, "max_length": 64, **TINY[name], **model}, "model")
    chosen = {"name": kind.default_attn} if attn is None else attn
    built = kind(vocabulary, Shape(WIDTH), chosen, settings).double().eval()
    for parameter in built.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return built


def images(batch: int = 3, count: int = 7, seed: int = 0, real: tuple[int, ...] | None = None) -> dict[str, Tensor]:
    """Regions with boxes and attribute words in double precision; ``real`` says how many of each image are real."""
    torch.manual_seed(1000 + seed)
    corners = 80 * torch.rand(batch, count, 2, dtype=torch.double)
    sizes = 1 + 20 * torch.rand(batch, count, 2, dtype=torch.double)
    lengths = torch.tensor(real or (count,) * batch)
    return {
        "features": torch.randn(batch, count, WIDTH, dtype=torch.double),
        "mask": torch.arange(count) < lengths[:, None],
        "boxes": torch.cat((corners, corners + sizes), -1),
        "size": torch.tensor([[100.0, 90.0]]).repeat(batch, 1),
        "attributes": torch.randint(4, len(VOCABULARY), (batch, 5)),
        "attribute_mask": torch.arange(5) < torch.tensor([5, 2, 0] * batch)[:batch, None],
    }


def captions(rows: int, length: int, seed: int = 0) -> Tensor:
    """Begin symbols and words, (rows, length)."""
    torch.manual_seed(2000 + seed)
    tokens = torch.randint(3, len(VOCABULARY), (rows, length))
    tokens[:, 0] = VOCABULARY.bos
    return tokens
