"""The authors' vectors: MD-SAN's attention and layer, MCAN's units, the Object Relation Transformer's attention."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vlplatform.attention.kernels import Path as KernelPath
from vlplatform.attention.kernels import using
from vlplatform.geometry import Geometry
from vlplatform.layers import official

PATHS = ("auto", "plain", "fused")


def case(shared: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, int]]:
    folder = shared / "reference" / "golden"
    tensors = load_file(folder / f"{name}.safetensors")
    weights = {key[2:]: value for key, value in tensors.items() if key.startswith("w.")}
    return weights, tensors, json.loads((folder / f"{name}.json").read_text())["config"]


def close(ours: Tensor, theirs: Tensor, dtype: torch.dtype = torch.float64) -> None:
    tolerance = (1e-9, 1e-8) if dtype == torch.float64 else (2e-5, 1e-5)
    torch.testing.assert_close(ours.double(), theirs, atol=tolerance[0], rtol=tolerance[1])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mdsan_attention(shared: Path, path: KernelPath, dtype: torch.dtype) -> None:
    weights, t, _ = case(shared, "mdsan_dsa")
    attn = official.mdsan_attention(weights).to(dtype).eval()
    x, mask = t["x"].to(dtype), ~t["mask"][:, 0, 0]
    for kind in ("grid", "centres"):
        geometry = Geometry.from_points(t[f"coords_{kind}"])
        with using(path):
            close(attn(x, geometry=geometry, mask=mask), t[f"out_{kind}"], dtype)
            close(attn(x, geometry=geometry), t[f"out_nomask_{kind}"], dtype)
        close(attn.terms[0].rescale(t[f"i.manhattan_{kind}"].to(dtype)), t[f"i.R_{kind}"], dtype)
    close(attn(x, geometry=Geometry.from_grid(3, 3)), t["out_nomask_grid"], dtype)


def test_mdsan_attention_on_its_own_grid(shared: Path) -> None:
    weights, t, _ = case(shared, "mdsan_dsa_7x7")
    close(official.mdsan_attention(weights).eval()(t["x"], geometry=Geometry.from_grid(7, 7)), t["out"])


def test_mdsan_layer(shared: Path) -> None:
    weights, t, _ = case(shared, "mdsan_msa_layer")
    layer = official.mdsan_layer(weights).eval()
    mask, geometry = ~t["mask"][:, 0, 0], Geometry.from_points(t["coords"].double())
    close(layer(t["x"], mask=mask, geometry=geometry), t["out"])
    close(layer.attention(t["x"], mask=mask, geometry=geometry), t["i.mean_branches"])
    for j, (branch, norm) in enumerate(zip(layer.attention.branches, layer.attention.norms)):
        close(norm(t["x"] + branch(t["x"], mask=mask, geometry=geometry)), t[f"i.branch_{j}"])


def test_mdsan_layer_drops_branches(shared: Path) -> None:
    weights, t, config = case(shared, "mdsan_msa_branchdrop")
    layer = official.mdsan_layer(weights, drop=config["rho"], dropout=0.0).train()
    mask, geometry = ~t["mask"][:, 0, 0], Geometry.from_points(t["coords"].double())
    for key in ("0", "1", "2", "3", "alldropped"):
        mean = layer.attention(t["x"], mask=mask, geometry=geometry, draws=t[f"u_{key}"])
        out = layer.around_feed_forward(layer.around_attention(t["x"], lambda _, mean=mean: mean), layer.feed_forward)
        close(out, t[f"out_train_{key}"])


@pytest.mark.parametrize("path", PATHS)
def test_mcan_units(shared: Path, path: KernelPath) -> None:
    weights, t, config = case(shared, "mcan_sa")
    layer, mask = official.mcan_sa(weights, heads=config["heads"]).eval(), ~t["mask"][:, 0, 0]
    with using(path):
        close(layer.attention(t["x"], mask=mask), t["i.mhatt"])
        close(layer.around_attention(t["x"], lambda x: layer.attention(x, mask=mask)), t["i.norm1"])
        close(layer(t["x"], mask=mask), t["out"])
        weights, t, config = case(shared, "mcan_sga")
        guided = official.mcan_sga(weights, heads=config["heads"]).eval()
        masks = {"mask": ~t["region_mask"][:, 0, 0], "memory_mask": ~t["word_mask"][:, 0, 0]}
        close(guided(t["y_regions"], t["x_words"], causal=False, **masks), t["out"])


def test_mcan_stack(shared: Path) -> None:
    weights, t, config = case(shared, "mcan_ed")
    over_words, over_regions = official.mcan_stack(weights, heads=config["heads"])
    words, regions = t["x_words"], t["y_regions"]
    word_mask, region_mask = (~t[f"{name}_mask"][:, 0, 0] for name in ("word", "region"))
    for layer in over_words.eval():
        words = layer(words, mask=word_mask)
    for layer in over_regions.eval():
        regions = layer(regions, words, mask=region_mask, memory_mask=word_mask, causal=False)
    close(words, t["out_words"])
    close(regions, t["out_regions"])


@pytest.mark.parametrize("path", PATHS)
def test_box_relations(shared: Path, path: KernelPath) -> None:
    from vlplatform.attention.box_relations import embedding
    from vlplatform.geometry import relative_boxes

    weights, t, _ = case(shared, "ort_box_attention")
    relative = relative_boxes(t["boxes"], inclusive=True)
    close(relative, t["emb4"])
    close(embedding(relative), t["emb64"])
    attn = official.ort_attention(weights).eval()
    arguments = {"geometry": Geometry.from_boxes(t["boxes"]), "mask": t["mask"][:, 0] > 0}
    with using(path):
        close(attn(t["x"], **arguments), t["out"])
    close(attn.attention_weights(t["x"], **arguments), t["attn"])


@pytest.mark.parametrize("name", ["xlinear_block_scatt", "xlinear_block_basicatt"])
def test_xlinear_blocks(shared: Path, name: str) -> None:
    weights, t, _ = case(shared, name)
    block, query = official.xlinear_block(weights), t["query"][:, None]
    close(block(query, t["keys"], mask=t["mask"] > 0)[:, 0], t["out"])
    close(block(query, t["keys"])[:, 0], t["out_no_mask"])
    close(block.query(query)[:, 0], t["i.in_proj_q"])
    close(block.key(t["keys"]).flatten(0, 1), t["i.in_proj_k"])
    close(block.value(t["keys"]).flatten(0, 1), t["i.in_proj_v2"])


def test_xlinear_block_of_many_queries(shared: Path) -> None:
    weights, t, _ = case(shared, "xlinear_block_multiquery")
    block = official.xlinear_block(weights)
    close(block(t["query"], t["self_keys"], mask=t["self_mask"] > 0), t["out_self"])
    close(block(t["query"], t["cross_keys"], mask=t["cross_mask"] > 0), t["out_cross"])


def test_xlan_encoder(shared: Path) -> None:
    weights, t, _ = case(shared, "xlan_encoder_stack")
    stack = official.xlan_encoder(weights)
    wholes: list[Tensor] = []
    tokens: list[Tensor] = []
    for block in stack.blocks:
        block.register_forward_hook(lambda *args: wholes.append(args[2]))
    for update in stack.updates:
        update.register_forward_hook(lambda *args: tokens.append(args[2]))
    whole, out = stack(t["att_feats"], t["mask"] > 0)
    close(whole, t["gv_out"])
    close(out, t["att_out"])
    for i in range(3):
        close(wholes[i][:, 0], t[f"i.v_hat_{i + 1}"])
        close(tokens[i], t[f"i.att_{i + 1}"])


def test_mcan_norm(shared: Path) -> None:
    from vlplatform.layers import UnbiasedNorm

    weights, t, _ = case(shared, "mcan_norm_lr")
    norm = UnbiasedNorm(len(weights["a_2"])).double()
    norm.load_state_dict({"weight": weights["a_2"], "bias": weights["b_2"]})
    close(norm(t["x"]), t["out"])
