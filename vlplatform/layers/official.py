"""The authors' attention modules and layers with their weights, in this library's classes.

Each function takes a state dict under the authors' parameter names and gives the module it belongs to, of the sizes
that the weights tell, in evaluation mode; the number of heads, which they mostly do not tell, is an argument. Importers
of whole models are made of these. fairseq's dynamic convolution has its filters alone under weights of its own:
:func:`vlplatform.attention.dynamic_conv.dynamic_convolution` takes them softmaxed, in float32 as fairseq does for
static ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vlplatform.attention.box_relations import BoxRelations
from vlplatform.attention.dsa import DistanceSensitive
from vlplatform.attention.multi_branch import MultiBranch
from vlplatform.attention.multi_head import MultiHeadAttention, sizes_of
from vlplatform.attention.xlinear import XLinear
from vlplatform.attention.xlinear_stack import XLinearStack
from vlplatform.errors import UserError
from vlplatform.layers.decoder import DecoderLayer
from vlplatform.layers.encoder import EncoderLayer

Weights = Mapping[str, Tensor]

MDSAN_ATTENTION = {"fc_q": "query", "fc_k": "key", "fc_v": "value", "fc_o": "output"}
MCAN_ATTENTION = {"linear_q": "query", "linear_k": "key", "linear_v": "value", "linear_merge": "output"}
MCAN_FEED_FORWARD = {"mlp.fc.linear": "first", "mlp.linear": "second"}
MCAN_NORM = {"a_2": "weight", "b_2": "bias"}
XLINEAR: Mapping[str, str] = {
    "in_proj_q.0": "query.map",
    "in_proj_q.2": "query.norm",
    "in_proj_k.0": "key.map",
    "in_proj_k.2": "key.norm",
    "in_proj_v1.0": "value_query.map",
    "in_proj_v1.2": "value_query.norm",
    "in_proj_v2.0": "value.map",
    "in_proj_v2.2": "value.norm",
    "attn_net.attention_basic.0": "middle",
    "attn_net.attention_last": "spatial",
    "attn_net.attention_last2": "channel",
}
"""The authors' names of a block's modules → ours."""

_XLINEAR_STACK = (
    (r"^layers\.(\d+)\.encoder_attn\.", r"blocks.\1."),
    (r"^bifeat_emb\.(\d+)\.0\.", r"updates.\1.map."),
    (r"^layer_norms\.(\d+)\.", r"updates.\1.norm."),
    (r"^proj\.", "joined."),
    (r"^layer_norm\.", "norm."),
)


def mdsan_attention(weights: Weights) -> MultiHeadAttention:
    """MD-SAN's distance-sensitive attention: ``fc_q``, ``fc_k``, ``fc_v``, ``fc_o``, ``W`` and ``V`` (h, 1, 1)."""
    heads, dim = len(weights["W"]), weights["fc_o.weight"].shape[0]
    head_dim = weights["fc_v.weight"].shape[0] // heads
    key_dim = weights["fc_q.weight"].shape[0] // heads
    term = DistanceSensitive(sizes_of(dim, heads, head_dim, key_dim))
    module = MultiHeadAttention(dim, heads=heads, head_dim=head_dim, key_dim=key_dim, terms=(term,))
    _fill(module, _linears(weights, MDSAN_ATTENTION) | {"terms.0.w": weights["W"], "terms.0.v": weights["V"]})
    return module


def mdsan_layer(weights: Weights, *, drop: float = 0.4, dropout: float = 0.1) -> EncoderLayer:
    """MD-SAN's multi-branch encoder layer: ``mhatts.j``, ``lnorm`` and ``pwff``.

    Args:
        weights: Of the layer.
        drop: ρ, the rate at which branches are dropped in training.
        dropout: Of elements.
    """
    count = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("mhatts."))
    branches = [mdsan_attention(_below(weights, f"mhatts.{j}.attention.")) for j in range(count)]
    hidden, dim = weights["pwff.fc1.weight"].shape
    layer = EncoderLayer(MultiBranch(branches, dim, drop=drop, dropout=dropout), dim, hidden, dropout=dropout)
    renamed = {f"attention.{name}": value for name, value in layer.attention.state_dict().items()}
    for j in range(count):
        renamed |= _named(weights, f"mhatts.{j}.layer_norm", f"attention.norms.{j}")
    renamed |= _named(weights, "lnorm", "around_attention.norm")
    renamed |= _named(weights, "pwff.layer_norm", "around_feed_forward.norm")
    renamed |= _named(weights, "pwff.fc1", "feed_forward.first") | _named(weights, "pwff.fc2", "feed_forward.second")
    _fill(layer, renamed)
    return layer


def mcan_attention(weights: Weights, *, heads: int) -> MultiHeadAttention:
    """MCAN's ``MHAtt``: ``linear_q``, ``linear_k``, ``linear_v`` and ``linear_merge``."""
    inner, dim = weights["linear_q.weight"].shape
    module = MultiHeadAttention(dim, heads=heads, head_dim=inner // heads)
    _fill(module, _linears(weights, MCAN_ATTENTION))
    return module


def mcan_sa(weights: Weights, *, heads: int, dropout: float = 0.1) -> EncoderLayer:
    """MCAN's self-attention unit ``SA``: ``mhatt``, ``ffn``, ``norm1`` and ``norm2``, which are not PyTorch's norms."""
    attention = mcan_attention(_below(weights, "mhatt."), heads=heads)
    hidden, dim = weights["ffn.mlp.fc.linear.weight"].shape
    layer = EncoderLayer(attention, dim, hidden, dropout=dropout, norm="unbiased")
    _fill_mcan(layer, weights, {"mhatt": "attention"}, ("around_attention", "around_feed_forward"))
    return layer


def mcan_sga(weights: Weights, *, heads: int, dropout: float = 0.1) -> DecoderLayer:
    """MCAN's guided unit ``SGA``: ``mhatt1``, ``mhatt2``, ``ffn`` and three norms; call it with ``causal=False``."""
    own, other = (mcan_attention(_below(weights, f"mhatt{i}."), heads=heads) for i in (1, 2))
    hidden, dim = weights["ffn.mlp.fc.linear.weight"].shape
    layer = DecoderLayer(own, other, dim, hidden, dropout=dropout, norm="unbiased")
    around = ("around_attention", "around_cross", "around_feed_forward")
    _fill_mcan(layer, weights, {"mhatt1": "attention", "mhatt2": "cross"}, around)
    return layer


def mcan_stack(weights: Weights, *, heads: int, dropout: float = 0.1) -> tuple[nn.ModuleList, nn.ModuleList]:
    """MCAN's encoder–decoder ``MCA_ED``: layers over words, and over regions, which all read the last words."""
    counts = [_count(weights, name) for name in ("enc_list.", "dec_list.")]
    words = (mcan_sa(_below(weights, f"enc_list.{i}."), heads=heads, dropout=dropout) for i in range(counts[0]))
    regions = (mcan_sga(_below(weights, f"dec_list.{i}."), heads=heads, dropout=dropout) for i in range(counts[1]))
    return nn.ModuleList(words).eval(), nn.ModuleList(regions).eval()


def ort_attention(weights: Weights) -> MultiHeadAttention:
    """The Object Relation Transformer's ``BoxMultiHeadedAttention``: ``linears.0…3`` and one ``WGs.i`` per head."""
    heads, dim = _count(weights, "WGs."), weights["linears.3.weight"].shape[0]
    head_dim = weights["linears.2.weight"].shape[0] // heads
    term = BoxRelations(sizes_of(dim, heads, head_dim, None), inclusive=True)
    module = MultiHeadAttention(dim, heads=heads, head_dim=head_dim, terms=(term,))
    names = {f"linears.{i}": name for i, name in enumerate(("query", "key", "value", "output"))}
    of_boxes = {
        f"terms.0.geometry.{kind}": torch.cat([weights[f"WGs.{i}.{kind}"] for i in range(heads)])
        for kind in ("weight", "bias")
    }
    _fill(module, _linears(weights, names) | of_boxes)
    return module


def xlinear_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A block's or an encoder stack's weights in the authors' checkpoints, under our names.

    Left out: the second embedding of the query (``in_proj_v1``) of a block without channel gate, which their code
    computes and throws away.
    """
    gated = any("attention_last2" in name for name in weights)
    named: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        ours = name
        for theirs, here in _XLINEAR_STACK:
            ours = re.sub(theirs, here, ours)
        for theirs, here in XLINEAR.items():
            ours = re.sub(rf"(^|\.){re.escape(theirs)}\.", rf"\g<1>{here}.", ours)
        if gated or "value_query" not in ours:
            named[ours] = tensor
    return named


def xlinear_block(weights: Weights) -> XLinear:
    """X-LAN's block ``LowRank``, with one query or many, with channel gate (``SCAtt``) or without (``BasicAtt``)."""
    dim, width = weights["in_proj_q.0.weight"].shape[0], weights["attn_net.attention_basic.0.weight"].shape[1]
    named = xlinear_names(weights)
    block = XLinear(
        dim,
        heads=dim // width,
        mid=weights["attn_net.attention_basic.0.weight"].shape[0],
        gate="channel.weight" in named,
        group_norm="query.norm.weight" in named,
    )
    _fill(block, named)
    return block


def xlan_encoder(weights: Weights) -> XLinearStack:
    """X-LAN's encoder: blocks ``layers.i``, updates ``bifeat_emb.i`` and ``layer_norms.i``, ``proj`` and its norm."""
    below = "layers.0.encoder_attn."
    dim = weights[f"{below}in_proj_q.0.weight"].shape[0]
    middle = weights[f"{below}attn_net.attention_basic.0.weight"]
    stack = XLinearStack(dim, layers=_count(weights, "layers."), heads=dim // middle.shape[1], mid=middle.shape[0])
    _fill(stack, xlinear_names(weights))
    return stack


def _fill_mcan(layer: nn.Module, weights: Weights, attentions: dict[str, str], around: tuple[str, ...]) -> None:
    renamed: dict[str, Tensor] = {}
    for theirs, ours in attentions.items():
        part = _linears(_below(weights, f"{theirs}."), MCAN_ATTENTION)
        renamed |= {f"{ours}.{name}": value for name, value in part.items()}
    part = _linears(_below(weights, "ffn."), MCAN_FEED_FORWARD)
    renamed |= {f"feed_forward.{name}": value for name, value in part.items()}
    for i, name in enumerate(around, 1):
        renamed |= {f"{name}.norm.{ours}": weights[f"norm{i}.{theirs}"] for theirs, ours in MCAN_NORM.items()}
    _fill(layer, renamed)


def _linears(weights: Weights, names: Mapping[str, str]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for theirs, ours in names.items():
        found |= _named(weights, theirs, ours)
    return found


def _named(weights: Weights, theirs: str, ours: str) -> dict[str, Tensor]:
    """Weight and bias of one of their modules under our name."""
    return {f"{ours}.{kind}": weights[f"{theirs}.{kind}"] for kind in ("weight", "bias")}


def _below(weights: Weights, prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}


def _count(weights: Weights, prefix: str) -> int:
    return 1 + max((int(n[len(prefix) :].split(".")[0]) for n in weights if n.startswith(prefix)), default=-1)


def _fill(module: nn.Module, weights: Weights) -> None:
    """Load, in the weights' own precision; what does not fit is one sentence."""
    module.to(next(iter(weights.values())).dtype).eval()
    try:
        module.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise UserError(f"the weights do not fit {type(module).__name__}: {error}") from error
