"""Authors' checkpoints of other sizes than those at hand, with weights made here under the authors' names."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vlplatform
from vlplatform.cli.main import main

Shapes = dict[str, tuple[int, ...]]


def linear(name: str, out: int, into: int) -> Shapes:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def norm(name: str, dim: int) -> Shapes:
    return {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}


def block(name: str, dim: int, heads: int, mid: int) -> Shapes:
    width, found = dim // heads, Shapes()
    for side in ("q", "k", "v1", "v2"):
        found |= linear(f"{name}.in_proj_{side}.0", dim, dim) | norm(f"{name}.in_proj_{side}.2", dim)
    found |= linear(f"{name}.attn_net.attention_basic.0", mid, width) | linear(
        f"{name}.attn_net.attention_last", 1, mid
    )
    return found | linear(f"{name}.attn_net.attention_last2", width, mid)


def xlan(dim: int, heads: int, mid: int, layers: int, words: int = 17, features: int = 11) -> Shapes:
    found = linear("att_embed.0", dim, features) | {"word_embed.0.weight": (words, dim)}
    for part in ("ih", "hh"):
        found |= {
            f"att_lstm.weight_{part}": (4 * dim, 2 * dim if part == "ih" else dim),
            f"att_lstm.bias_{part}": (4 * dim,),
        }
    for i in range(layers):
        found |= block(f"encoder_layers.layers.{i}.encoder_attn", dim, heads, mid)
        found |= linear(f"encoder_layers.bifeat_emb.{i}.0", dim, 2 * dim) | norm(f"encoder_layers.layer_norms.{i}", dim)
    found |= linear("encoder_layers.proj", dim, dim * (layers + 1)) | norm("encoder_layers.layer_norm", dim)
    found |= block("attention.layers.0.encoder_attn", dim, heads, mid)
    found |= linear("attention.proj", dim, 2 * dim) | norm("attention.layer_norm", dim)
    return found | linear("att2ctx.0", 2 * dim, 2 * dim) | linear("logit", words, dim)


def xtransformer(
    dim: int, heads: int, mid: int, encoders: int, decoders: int, places: int, words: int = 17, features: int = 11
) -> Shapes:
    def feed_forward(name: str) -> Shapes:
        sides = linear(f"{name}.fc1", 3 * dim, dim) | linear(f"{name}.fc2", dim, 3 * dim)
        return sides | norm(f"{name}.layer_norms", dim)

    found = linear("att_embed.0", dim, features) | norm("att_embed.2", dim)
    for i in range(encoders):
        layer = f"encoder.layers.{i}"
        found |= block(f"{layer}.encoder_attn", dim, heads, mid) | linear(f"{layer}.bifeat_emb.0", dim, 2 * dim)
        found |= norm(f"{layer}.layer_norm", dim) | feed_forward(f"{layer}.ff_layer")
    found |= linear("encoder.proj_norm.0", dim, dim * (encoders + 1)) | norm("encoder.proj_norm.1", dim)
    found |= {"decoder.embed_positions.pe": (1, places, dim), "decoder.embed_tokens.weight": (words, dim)}
    found |= norm("decoder.layer_norm_word", dim) | linear("decoder.generator", words, dim)
    for side in ("wbil1", "wbil2"):
        found |= linear(f"decoder.{side}.0", dim, dim) | norm(f"decoder.{side}.2", dim)
    found |= linear("decoder.proj_norm.0", 2 * dim, dim * (decoders + 1)) | norm("decoder.proj_norm.2", dim)
    for i in range(decoders):
        layer = f"decoder.layers.{i}"
        found |= block(f"{layer}.word_attn", dim, heads, mid) | block(f"{layer}.cross_att", dim, heads, mid)
        found |= norm(f"{layer}.layer_norm_cross", dim) | norm(f"{layer}.layer_norm_gx", dim)
        if i < decoders - 1:
            found |= linear(f"{layer}.bifeat_emb.0", dim, 2 * dim) | norm(f"{layer}.layer_norm_x", dim)
            found |= feed_forward(f"{layer}.ff_layer")
    return found


def mdsan(
    dim: int,
    heads: int,
    key: int,
    value: int,
    branches: int,
    decoder_heads: int,
    encoders: int,
    decoders: int,
    places: int,
) -> Shapes:
    def attention(name: str, heads: int) -> Shapes:
        maps = {
            "fc_q": (heads * key, dim),
            "fc_k": (heads * key, dim),
            "fc_v": (heads * value, dim),
            "fc_o": (dim, heads * value),
        }
        return {part: shape for side, size in maps.items() for part, shape in linear(f"{name}.{side}", *size).items()}

    def feed_forward(name: str) -> Shapes:
        return linear(f"{name}.fc1", 30, dim) | linear(f"{name}.fc2", dim, 30) | norm(f"{name}.layer_norm", dim)

    found = linear("encoder.fc", dim, 11) | norm("encoder.layer_norm", dim)
    for i in range(encoders):
        for branch in range(branches):
            name = f"encoder.layers.{i}.mhatts.{branch}"
            found |= attention(f"{name}.attention", heads) | norm(f"{name}.layer_norm", dim)
            found |= {f"{name}.attention.W": (heads, 1, 1), f"{name}.attention.V": (heads, 1, 1)}
        found |= norm(f"encoder.layers.{i}.lnorm", dim) | feed_forward(f"encoder.layers.{i}.pwff")
    found |= {
        "decoder.word_emb.weight": (19, dim),
        "decoder.pos_emb.weight": (places, dim),
        "decoder.fc.weight": (19, dim),
    }
    for i in range(decoders):
        name = f"decoder.layers.{i}"
        for side in ("self_att", "enc_att"):
            found |= attention(f"{name}.{side}.attention", decoder_heads) | norm(f"{name}.{side}.layer_norm", dim)
        found |= norm(f"{name}.lnorm1", dim) | norm(f"{name}.lnorm2", dim) | feed_forward(f"{name}.pwff")
    return found


def filled(shapes: Shapes) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape, dtype=torch.float64) * 0.4 for name, shape in shapes.items()}


CASES: dict[str, tuple[str, Shapes, tuple[str, ...]]] = {
    "xlan": ("jdai-xlan", xlan(24, 3, 5, 2), ()),
    "xlan, heads of one channel, short": ("jdai-xlan", xlan(6, 6, 1, 1, words=5, features=1), ("max_length=8",)),
    "xtransformer": ("jdai-xtransformer", xtransformer(24, 3, 5, 1, 3, 40), ()),
    "xtransformer, one head, short": ("jdai-xtransformer", xtransformer(20, 1, 7, 3, 1, 9), ()),
    "mdsan": ("mdsanet", mdsan(24, 3, 8, 8, 2, 3, 1, 3, 26), ()),
    "mdsan, wide keys, one branch": ("mdsanet", mdsan(24, 3, 12, 8, 1, 4, 1, 1, 26), ("heads=4",)),
    "mdsan, wide values, short": (
        "mdsanet",
        mdsan(24, 3, 8, 10, 1, 3, 1, 1, 12),
        ("unk=null", "pad=0", "bos=1", "eos=2"),
    ),
    "mdsan, four branches": ("mdsanet", mdsan(24, 3, 5, 5, 4, 3, 2, 1, 12), ()),
}


def convert(case: str, tmp_path: Path, *words: str, beside: dict[str, Any] | None = None) -> Any:
    source, shapes, given = CASES[case]
    torch.save({"state_dict": filled(shapes), **(beside or {})}, tmp_path / "theirs.pth")
    assert main(["convert", source, str(tmp_path / "theirs.pth"), str(tmp_path / "ours"), *given, *words]) == 0
    return vlplatform.load(tmp_path / "ours")


@pytest.mark.parametrize("case", CASES)
def test_steps_are_the_whole_pass(case: str, tmp_path: Path) -> None:
    """The documented calls, without a length, on grids and on padded images."""
    model = convert(case, tmp_path)
    torch.manual_seed(1)
    features = torch.randn(3, 9, model.shape.feature_dim, dtype=torch.float64)
    features[1, 4:] = 0
    for beam in (1, 3):
        for image, captions in enumerate(model.generate(features, beam=beam)):
            written = captions[0].tokens
            read = torch.tensor([[model.vocabulary.bos, *written[:-1]]])
            told = model.log_probs(features[image : image + 1], read)[0]
            found = told[torch.arange(len(written)), torch.tensor(written)]
            expected = torch.tensor(captions[0].log_probs, dtype=torch.float64)
            torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


def test_what_training_code_keeps_beside_weights(tmp_path: Path) -> None:
    beside = {
        "torch_rng_state": torch.get_rng_state(),
        "numpy_rng_state": np.random.get_state(),  # what M²'s and MD-SAN's training keeps
        "random_rng_state": random.getstate(),
        "epoch": 3,
        "best_cider": np.float64(1.2),
    }
    assert len(convert("mdsan", tmp_path, beside=beside).vocabulary) == 19


@pytest.mark.parametrize("case", ["xlan", "xtransformer"])
def test_the_activation_is_given(case: str, tmp_path: Path) -> None:
    """``MODEL.BILINEAR.ACT`` and ``ELU_ALPHA`` hold wherever the authors' code asks for an activation."""
    model = convert(case, tmp_path, "activation=elu", "alpha=0.7")
    kinds = {type(part) for part in model.modules() if isinstance(part, nn.ELU | nn.CELU)}
    alphas = {part.alpha for part in model.modules() if isinstance(part, nn.ELU | nn.CELU)}
    assert (kinds, alphas) == ({nn.ELU}, {0.7})
