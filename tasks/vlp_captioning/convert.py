"""The authors' captioners from their checkpoints: MD-SAN, M², X-LAN and X-Transformer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vlp_captioning.models import Shape
from vlp_captioning.models.m2 import M2Captioner, M2Settings
from vlp_captioning.models.mdsan import MdsanCaptioner, MdsanSettings
from vlp_captioning.models.xlan import XlanCaptioner, XlanSettings
from vlp_captioning.models.xtransformer import XTransformerCaptioner, XTransformerSettings
from vlplatform.attention.xlinear import Activation
from vlplatform.errors import UserError
from vlplatform.hub.importer import Checkpoint, Importer, fill
from vlplatform.layers.official import MDSAN_ATTENTION, XLINEAR
from vlplatform.text import Vocabulary

Renaming = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]
"""Patterns of the authors' names and what stands for them in ours."""

_WIDTHS = {"head_dim": "fc_v", "key_dim": "fc_q"}

_STATES = ("running_keys", "running_values", "running_mask_self_attention", "running_seq")
"""What M² and MD-SAN keep between the steps of decoding, as buffers that go into their checkpoints; no weights."""


@dataclass(frozen=True)
class MdsanetSettings:
    """What the weights of MD-SAN cannot tell.

    Attributes:
        vocabulary: File with the words in the order of their numbers: a JSON list (or mapping with ``itos``), or a line
            each; without one, words are called word0, word1 ….
        pad: Number of the filler.
        bos: Number of the symbol that begins a caption.
        eos: Number of the symbol that ends it.
        unk: Number that stands for unknown words.
        drop: Rate at which branches are dropped in further training.
        heads: Heads of the decoder where they are not those of the encoder.
    """

    vocabulary: str | None = None
    pad: int = 1
    bos: int = 2
    eos: int = 3
    unk: int | None = 0
    drop: float = 0.4
    heads: int | None = None


@dataclass(frozen=True)
class M2ConvertSettings:
    """What the weights of M² cannot tell.

    Attributes:
        vocabulary: As for mdsanet.
        heads: Heads.
        pad: Number of the filler.
        bos: Number of the symbol that begins a caption.
        eos: Number of the symbol that ends it.
        unk: Number that stands for unknown words.
    """

    vocabulary: str | None = None
    heads: int = 8
    pad: int = 1
    bos: int = 2
    eos: int = 3
    unk: int | None = 0


@dataclass(frozen=True)
class JdaiSettings:
    """What the weights of X-LAN and X-Transformer cannot tell.

    Attributes:
        vocabulary: File with the words in the order of their numbers (the authors' list begins with ``.``, the symbol
            0 that begins and ends): a JSON list, or a line each; without one, words are called word0, word1 ….
        symbol: Number that is begin, end and filler at once.
        unk: Number that stands for unknown words; null: they are left out.
        max_length: Words of the longest caption (X-LAN; X-Transformer's table of positions tells).
        activation: ``MODEL.BILINEAR.ACT``, and of features and words, of the configuration it was trained with.
        alpha: ``MODEL.BILINEAR.ELU_ALPHA``: of CELU and ELU everywhere.
    """

    vocabulary: str | None = None
    symbol: int = 0
    unk: int | None = None
    max_length: int = 64
    activation: Activation = "celu"
    alpha: float = 1.3


def mdsanet(checkpoint: Checkpoint, chosen: MdsanetSettings) -> nn.Module:
    """MD-SAN from the state dict of ``Transformer`` in Young499/image-captioning-MDSANet.

    Raises:
        UserError: Weights of something else.
    """
    weights = checkpoint.weights
    _require(weights, "mdsanet", "encoder.layers.0.mhatts.0.attention.W", "decoder.pos_emb.weight", "encoder.fc.weight")
    size, dim = weights["decoder.word_emb.weight"].shape
    heads = len(weights["encoder.layers.0.mhatts.0.attention.W"])
    branches = _count(weights, r"encoder\.layers\.0\.mhatts\.(\d+)\.")
    layers, decoders = _count(weights, r"encoder\.layers\.(\d+)\."), _count(weights, r"decoder\.layers\.(\d+)\.")
    decoder_heads = chosen.heads or heads
    attn = {"name": "mdsa", "heads": heads, "branches": branches, "drop": chosen.drop}
    attn |= _head_sizes(weights, "encoder.layers.0.mhatts.0.attention.", heads, dim)
    plain = {"name": "sa", "heads": decoder_heads}
    plain |= _head_sizes(weights, "decoder.layers.0.self_att.attention.", decoder_heads, dim)
    model = MdsanCaptioner(
        _vocabulary(chosen.vocabulary, size, pad=chosen.pad, bos=chosen.bos, eos=chosen.eos, unk=chosen.unk),
        Shape(weights["encoder.fc.weight"].shape[1], forbidden=()),  # their search forbids nothing
        attn,
        MdsanSettings(
            dim=dim,
            heads=heads,
            hidden=weights["encoder.layers.0.pwff.fc1.weight"].shape[0],
            encoder_layers=layers,
            decoder_layers=decoders,
            decoder_attn=plain,
            cross_attn=plain,
            max_length=len(weights["decoder.pos_emb.weight"]) - 2,
        ),
    )
    renaming: Renaming = (
        (r"\.mhatts\.(\d+)\.attention\.(W|V)$", lambda m: f".attention.branches.{m[1]}.terms.0.{m[2].lower()}"),
        (r"\.mhatts\.(\d+)\.attention\.", r".attention.branches.\1."),
        (r"\.mhatts\.(\d+)\.layer_norm\.", r".attention.norms.\1."),
        (r"\.lnorm\.", ".around_attention.norm."),
        (r"\.self_att\.attention\.", ".attention."),
        (r"\.self_att\.layer_norm\.", ".inside_attention.norm."),
        (r"\.lnorm1\.", ".around_attention.norm."),
        (r"\.enc_att\.attention\.", ".cross."),
        (r"\.enc_att\.layer_norm\.", ".inside_cross.norm."),
        (r"\.lnorm2\.", ".around_cross.norm."),
        *_of_m2(),
    )
    ours = _renamed(weights, renaming)
    ours["words.positions"] = ours["words.positions"][1:]  # row 0 is for padding, whose output is zero in any case
    return fill(model, ours, "mdsanet")


def m2(checkpoint: Checkpoint, chosen: M2ConvertSettings) -> nn.Module:
    """The M² Transformer from the state dict of ``Transformer`` in aimagelab/meshed-memory-transformer.

    Raises:
        UserError: Weights of something else.
    """
    weights = checkpoint.weights
    slots = "encoder.layers.0.mhatt.attention.m_k"
    _require(weights, "m2", slots, "decoder.layers.0.fc_alpha1.weight", "encoder.fc.weight")
    size, dim = weights["decoder.word_emb.weight"].shape
    if weights["decoder.layers.0.self_att.attention.fc_q.weight"].shape != (dim, dim):
        raise UserError("the m2 checkpoint has heads of another width than D / heads, which is not read here.")
    model = M2Captioner(
        _vocabulary(chosen.vocabulary, size, pad=chosen.pad, bos=chosen.bos, eos=chosen.eos, unk=chosen.unk),
        Shape(weights["encoder.fc.weight"].shape[1], forbidden=()),
        {"name": M2Captioner.default_attn},
        M2Settings(
            dim=dim,
            heads=chosen.heads,
            hidden=weights["encoder.layers.0.pwff.fc1.weight"].shape[0],
            encoder_layers=_count(weights, r"encoder\.layers\.(\d+)\."),
            decoder_layers=_count(weights, r"decoder\.layers\.(\d+)\."),
            slots=weights[slots].shape[1],
            max_length=len(weights["decoder.pos_emb.weight"]) - 2,
        ),
    )
    renaming: Renaming = (
        (r"\.mhatt\.attention\.m_k$", ".attention.key_slots"),
        (r"\.mhatt\.attention\.m_v$", ".attention.value_slots"),
        (r"\.mhatt\.attention\.", ".attention."),
        (r"\.mhatt\.layer_norm\.", ".around_attention.norm."),
        (r"\.self_att\.attention\.", ".attention."),
        (r"\.self_att\.layer_norm\.", ".around_attention.norm."),
        (r"\.enc_att\.attention\.", ".cross."),
        (r"\.enc_att\.layer_norm\.", ".around_cross.norm."),
        (r"\.fc_alpha(\d+)\.", lambda m: f".gates.{int(m[1]) - 1}."),
        (r"^encoder\.layers\.", "encoder."),
        (r"^decoder\.layers\.", "layers."),
        *_of_m2(),
    )
    ours = _renamed(weights, renaming)
    ours["words.positions"] = ours["words.positions"][1:]
    return fill(model, ours, "m2")


def jdai_xlan(checkpoint: Checkpoint, chosen: JdaiSettings) -> nn.Module:
    """X-LAN from the state dict of ``XLAN`` in JDAI-CV/image-captioning.

    Raises:
        UserError: Weights of something else.
    """
    weights = checkpoint.weights
    _require(weights, "jdai-xlan", "att_lstm.weight_ih", "word_embed.0.weight", "encoder_layers.proj.weight")
    size, dim = weights["word_embed.0.weight"].shape
    below = "encoder_layers.layers.0.encoder_attn."
    model = XlanCaptioner(
        _one_symbol(chosen, size),
        Shape(weights["att_embed.0.weight"].shape[1], forbidden=()),
        {"name": XlanCaptioner.default_attn},
        XlanSettings(
            dim=dim,
            encoder_layers=_count(weights, r"encoder_layers\.layers\.(\d+)\."),
            max_length=chosen.max_length,
            word_activation=chosen.activation,
            word_alpha=chosen.alpha,
            **_block_sizes(weights, below, dim, chosen),
        ),
    )
    renaming: Renaming = (
        (r"^word_embed\.0\.", "words."),
        (r"^att_embed\.0\.", "features.map."),
        (r"^encoder_layers\.layers\.(\d+)\.encoder_attn\.", r"encoder.blocks.\1."),
        (r"^encoder_layers\.bifeat_emb\.(\d+)\.0\.", r"encoder.updates.\1.map."),
        (r"^encoder_layers\.layer_norms\.(\d+)\.", r"encoder.updates.\1.norm."),
        (r"^encoder_layers\.proj\.", "encoder.joined."),
        (r"^encoder_layers\.layer_norm\.", "encoder.norm."),
        (r"^attention\.layers\.0\.encoder_attn\.", "attention."),
        (r"^attention\.proj\.", "attended."),
        (r"^attention\.layer_norm\.", "attended_norm."),
        (r"^att_lstm\.", "lstm."),
        (r"^att2ctx\.0\.", "context."),
        (r"^logit\.", "output."),
        *_of_blocks(),
    )
    return fill(model, _renamed(weights, renaming), "jdai-xlan")


def jdai_xtransformer(checkpoint: Checkpoint, chosen: JdaiSettings) -> nn.Module:
    """X-Transformer from the state dict of ``XTransformer`` in JDAI-CV/image-captioning.

    Raises:
        UserError: Weights of something else.
    """
    weights = checkpoint.weights
    _require(
        weights, "jdai-xtransformer", "decoder.embed_tokens.weight", "decoder.wbil1.0.weight", "att_embed.2.weight"
    )
    size, dim = weights["decoder.embed_tokens.weight"].shape
    below = "encoder.layers.0.encoder_attn."
    model = XTransformerCaptioner(
        _one_symbol(chosen, size),
        Shape(weights["att_embed.0.weight"].shape[1], forbidden=()),
        {"name": XTransformerCaptioner.default_attn},
        XTransformerSettings(
            dim=dim,
            encoder_layers=_count(weights, r"encoder\.layers\.(\d+)\."),
            decoder_layers=_count(weights, r"decoder\.layers\.(\d+)\."),
            hidden=weights["encoder.layers.0.ff_layer.fc1.weight"].shape[0],
            max_length=weights["decoder.embed_positions.pe"].shape[1] - 1,
            **_block_sizes(weights, below, dim, chosen),
        ),
    )
    renaming: Renaming = (
        (r"^att_embed\.0\.", "features.map."),
        (r"^att_embed\.2\.", "features.norm."),
        (r"\.ff_layer\.fc1\.", ".ff_layer.inside.first."),
        (r"\.ff_layer\.fc2\.", ".ff_layer.inside.second."),
        (r"\.ff_layer\.layer_norms\.", ".ff_layer.around.norm."),
        (r"^encoder\.layers\.(\d+)\.encoder_attn\.", r"encoder.blocks.\1."),
        (r"^encoder\.layers\.(\d+)\.bifeat_emb\.0\.", r"encoder.updates.\1.map."),
        (r"^encoder\.layers\.(\d+)\.layer_norm\.", r"encoder.updates.\1.norm."),
        (r"^encoder\.layers\.(\d+)\.ff_layer\.", r"encoder.feed_forwards.\1."),
        (r"^encoder\.proj_norm\.0\.", "encoder.joined."),
        (r"^encoder\.proj_norm\.1\.", "encoder.norm."),
        (r"^decoder\.layers\.(\d+)\.word_attn\.", r"layers.\1.of_words."),
        (r"^decoder\.layers\.(\d+)\.cross_att\.", r"layers.\1.of_image."),
        (r"^decoder\.layers\.(\d+)\.layer_norm_cross\.", r"layers.\1.cross_norm."),
        (r"^decoder\.layers\.(\d+)\.layer_norm_gx\.", r"layers.\1.query_norm."),
        (r"^decoder\.layers\.(\d+)\.bifeat_emb\.0\.", r"layers.\1.update.map."),
        (r"^decoder\.layers\.(\d+)\.layer_norm_x\.", r"layers.\1.update.norm."),
        (r"^decoder\.layers\.(\d+)\.ff_layer\.", r"layers.\1.feed_forward."),
        (r"^decoder\.embed_tokens\.", "words.words."),
        (r"^decoder\.embed_positions\.pe$", "words.positions"),
        (r"^decoder\.layer_norm_word\.", "words.norm."),
        (r"^decoder\.wbil1\.0\.", "of_image.map."),
        (r"^decoder\.wbil1\.2\.", "of_image.norm."),
        (r"^decoder\.wbil2\.0\.", "of_words.map."),
        (r"^decoder\.wbil2\.2\.", "of_words.norm."),
        (r"^decoder\.proj_norm\.0\.", "joined."),
        (r"^decoder\.proj_norm\.2\.", "joined_norm."),
        (r"^decoder\.generator\.", "output."),
        *_of_blocks(),
    )
    ours = _renamed(weights, renaming)
    ours["words.positions"] = ours["words.positions"][0]
    return fill(model, ours, "jdai-xtransformer")


def importers() -> tuple[Importer, ...]:
    """Whose checkpoints this task can convert."""
    return (
        Importer("mdsanet", "MD-SAN (Young499/image-captioning-MDSANet)", MdsanetSettings, mdsanet),
        Importer("m2", "M² Transformer (aimagelab/meshed-memory-transformer)", M2ConvertSettings, m2),
        Importer("jdai-xlan", "X-LAN (JDAI-CV/image-captioning)", JdaiSettings, jdai_xlan),
        Importer("jdai-xtransformer", "X-Transformer (JDAI-CV/image-captioning)", JdaiSettings, jdai_xtransformer),
    )


def _of_m2() -> Renaming:
    """The names that M² and its descendant MD-SAN share."""
    return [
        (r"^encoder\.fc\.", "features.map."),
        (r"^encoder\.layer_norm\.", "features.norm."),
        (r"\.pwff\.layer_norm\.", ".around_feed_forward.norm."),
        (r"\.pwff\.fc1\.", ".feed_forward.first."),
        (r"\.pwff\.fc2\.", ".feed_forward.second."),
        (r"^decoder\.fc\.", "output."),
        (r"^decoder\.word_emb\.weight$", "words.words.weight"),
        (r"^decoder\.pos_emb\.weight$", "words.positions"),
        *((rf"\.{theirs}\.", f".{ours}.") for theirs, ours in MDSAN_ATTENTION.items()),
    ]


def _of_blocks() -> Renaming:
    """The names inside an X-Linear block."""
    return [(rf"\.{re.escape(theirs)}\.", f".{ours}.") for theirs, ours in XLINEAR.items()]


def _head_sizes(weights: dict[str, Tensor], attention: str, heads: int, dim: int) -> dict[str, int]:
    """The widths d_v and d_k of heads, where one of them is not D / heads."""
    widths = {key: weights[f"{attention}{name}.weight"].shape[0] for key, name in _WIDTHS.items()}
    return {} if set(widths.values()) == {dim} else {key: width // heads for key, width in widths.items()}


def _block_sizes(weights: dict[str, Tensor], block: str, dim: int, chosen: JdaiSettings) -> dict[str, Any]:
    """Heads and middle width that a block's weights tell, and the activation, which they do not."""
    mid, width = weights[f"{block}attn_net.attention_basic.0.weight"].shape
    activation = {"activation": chosen.activation, "feature_activation": chosen.activation}
    alpha = {"alpha": chosen.alpha, "feature_alpha": chosen.alpha}
    return {"heads": dim // width, "mid": mid, **activation, **alpha}


def _renamed(weights: dict[str, Tensor], renaming: Renaming) -> dict[str, Tensor]:
    ours: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name.rpartition(".")[2] in _STATES:
            continue
        for pattern, replacement in renaming:
            name = re.sub(pattern, replacement, name)
        ours[name] = tensor
    return ours


def _count(weights: dict[str, Tensor], pattern: str) -> int:
    """How many numbered modules there are whose names begin with the pattern."""
    return 1 + max((int(m[1]) for m in (re.match(pattern, name) for name in weights) if m), default=-1)


def _require(weights: dict[str, Tensor], source: str, *names: str) -> None:
    for name in names:
        if name not in weights:
            have = ", ".join(sorted(weights)[:3])
            raise UserError(
                f"the checkpoint has no {name}, which every {source} model has (it begins with {have}): give the state "
                "dict of the whole model, or another SOURCE."
            )


def _one_symbol(chosen: JdaiSettings, size: int) -> Vocabulary:
    return _vocabulary(chosen.vocabulary, size, pad=chosen.symbol, bos=chosen.symbol, eos=chosen.symbol, unk=chosen.unk)


def _vocabulary(path: str | None, size: int, **symbols: int | None) -> Vocabulary:
    """The words of a file, or placeholders.

    Raises:
        UserError: The file cannot be read, or has another number of words than the weights.
    """
    words = tuple(f"word{i}" for i in range(size)) if path is None else _words(Path(path).expanduser())
    if len(words) != size:
        raise UserError(f"{path} has {len(words)} words, the weights {size}: give the vocabulary of this checkpoint.")
    return Vocabulary.from_dict({"words": words, **symbols})


def _words(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else text.splitlines()
    except (OSError, ValueError) as error:
        raise UserError(
            f"the vocabulary {path} cannot be read ({error}): give a JSON list or a word per line."
        ) from error
    found = found.get("itos") if isinstance(found, dict) else found
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise UserError(f"the vocabulary {path} is no list of words: give a JSON list or a word per line.")
    return tuple(found)
