"""Which attention stands in which layer, and the stacks of these layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vlp_translation.models.fitting import check, check_sockets
from vlp_translation.models.settings import Attn, Spec, TransformerSettings
from vlplatform.errors import UserError
from vlplatform.layers import Decoder, Encoder

Layers = list[dict[str, Any]]
"""A name and settings for each layer, from the bottom up."""

BILATERAL = frozenset({"bilateral", "bilateral_sa"})
CONVOLUTIONS = frozenset({"dynamic_conv", "light_conv"})
BOTH_SIDES = frozenset({"sa", "rel_pos", "acf1d"}) | BILATERAL | CONVOLUTIONS
"""What ``decoder_attn=auto`` takes over from the encoder."""
WINDOWS = (21, 11)
"""Bilateral windows of encoder and decoder (attention thesis, §3.6.4, table 3.7)."""


def encoder_layers(attn: Mapping[str, Any], model: TransformerSettings) -> Layers:
    """Of the encoder's layers.

    Raises:
        UserError: A list of another length, or a spec without a name.
    """
    spec = dict(attn) if model.encoder_attn is None else model.encoder_attn
    return _completed(spec, model.sizes.encoder_layers, WINDOWS[0], "model.encoder_attn")


def decoder_layers(attn: Mapping[str, Any], model: TransformerSettings) -> Layers:
    """Of the decoder's layers over what is written.

    Raises:
        UserError: A list of another length, or a spec without a name.
    """
    spec: Attn = model.decoder_attn
    if spec == "auto":
        spec = dict(attn)
        parts = _parts(str(spec.get("name", "auto")))
        if not parts <= BOTH_SIDES:
            spec = "sa"
        elif parts & BILATERAL and isinstance(spec.get("window"), int):
            spec["window"] = (spec["window"] + 1) // 2
    return _completed(spec, model.sizes.decoder_layers, WINDOWS[1], "model.decoder_attn")


def kernels(layers: int) -> list[int]:
    """Kernels of convolutions where the settings do not say, from the bottom up.

    3, 7 and 15 in the lowest layers and 31 in all above, which for 7 and 6 layers are fairseq's; of fewer than four
    layers the last ones of 3, 7, 15, 31, so that the top always sees far.
    """
    return [3, 7, 15, *[31] * (layers - 3)] if layers > 3 else [3, 7, 15, 31][4 - layers :]


def together(layers: Layers) -> dict[str, Any] | Layers:
    """One spec where all layers have the same, else all of them."""
    return layers[0] if layers and all(each == layers[0] for each in layers) else layers


def stacks(of_encoder: Layers, of_decoder: Layers, model: TransformerSettings) -> tuple[Encoder, Decoder]:
    """Encoder and decoder with these attentions, each tried out.

    Raises:
        UserError: An attention that does not fit its place, or sizes that do not go together.
    """
    sizes = model.sizes
    cross = _completed(model.cross_attn, sizes.decoder_layers, WINDOWS[1], "model.cross_attn")
    check_sockets(*([layer["name"] for layer in layers] for layers in (of_encoder, of_decoder, cross)))
    common: dict[str, Any] = {
        "dropout": sizes.dropout,
        "attention_dropout": model.attention_dropout,
        "hidden_dropout": model.hidden_dropout,
        "order": model.order,
        "activation": model.activation,
    }
    encoder = Encoder(
        sizes.dim, sizes.encoder_layers, attn=of_encoder, heads=sizes.heads, hidden=sizes.hidden, **common
    )
    decoder = Decoder(
        sizes.dim,
        sizes.decoder_layers,
        attn=of_decoder,
        cross=model.cross_attn,
        heads=sizes.decoder_heads,
        hidden=sizes.decoder_hidden,
        **common,
    )
    check(encoder, decoder, sizes.dim)
    return encoder, decoder


def try_out(attn: Mapping[str, Any], model: TransformerSettings) -> None:
    """See whether a model can be built with these settings, before any data is read; chance is not touched.

    Raises:
        UserError: It cannot; what does not fit, why, and what would is told.
    """
    with torch.random.fork_rng(devices=[]):
        stacks(encoder_layers(attn, model), decoder_layers(attn, model), model)


def _completed(spec: Attn, layers: int, window: int, where: str) -> Layers:
    """A name and settings for each layer, with the defaults that translation has for them."""
    if isinstance(spec, (str, Mapping)):
        specs: Sequence[Spec] = [spec] * layers
    else:
        specs = spec
        if len(specs) != layers:
            raise UserError(f"{where} has {len(specs)} specs for {layers} layers: give one, or one per layer.")
    return [_complete(each, i, layers, window, where) for i, each in enumerate(specs)]


def _complete(spec: Spec, layer: int, layers: int, window: int, where: str) -> dict[str, Any]:
    values: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    if not isinstance(values.get("name"), str):
        raise UserError(f"{where}: {spec!r} names no mechanism: write a name or {{name: …, setting: …}}.")
    if values["name"] == "auto":
        values["name"] = "sa"
    parts = _parts(values["name"])
    if parts & BILATERAL:
        values.setdefault("window", window)
    if parts & CONVOLUTIONS:
        values.setdefault("kernel", kernels(layers)[layer])
    return values


def _parts(name: str) -> set[str]:
    return {"sa" if part.strip() == "auto" else part.strip() for part in name.split("+")}
