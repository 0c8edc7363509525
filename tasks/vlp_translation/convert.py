"""fairseq's Transformers and lightweight and dynamic convolutions from their checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from vlp_translation.ensemble import members_of
from vlp_translation.models import TransformerSettings, Translator
from vlp_translation.models.attentions import Layers, together
from vlp_translation.texts import Side, Texts
from vlp_translation.texts.codes import read_codes
from vlp_translation.texts.dictionary import SPECIALS, read_dictionary
from vlp_translation.texts.placeholders import notes_of, placeholders
from vlp_translation.texts.sentence_pieces import SentencePieces
from vlp_translation.texts.settings import Files, of_side
from vlp_translation.texts.side import Splitter
from vlp_translation.texts.whole import WholeWords
from vlp_translation.texts.wording import Wording
from vlplatform.errors import UserError
from vlplatform.hub.importer import Checkpoint, Importer, fill
from vlplatform.layers.feed_forward import Activation
from vlplatform.text import Vocabulary
from vlplatform.text.subwords import Pieces

T = TypeVar("T")

_NO_WEIGHTS = re.compile(r"(^|\.)(version|_float_tensor|embed_positions\.weights)$")
"""What fairseq keeps in state dicts beside weights: versions, empty tensors, tables of sines."""

_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
"""What fairseq's activation functions are called here; ``gelu_fast`` is its old name for ``gelu_accurate``."""

_OLD_NORMS = {
    ("encoder", "self_attn"): ("self_attn_layer_norm", "final_layer_norm"),
    ("encoder", "conv"): ("layer_norm1", "layer_norm2"),
    ("decoder", "self_attn"): ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    ("decoder", "conv"): ("conv_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
"""What the numbered ``layer_norms`` of older checkpoints are called today."""

_RENAMING = (
    (r"^encoder\.embed_tokens\.", "source.tokens."),
    (r"^decoder\.embed_tokens\.", "target.tokens."),
    (r"^encoder\.embed_positions\.", "source.positions."),
    (r"^decoder\.embed_positions\.", "target.positions."),
    (r"^encoder\.emb_layer_norm\.", "source.norm."),
    (r"^decoder\.emb_layer_norm\.", "target.norm."),
    (r"^encoder\.layernorm_embedding\.", "source.norm."),
    (r"^decoder\.layernorm_embedding\.", "target.norm."),
    (r"^encoder\.layer_norm\.", "encoder.norm."),
    (r"^decoder\.layer_norm\.", "decoder.norm."),
    (r"^decoder\.output_projection\.", "output."),
    (r"\.self_attn_layer_norm\.", ".around_attention.norm."),
    (r"\.conv_layer_norm\.", ".around_attention.norm."),
    (r"\.layer_norm1\.", ".around_attention.norm."),
    (r"\.layer_norm2\.", ".around_feed_forward.norm."),
    (r"\.encoder_attn_layer_norm\.", ".around_cross.norm."),
    (r"\.final_layer_norm\.", ".around_feed_forward.norm."),
    (r"\.self_attn\.", ".attention."),
    (r"\.encoder_attn\.", ".cross."),
    (r"\.q_proj\.", ".query."),
    (r"\.k_proj\.", ".key."),
    (r"\.v_proj\.", ".value."),
    (r"\.out_proj\.", ".output."),
    (r"\.fc1\.", ".feed_forward.first."),
    (r"\.fc2\.", ".feed_forward.second."),
    (r"\.linear1\.", ".attention.input."),
    (r"\.linear2\.", ".attention.output."),
    (r"\.conv\.weight_linear\.", ".attention.filter."),
    (r"\.conv\.weight$", ".attention.filter"),
)
"""Patterns of fairseq's names, and ours; where several become the same, the last is what fairseq writes today."""

_OF_OTHERS = {
    ("encoder", "self_attn"): re.compile("conv|linear|layer_norm[12]"),
    ("encoder", "conv"): re.compile("self_attn|conv_layer_norm|final_layer_norm"),
    ("decoder", "self_attn"): re.compile("conv|linear|layer_norm[12]"),
    ("decoder", "conv"): re.compile("self_attn|layer_norm[12]"),
}
"""Patterns that no layer of that kind has."""


@dataclass(frozen=True)
class FairseqSettings:
    """What the weights of a fairseq model cannot tell; null: what the checkpoint's own arguments say, if it has any.

    Attributes:
        heads: Heads of encoder and decoder (without arguments it must be given, but for lightweight convolutions).
        encoder_heads: Those of the encoder where they differ.
        decoder_heads: Those of the decoder where they differ.
        source_dict: The source's dictionary as fairseq-preprocess wrote it, a word and its count on each line; without
            one, words are called by their numbers, word4, word5 ….
        target_dict: The target's; the source's unless given. Needs ``source_dict``.
        codes: Merges of byte-pair encoding, a file of subword-nmt or fastBPE, or [source's, target's]: lines are split
            with them. Without, lines come in pieces already.
        sentencepiece: A model file of sentencepiece, or [source's, target's], likewise.
        tokenize: moses: lines are tokenised as Moses does; none: they come in tokens already.
        lower: Lines are put into lower case.
        source_lang: Code of the source's language, for Moses; xx: unknown.
        target_lang: Likewise.
        bos: Number of the begin symbol, which fairseq's models do not use.
        pad: Number of the filler.
        eos: Number of the end symbol.
        unk: Number that stands for unknown words.
        renorm: Convolutions leave what lies outside a sentence out of their softmax (``renorm_padding``).
        positions: none: the model has no positions; null: learnt where the weights have them, else sines.
        activation: Of the feed-forward networks (relu).
        scale_embeddings: Embeddings are multiplied by √D (true).
        dropout: Rate in further training (0.1).
    """

    heads: int | None = None
    encoder_heads: int | None = None
    decoder_heads: int | None = None
    source_dict: str | None = None
    target_dict: str | None = None
    codes: Files = None
    sentencepiece: Files = None
    tokenize: Literal["moses", "none"] = "none"
    lower: bool = False
    source_lang: str | None = None
    target_lang: str | None = None
    bos: int = 0
    pad: int = 1
    eos: int = 2
    unk: int = 3
    renorm: bool = False
    positions: Literal["none"] | None = None
    activation: Activation | None = None
    scale_embeddings: bool | None = None
    dropout: float | None = None

    def __post_init__(self) -> None:
        for name in ("heads", "encoder_heads", "decoder_heads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if self.codes is not None and self.sentencepiece is not None:
            raise ValueError("codes and sentencepiece both split words: give one")
        if self.source_dict is None:
            told = {name: getattr(self, name) for name in ("target_dict", "codes", "sentencepiece")}
            told["tokenize"] = self.tokenize if self.tokenize != "none" else None
            for name, value in told.items():
                if value is not None:
                    raise ValueError(
                        f"{name}={value} needs source_dict: without a dictionary no word of the source is known; where "
                        "the languages share one, give that"
                    )


def fairseq(checkpoint: Checkpoint, chosen: FairseqSettings) -> nn.Module:
    """A translator from the state dict of fairseq's ``TransformerModel`` or ``LightConvModel``.

    A convolution's bias becomes part of the map behind it; the ``conv_bias`` (1, 1, D) that newer code makes in any
    case is left out, as it is there. Weights in half precision become single, as fairseq makes them. Translations end
    at the argument ``max_target_positions`` (1024), or where learnt positions do.

    Raises:
        UserError: Weights of something else, or what they cannot tell and nobody told.
    """
    args = _Arguments(checkpoint.args)
    weights = _modern(checkpoint.weights)
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        if name not in weights:
            have = ", ".join(sorted(weights)[:3])
            raise UserError(
                f"the checkpoint has no {name}, which every fairseq encoder–decoder has (it begins with {have}): give "
                "the state dict of a translation model, or another SOURCE."
            )
    _refuse(args, weights)
    _refuse_old(args, checkpoint.weights)
    source, target = weights["encoder.embed_tokens.weight"], weights["decoder.embed_tokens.weight"]
    output = weights.setdefault("decoder.output_projection.weight", target)
    heads = {side: _heads(side, weights, chosen, args) for side in ("encoder", "decoder")}
    specs = {side: _specs(side, weights, heads[side], chosen.renorm) for side in heads}
    of_encoder = together(specs["encoder"])
    shares = "none" if not _same(output, target) else "all" if _same(source, target) else "decoder"
    convolved = any(spec["name"] != "sa" for spec in (*specs["encoder"], *specs["decoder"]))
    positions, longest, longest_target = _positions(weights, chosen, args)
    model = TransformerSettings(
        dim=target.shape[1],
        heads=heads["encoder"],
        decoder_heads=heads["decoder"],
        hidden=_shape(weights, "encoder.layers.0.fc1.weight")[0],
        decoder_hidden=_shape(weights, "decoder.layers.0.fc1.weight")[0],
        encoder_layers=len(specs["encoder"]),
        decoder_layers=len(specs["decoder"]),
        encoder_attn=None if isinstance(of_encoder, dict) else list(of_encoder),
        decoder_attn=_as_setting(together(specs["decoder"])),
        dropout=chosen.dropout if chosen.dropout is not None else args.rate("dropout", 0.1),
        attention_dropout=args.rate("weight_dropout" if convolved else "attention_dropout", 0.0),
        hidden_dropout=args.rate("activation_dropout", args.rate("relu_dropout", 0.0)),
        order="pre" if "encoder.layer_norm.weight" in weights else "post",
        activation=_activation(chosen, args),
        positions=positions,
        max_length=longest,
        decoder_max_length=longest_target,
        scale_embeddings=_first(chosen.scale_embeddings, not args.get("no_scale_embedding", bool, False)),
        embedding_norm=any("layernorm_embedding" in name or "emb_layer_norm" in name for name in weights),
        share_embeddings=shares,
    )
    texts = _texts(chosen, args, len(source), len(target))
    if shares == "all" and texts.source.vocabulary != texts.target.vocabulary:
        raise UserError(
            "both languages have the same vectors in these weights, and their dictionaries have other words: give "
            "source_dict=FILE alone, or the same file twice."
        )
    attn = of_encoder if isinstance(of_encoder, dict) else of_encoder[0]
    return fill(Translator(texts, attn, model), _renamed(weights), "fairseq", lambda name: _theirs(name, weights))


def importers() -> tuple[Importer, ...]:
    """Whose checkpoints this task can convert."""
    summary = "Transformer, lightweight and dynamic convolutions (facebookresearch/fairseq)"
    return (Importer("fairseq", summary, FairseqSettings, fairseq, _notes),)


def _notes(model: nn.Module) -> list[str]:
    return [note for each in members_of(model) for note in notes_of(each.texts)]


class _Arguments:
    """The arguments that a model was trained with; flat, or in groups of encoder and decoder as newer ones are."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def get(self, name: str, kind: type[T], default: T) -> T:
        """The argument, or the default where there is none.

        Raises:
            UserError: It is of another type.
        """
        value = self._find(name)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise UserError(
                f"the checkpoint's argument {name}={value!r} is no {kind.__name__}: give the weights alone."
            )
        return value

    def has(self, name: str) -> bool:
        """Whether there is such an argument."""
        return self._find(name) is not None

    def rate(self, name: str, default: float) -> float:
        """A rate of dropout, likewise."""
        value = self._find(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, float | int) or not 0 <= value < 1:
            raise UserError(f"the checkpoint's argument {name}={value!r} is no rate: give the weights alone.")
        return float(value)

    def _find(self, name: str) -> Any:
        side, _, rest = name.partition("_")
        group = self.values.get(side)
        return self.values.get(name, group.get(rest) if isinstance(group, Mapping) else None)


def _refuse(args: _Arguments, weights: Mapping[str, Tensor]) -> None:
    """What fairseq can do and this library's translator cannot, in one sentence."""
    flags = ("no_cross_attention", "cross_self_attention", "no_decoder_final_norm", "adaptive_input")
    unknown = [f"{name}=true" for name in flags if args.get(name, bool, False)]
    unknown += [] if args.get("weight_softmax", bool, True) else ["weight_softmax=false"]
    if "decoder.adaptive_softmax.head.weight" in weights or args.values.get("adaptive_softmax_cutoff"):
        unknown.append("adaptive softmax")
    if any(".project_" in name for name in weights):
        unknown.append("embeddings of another width than the model")
    widths = [weights[f"{side}.embed_tokens.weight"].shape[1] for side in ("encoder", "decoder")]
    if widths[0] != widths[1]:
        unknown.append(f"an encoder {widths[0]} and a decoder {widths[1]} wide")
    for name, tensor in weights.items():
        if name.endswith(".linear2.weight") and tensor.shape[0] != tensor.shape[1]:
            unknown.append(f"convolutions {tensor.shape[1]} wide in a model of {tensor.shape[0]}")
            break
    pre = {side: f"{side}.layer_norm.weight" in weights for side in ("encoder", "decoder")}
    if pre["encoder"] != pre["decoder"]:
        unknown.append("norms before the sublayers on one side alone")
    for side, has in pre.items():
        if args.get(f"{side}_normalize_before", bool, has) != has:
            unknown.append(
                f"{side}_normalize_before={not has} {'with' if has else 'without'} a norm behind the last layer"
            )
    if unknown:
        raise UserError(f"this fairseq model has {' and '.join(unknown)}, which is not read here: give another one.")


def _refuse_old(args: _Arguments, weights: Mapping[str, Tensor]) -> None:
    """Stacks whose norms stand before the sublayers had none behind the last layer up to version 2."""
    for side in ("encoder", "decoder"):
        version = weights.get(f"{side}.version")
        if version is None or version.numel() != 1 or float(version) > 2:
            continue
        if f"{side}.layer_norm.weight" not in weights and not args.has(f"{side}_normalize_before"):
            raise UserError(
                f"the weights are of an old fairseq ({side}.version is {float(version):g}) and cannot tell whether "
                "norms stand before or behind the sublayers: give the checkpoint with its arguments (args)."
            )


def _modern(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under today's names, without what is none; a convolution's bias is part of the map behind it."""
    found: dict[str, Tensor] = {}
    convolved = {name.rpartition(".linear1.")[0] for name in weights if name.endswith(".linear1.weight")}
    for name, tensor in weights.items():
        if _NO_WEIGHTS.search(name):
            continue
        if tensor.dtype in (torch.float16, torch.bfloat16):
            tensor = tensor.float()
        if match := re.match(r"((encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.(\w+)$", name):
            names = _OLD_NORMS[match[2], "conv" if match[1] in convolved else "self_attn"]
            if int(match[3]) < len(names):
                name = f"{match[1]}.{names[int(match[3])]}.{match[4]}"
        if match := re.match(r"(.*)\.in_proj_(weight|bias)$", name):
            for part, rows in zip("qkv", tensor.chunk(3)):
                found[f"{match[1]}.{part}_proj.{match[2]}"] = rows.contiguous()
        elif name == "decoder.embed_out":
            found["decoder.output_projection.weight"] = tensor
        else:
            found[name] = tensor
    for layer in sorted(convolved):
        for kind in ("conv_bias", "bias"):
            bias = found.pop(f"{layer}.conv.{kind}", None)
            if (
                bias is not None and bias.ndim == 1
            ):  # (1, 1, D) is what newer code makes and, without its flag, not adds
                behind = f"{layer}.linear2"
                _require(found, f"{behind}.weight", f"{behind}.bias")
                moved = found[f"{behind}.weight"] @ bias.flatten() + found[f"{behind}.bias"]
                found[f"{behind}.bias"] = moved
        if (filters := found.get(f"{layer}.conv.weight")) is not None and filters.ndim == 3:
            found[f"{layer}.conv.weight"] = filters[:, 0]
    return found


def _require(weights: Mapping[str, Tensor], *names: str) -> None:
    for name in names:
        if name not in weights:
            raise UserError(f"the fairseq checkpoint lacks {name}: give the weights of a whole model.")


def _shape(weights: Mapping[str, Tensor], name: str) -> torch.Size:
    _require(weights, name)
    return weights[name].shape


def _heads(side: str, weights: Mapping[str, Tensor], chosen: FairseqSettings, args: _Arguments) -> int:
    given = getattr(chosen, f"{side}_heads") or chosen.heads
    filters = weights.get(f"{side}.layers.0.conv.weight")
    if given is None and filters is not None:
        return filters.shape[0]
    told = given or args.get(f"{side}_attention_heads", int, 0)
    if told < 1:
        raise UserError("the weights cannot tell how many heads the model has, nor does the file: add heads=NUMBER.")
    return told


def _specs(side: str, weights: Mapping[str, Tensor], heads: int, renorm: bool) -> Layers:
    """The attention of each layer, as its weights tell."""
    pattern = re.compile(rf"{side}\.layers\.(\d+)\.")
    count = 1 + max((int(m[1]) for name in weights if (m := pattern.match(name))), default=-1)
    specs: Layers = []
    for layer in range(count):
        below = f"{side}.layers.{layer}"
        if f"{below}.linear1.weight" not in weights:
            specs.append({"name": "sa"})
            continue
        glu = weights[f"{below}.linear1.weight"].shape[0] == 2 * _shape(weights, f"{below}.linear2.weight")[0]
        values: dict[str, Any] = {"glu": glu, "renormalise": renorm}
        if (filters := weights.get(f"{below}.conv.weight")) is not None:
            specs.append({"name": "light_conv", "kernel": filters.shape[1], "heads": filters.shape[0], **values})
            continue
        rows = _shape(weights, f"{below}.conv.weight_linear.weight")[0]
        if rows % heads:
            raise UserError(
                f"{below}.conv.weight_linear has {rows} rows, no multiple of {heads} heads: give another heads=NUMBER."
            )
        specs.append({"name": "dynamic_conv", "kernel": rows // heads, **values})
    return specs


def _as_setting(layers: dict[str, Any] | Layers) -> dict[str, Any] | list[str | dict[str, Any]]:
    return layers if isinstance(layers, dict) else list(layers)


def _positions(
    weights: Mapping[str, Tensor], chosen: FairseqSettings, args: _Arguments
) -> tuple[Literal["sinusoid", "learned", "none"], int, int | None]:
    """What positions the model has, how many are learnt of the source, and how many tokens a translation may have."""
    tables = [weights.get(f"{side}.embed_positions.weight") for side in ("encoder", "decoder")]
    there = [len(table) for table in tables if table is not None]
    if not there:
        none = chosen.positions == "none" or args.get("no_token_positional_embeddings", bool, False)
        longest = args.get("max_target_positions", int, 1024)  # fairseq's default
        if longest < 1:
            raise UserError(
                f"the checkpoint's argument max_target_positions={longest} is no length: it must be 1 or more."
            )
        return "none" if none else "sinusoid", TransformerSettings().max_length, longest
    learnt = [rows - chosen.pad - 1 for rows in there]
    if len(learnt) != len(tables) or min(learnt) < 1:
        raise UserError(f"the weights have tables of {there} learnt positions; expected two, or none.")
    return "learned", learnt[0], None if learnt[0] == learnt[1] else learnt[1]


def _activation(chosen: FairseqSettings, args: _Arguments) -> Activation:
    if chosen.activation is not None:
        return chosen.activation
    told = args.get("activation_fn", str, "relu")
    if told not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise UserError(f"this fairseq model has activation_fn={told}, which is not read here: only {known} are.")
    return _ACTIVATIONS[told]


def _first(value: T | None, default: T) -> T:
    return default if value is None else value


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    ours: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        for pattern, replacement in _RENAMING:
            name = re.sub(pattern, replacement, name)
        ours[name] = tensor
    return ours


def _theirs(ours: str, weights: Mapping[str, Tensor]) -> str:
    """fairseq's name today of a weight of ours, by the kind of its layer."""
    side, _, _ = ours.partition(".")
    layer = re.match(r"\w+\.layers\.\d+\.", ours)
    convolves = layer is not None and any(name.startswith((f"{layer[0]}conv", f"{layer[0]}linear")) for name in weights)
    others = _OF_OTHERS.get((side, "conv" if convolves else "self_attn"))
    name = ours
    for pattern, replacement in reversed(_RENAMING):
        theirs = pattern.strip("^$").replace("\\.", ".")
        if layer is None or others is None or not others.search(theirs):
            begin, end = "^" * pattern.startswith("^"), "$" * pattern.endswith("$")
            name = re.sub(f"{begin}{re.escape(replacement)}{end}", theirs, name)
    return name


def _texts(chosen: FairseqSettings, args: _Arguments, source: int, target: int) -> Texts:
    """Both sides with as many words as the embeddings have rows."""
    paths = (chosen.source_dict, chosen.target_dict or chosen.source_dict)
    names = (chosen.source_lang, chosen.target_lang)
    sides: list[Side] = []
    for i, (path, size, name) in enumerate(zip(paths, (source, target), ("source_lang", "target_lang"))):
        if path is None:
            vocabulary = placeholders(size, bos=chosen.bos, pad=chosen.pad, eos=chosen.eos, unk=chosen.unk)
        else:
            vocabulary = _dictionary(Path(path), chosen, size)
        language = names[i] or args.get(name, str, "xx")
        wording = Wording(language, moses=chosen.tokenize == "moses", lower=chosen.lower)
        sides.append(Side(wording, _splitter(chosen, i), vocabulary))
    return Texts(*sides)


def _splitter(chosen: FairseqSettings, side: int) -> Splitter:
    if (codes := of_side(chosen.codes, side)) is not None:
        return read_codes(Path(codes).expanduser())
    if (model := of_side(chosen.sentencepiece, side)) is not None:
        return SentencePieces.read(Path(model).expanduser())
    return WholeWords()


def _dictionary(path: Path, chosen: FairseqSettings, size: int) -> Vocabulary:
    """The words of a dict.txt; ``madeupword0000`` … up to a multiple of 8, as fairseq fills its dictionaries.

    Raises:
        UserError: The file cannot be read, or has another number of words than the weights.
    """
    if (chosen.bos, chosen.pad, chosen.eos, chosen.unk) != (0, 1, 2, 3):
        raise UserError(f"{path} has its special symbols at 0 to 3 as all of fairseq's: leave bos, pad, eos, unk out.")
    found = read_dictionary(path.expanduser(), "words")
    lacking = size - len(found)
    if not 0 <= lacking < 8 or (lacking and size % 8):
        raise UserError(
            f"{path} has {len(found)} words with the {len(SPECIALS)} special symbols, the weights have {size}: give "
            "the dictionary of this checkpoint."
        )
    words = (*found.words, *(f"madeupword{i:04d}" for i in range(lacking)))
    return replace(found, words=words, pieces=_kind(words))


def _kind(words: tuple[str, ...]) -> Pieces:
    """How the entries join, as their marks tell."""
    if any(word.endswith("@@") for word in words):
        return "bpe"
    return "sentencepiece" if any(word.startswith("▁") for word in words) else "words"
