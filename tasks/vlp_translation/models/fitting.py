"""Whether an attention can stand where it was put: each is called once as it will be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vlplatform.attention import Cache, build, catalogue
from vlplatform.errors import UserError
from vlplatform.interpret.capture import evaluating
from vlplatform.layers import Decoder, DecoderLayer, Encoder, EncoderLayer


def check(encoder: Encoder, decoder: Decoder, dim: int) -> None:
    """Try every attention once on two tokens, as it will be called, so that what does not fit is told at once.

    Raises:
        UserError: What does not fit, why, and what does.
    """
    like = next(decoder.parameters())
    x = torch.zeros(1, 2, dim, dtype=like.dtype, device=like.device)
    for i, layer in enumerate(encoder.layers):
        assert isinstance(layer, EncoderLayer)
        if reason := _refused(layer.attention, lambda own: own(x)):
            raise UserError(_sentence(f"layer {i} of the encoder", reason, "attn", lambda own, y: own(y)))
    for i, layer in enumerate(decoder.layers):
        assert isinstance(layer, DecoderLayer)
        if reason := _refused(layer.attention, lambda own: _stepwise(own, x)):
            raise UserError(_sentence(f"layer {i} of the decoder", reason, "model.decoder_attn", _stepwise))
        if reason := _refused(layer, lambda own: own(x, x, cache=Cache())):
            looks = _sentence(f"layer {i} of the decoder, for the source,", reason, "model.cross_attn", _looking)
            raise UserError(looks)


def _stepwise(attention: nn.Module, x: torch.Tensor) -> None:
    cache = Cache()
    for i in range(x.shape[1]):
        attention(x[:, i : i + 1], causal=True, cache=cache)


def _looking(attention: nn.Module, x: torch.Tensor) -> None:
    if any(getattr(part, "mixes_queries", False) for part in attention.modules()):
        raise UserError("it mixes queries.")
    attention(x, x, cache=Cache())


def _refused(module: nn.Module, call: Callable[[nn.Module], Any]) -> str | None:
    """Why a call is refused; None: it is not."""
    with evaluating(module):
        try:
            call(module)
        except UserError as error:
            return str(error).rstrip(".")
    return None


def _sentence(where: str, reason: str, key: str, call: Callable[[nn.Module, torch.Tensor], Any]) -> str:
    x, fitting = torch.zeros(1, 2, 64), []
    for name, mechanism in catalogue().items():
        if "token" in mechanism.sockets and not _refused(build(name, dim=64, socket="token"), lambda own: call(own, x)):
            fitting.append(name)
    return f"the attention of {where} cannot stand there ({reason}); set {key} to one of {', '.join(fitting)}."
