"""Whether an attention can stand where it was put: each is called once as it will be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from vlplatform.attention import Cache, build, catalogue
from vlplatform.errors import UserError
from vlplatform.interpret.capture import evaluating
from vlplatform.layers import Decoder, DecoderLayer, Encoder, EncoderLayer


def check_sockets(encoder: Sequence[str], decoder: Sequence[str], cross: Sequence[str]) -> None:
    """Refuse mechanisms that do not work on tokens, before they are built.

    Args:
        encoder: The names of its layers, each a mechanism or a sum of them; unknown ones are passed over.
        decoder: Likewise.
        cross: Likewise.

    Raises:
        UserError: One has another socket; what would fit in its place is told.
    """
    places: tuple[tuple[str, Sequence[str], str, Callable[[nn.Module, torch.Tensor], Any]], ...] = (
        ("layer {} of the encoder", encoder, "attn", _whole),
        ("layer {} of the decoder", decoder, "model.decoder_attn", _stepwise),
        ("layer {} of the decoder, for the source,", cross, "model.cross_attn", _looking),
    )
    for where, names, key, call in places:
        for i, name in enumerate(names):
            for part in name.split("+"):
                mechanism = catalogue().get(part.strip())
                if mechanism is not None and "token" not in mechanism.sockets:
                    reason = f"attn={mechanism.name} fits the {' and '.join(mechanism.sockets)} socket, not tokens"
                    raise UserError(_sentence(where.format(i), reason, key, call))


def check(encoder: Encoder, decoder: Decoder, dim: int) -> None:
    """Try every attention once on two tokens, as it will be called, so that what does not fit is told at once.

    Raises:
        UserError: What does not fit, why, and what does.
    """
    like = next(decoder.parameters())
    x = torch.zeros(1, 2, dim, dtype=like.dtype, device=like.device)
    for i, layer in enumerate(encoder.layers):
        assert isinstance(layer, EncoderLayer)
        if reason := _refused(layer.attention, lambda own: _whole(own, x)):
            raise UserError(_sentence(f"layer {i} of the encoder", reason, "attn", _whole))
    for i, layer in enumerate(decoder.layers):
        assert isinstance(layer, DecoderLayer)
        if reason := _refused(layer.attention, lambda own: _stepwise(own, x)):
            raise UserError(_sentence(f"layer {i} of the decoder", reason, "model.decoder_attn", _stepwise))
        if reason := _refused(layer, lambda own: own(x, x, cache=Cache())):
            looks = _sentence(f"layer {i} of the decoder, for the source,", reason, "model.cross_attn", _looking)
            raise UserError(looks)


def _whole(attention: nn.Module, x: torch.Tensor) -> None:
    attention(x)


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
