"""X-Linear attention: the authors' numbers, the equations by loops, and what every token attention keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import xlinear as slow
from safetensors.torch import load_file
from torch import Tensor, nn

from vlplatform.attention import build, catalogue
from vlplatform.attention import xlinear as module_of_xlinear
from vlplatform.attention.cache import Cache
from vlplatform.attention.kernels import using
from vlplatform.attention.xlinear import XLinear
from vlplatform.attention.xlinear_stack import XLinearStack
from vlplatform.errors import UserError
from vlplatform.layers.official import xlinear_names


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """In float64 with every parameter random, gains and offsets too."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    for name, parameter in module.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = values * 0.5 + (1.0 if name.endswith("norm.weight") else 0.0)
    return module


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chance(*shape: int, seed: int = 0, often: float = 0.6) -> Tensor:
    """Random booleans, the first of each row true."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < often
    mask[..., 0] = True
    return mask


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture
def small_blocks(monkeypatch):
    """Cuts so fine that even small inputs come to many pieces."""
    monkeypatch.setattr(module_of_xlinear, "_ROOM", 1)


# The authors' code.


def official(shared: Path, case: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    tensors = load_file(shared / f"reference/golden/{case}.safetensors")
    return tensors, xlinear_names({name[2:]: tensor for name, tensor in tensors.items() if name.startswith("w.")})


def as_published(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.shared
@torch.no_grad()
@pytest.mark.parametrize(("case", "gate"), [("xlinear_block_scatt", True), ("xlinear_block_basicatt", False)])
def test_block_of_the_authors(shared: Path, case: str, gate: bool) -> None:
    tensors, weights = official(shared, case)
    attn = XLinear(32, heads=4, mid=4, gate=gate).double()
    attn.load_state_dict(weights)
    query, mask = tensors["query"][:, None], tensors["mask"].bool()
    as_published(attn(query, tensors["keys"], mask=mask)[:, 0], tensors["out"])
    as_published(attn(query, tensors["keys"])[:, 0], tensors["out_no_mask"])
    logits = tensors["i.spatial_logit_raw"][..., 0].masked_fill(~mask[:, None], float("-inf"))
    spatial, channel = attn.distributions(query, tensors["keys"], mask=mask)
    as_published(spatial[:, :, 0], logits.softmax(-1))
    if gate:
        as_published(channel[:, :, 0], tensors["i.channel_logit"].sigmoid())


@pytest.mark.shared
@torch.no_grad()
@pytest.mark.parametrize("path", ["fused", "plain"])
def test_block_of_the_authors_with_many_queries(shared: Path, path, small_blocks) -> None:
    tensors, weights = official(shared, "xlinear_block_multiquery")
    attn = XLinear(32, heads=4, mid=4).double()
    attn.load_state_dict(weights)
    with using(path):
        own = attn(tensors["query"], tensors["self_keys"], mask=tensors["self_mask"].bool())
        cross = attn(tensors["query"], tensors["cross_keys"], mask=tensors["cross_mask"].bool())
    as_published(own, tensors["out_self"])
    as_published(cross, tensors["out_cross"])


@pytest.mark.shared
@torch.no_grad()
def test_encoder_of_the_authors(shared: Path) -> None:
    tensors, weights = official(shared, "xlan_encoder_stack")
    stack = XLinearStack(32, layers=3, heads=4, mid=4).double()
    stack.load_state_dict(weights)
    mask = tensors["mask"].bool()
    whole, tokens = stack(tensors["att_feats"], mask)
    as_published(whole, tensors["gv_out"])
    as_published(tokens, tensors["att_out"])


@pytest.mark.shared
@torch.no_grad()
def test_float32_is_as_near_as_published(shared: Path) -> None:
    tensors, weights = official(shared, "xlinear_block_scatt")
    attn = XLinear(32, heads=4, mid=4)
    attn.load_state_dict(weights)
    out = attn(tensors["query"][:, None].float(), tensors["keys"].float(), mask=tensors["mask"].bool())
    torch.testing.assert_close(out[:, 0], tensors["out"].float(), rtol=0, atol=2e-5)


# The equations, by loops.


@st.composite
def cases(draw: st.DrawFn) -> dict:
    heads = draw(st.sampled_from([1, 2, 3]))
    return {
        "heads": heads,
        "width": draw(st.integers(1, 3)),
        "mid": draw(st.integers(1, 4)),
        "batch": draw(st.integers(1, 4)),
        "queries": draw(st.sampled_from([1, 1, 2, 3, 7])),
        "keys": draw(st.integers(1, 40)),
        "memory_dim": draw(st.integers(1, 5)),
        "activation": draw(st.sampled_from(["celu", "relu", "elu"])),
        "alpha": draw(st.sampled_from([0.7, 1.0, 1.3])),
        "group_norm": draw(st.booleans()),
        "gate": draw(st.booleans()),
        "masked": draw(st.sampled_from(["no", "keys", "pairs"])),
        "often": draw(st.sampled_from([0.1, 0.5, 0.9])),
        "path": draw(st.sampled_from(["fused", "plain"])),
        "seed": draw(st.integers(0, 2**16)),
    }


@torch.no_grad()
def compare(case: dict, alpha: float | None = None) -> None:
    heads, batch, queries, keys, seed = (case[name] for name in ("heads", "batch", "queries", "keys", "seed"))
    dim = heads * case["width"]
    options = {name: case[name] for name in ("heads", "mid", "activation", "alpha", "group_norm", "gate", "memory_dim")}
    attn = randomised(XLinear(dim, **options), seed)
    query = random(batch, queries, dim, seed=seed + 1)
    key, value = (random(batch, keys, case["memory_dim"], seed=seed + i) for i in (2, 3))
    generator = torch.Generator().manual_seed(seed)
    mask = None
    if case["masked"] != "no":
        shape = (batch, keys) if case["masked"] == "keys" else (batch, queries, keys)
        mask = torch.rand(shape, generator=generator) < case["often"]  # rows without any key happen
    allowed = torch.ones(batch, queries, keys, dtype=torch.bool)
    if mask is not None:
        allowed &= mask if mask.ndim == 3 else mask[:, None]
    with using(case["path"]):
        out = attn(query, key, value, mask=mask)
    weights = {name: tensor.numpy() for name, tensor in attn.state_dict().items()}
    expected = slow.block(
        weights,
        *(t.numpy() for t in (query, key, value, allowed)),
        heads=heads,
        activation=case["activation"],
        alpha=alpha or case["alpha"],
    )
    close(out, torch.from_numpy(expected), 1e-10)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(cases())
def test_block_by_loops(case):
    compare(case)


def test_the_loops_disagree_with_another_activation():
    """The comparison can fail."""
    case = {"heads": 2, "width": 3, "mid": 3, "batch": 2, "queries": 2, "keys": 5, "memory_dim": 4, "group_norm": True}
    case |= {"gate": True, "masked": "keys", "often": 0.9, "path": "plain", "seed": 0}
    case |= {"activation": "celu", "alpha": 1.3}
    compare(case)
    with pytest.raises(AssertionError):
        compare(case, alpha=1.0)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("separate", "norm"), [(False, True), (True, False)])
def test_stack_by_loops(seed, separate, norm):
    stack = randomised(XLinearStack(4, layers=3, heads=2, separate=separate, norm=norm), seed)
    tokens, real = random(3, 6, 4, seed=seed), chance(3, 6, seed=seed)
    whole, enhanced = stack(tokens, real)
    weights = {name: tensor.numpy() for name, tensor in stack.state_dict().items()}
    expected = slow.stack(weights, tokens.numpy(), real.numpy(), layers=3, heads=2)
    close(whole, torch.from_numpy(expected[0]), 1e-10)
    close(enhanced[real], torch.from_numpy(expected[1])[real], 1e-10)


def test_stack_minds_no_padding():
    stack = randomised(XLinearStack(8, layers=2, heads=2))
    tokens, real = random(3, 6, 8), chance(3, 6)
    real[2] = False
    soiled = tokens.masked_fill(~real[..., None], float("nan")).requires_grad_()
    whole, enhanced = stack(soiled, real)
    clean_whole, clean = stack(tokens, real)
    assert torch.equal(whole, clean_whole)
    assert torch.equal(enhanced[real], clean[real])
    (whole.sum() + enhanced.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in stack.parameters())


# Paths, masks, caches.


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("masked", ["no", "keys", "pairs", "heads"])
def test_paths_agree(small_blocks, masked, gate):
    attn = randomised(XLinear(8, heads=2, gate=gate))
    shapes = {"keys": (3, 9), "pairs": (3, 5, 9), "heads": (3, 2, 5, 9)}
    mask = chance(*shapes[masked]) if masked != "no" else None
    results = []
    for path in ("fused", "plain"):
        query, key = random(3, 5, 8).requires_grad_(), random(3, 9, 8, seed=1).requires_grad_()
        with using(path):
            out = attn(query, key, mask=mask)
            grads = torch.autograd.grad((out * random(3, 5, 8, seed=2)).sum(), [query, key, *attn.parameters()])
        results.append((out, *grads))
    for fused, plain in zip(*results):
        close(fused, plain, 1e-11)


def test_dropped_entries_are_the_same_in_the_backward_pass(small_blocks):
    attn = randomised(XLinear(4, heads=2, dropout=0.5)).train()
    query, key = random(2, 3, 4).requires_grad_(), random(2, 5, 4, seed=1)

    def same_seed(q: Tensor) -> Tensor:
        torch.manual_seed(7)
        return attn(q, key)

    assert not torch.equal(same_seed(query), attn(query, key))
    assert torch.autograd.gradcheck(same_seed, (query,))


@pytest.mark.parametrize("path", ["fused", "plain"])
@pytest.mark.parametrize("rows", [1, 4])
def test_gradients(small_blocks, path, rows):
    attn = randomised(XLinear(4, heads=2))
    mask = chance(2, rows, 3)
    mask[0, 0] = False
    with using(path):
        assert torch.autograd.gradcheck(
            lambda q, k: attn(q, k, mask=mask),
            (random(2, rows, 4).requires_grad_(), random(2, 3, 4, seed=1).requires_grad_()),
        )


@pytest.mark.parametrize("path", ["fused", "plain"])
def test_padding_never_shows(path):
    attn = randomised(XLinear(8, heads=2))
    query, key, mask = random(3, 4, 8), random(3, 7, 8, seed=1), chance(3, 7)
    with using(path):
        out = attn(query, key, mask=mask)
        for filling in (0.0, 1e30, float("inf"), float("nan")):
            padded = key.masked_fill(~mask[..., None], filling).requires_grad_()
            again = attn(query, padded, mask=mask)
            assert torch.equal(again, out)
            again.sum().backward()
            assert padded.grad.isfinite().all()
            assert not padded.grad[~mask].any()
    assert all(parameter.grad.isfinite().all() for parameter in attn.parameters())


@torch.no_grad()
def test_padding_equals_cropping():
    attn = randomised(XLinear(8, heads=2))
    query, key, mask = random(3, 4, 8), random(3, 7, 8, seed=1), chance(3, 7)
    for i in range(3):
        close(attn(query, key, mask=mask)[i], attn(query[i : i + 1], key[i : i + 1, mask[i]])[0])


@torch.no_grad()
def test_masks_of_all_shapes_say_the_same():
    attn, query, key, mask = randomised(XLinear(8, heads=2)), random(3, 4, 8), random(3, 7, 8, seed=1), chance(3, 7)
    out = attn(query, key, mask=mask)
    for same in (mask[:, None].expand(3, 4, 7), mask[:, None, None], mask[:, None, None].expand(3, 2, 4, 7)):
        close(attn(query, key, mask=same), out)
    close(attn(query, key, mask=torch.ones(3, 7, dtype=torch.bool)), attn(query, key))


@pytest.mark.parametrize("path", ["fused", "plain"])
def test_rows_without_keys_are_zero(small_blocks, path):
    attn = randomised(XLinear(8, heads=2))
    query, key, mask = random(2, 3, 8).requires_grad_(), random(2, 5, 8, seed=1).requires_grad_(), chance(2, 3, 5)
    mask[0, 1] = False
    with using(path):
        out = attn(query, key, mask=mask)
        assert not out[0, 1].any()
        assert out[0, 0].any()
        out.sum().backward()
        assert not query.grad[0, 1].any()
        assert all(t.grad.isfinite().all() for t in (query, key, *attn.parameters()))
        assert not attn(query, key, mask=torch.zeros(2, 5, dtype=torch.bool)).any()


@torch.no_grad()
@pytest.mark.parametrize("path", ["fused", "plain"])
def test_causal_queries_see_nothing_later(small_blocks, path):
    attn, tokens = randomised(XLinear(8, heads=2)), random(2, 6, 8)
    with using(path):
        out = attn(tokens, causal=True)
        for at in range(1, 6):
            later = tokens.clone()
            later[:, at:] = 9.0
            assert torch.equal(attn(later, causal=True)[:, :at], out[:, :at])
        triangle = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 6, 6)
        close(attn(tokens, mask=triangle), out)


@torch.no_grad()
@pytest.mark.parametrize("step", [1, 3])
def test_step_by_step_equals_at_once(step):
    attn, tokens, cache = randomised(XLinear(8, heads=2)), random(2, 6, 8), Cache()
    out = [attn(tokens[:, i : i + step], causal=True, cache=cache) for i in range(0, 6, step)]
    close(torch.cat(out, 1), attn(tokens, causal=True), 1e-6)
    assert cache.length == 6


@torch.no_grad()
def test_step_by_step_with_padding_equals_at_once():
    attn, tokens, mask, cache = randomised(XLinear(8, heads=2)), random(2, 6, 8), chance(2, 6), Cache()
    out = [attn(tokens[:, i : i + 1], mask=mask[:, : i + 1], causal=True, cache=cache) for i in range(6)]
    close(torch.cat(out, 1), attn(tokens, mask=mask, causal=True), 1e-6)


@torch.no_grad()
def test_keys_beside_the_queries_grow():
    attn, query, stream, cache = randomised(XLinear(8, heads=2)), random(2, 6, 8), random(2, 6, 8), Cache()
    expected = attn(query, stream, causal=True)
    close(attn(query, stream, causal=True, grow=True), expected)
    looked = attn.attention_weights(query, stream, causal=True)
    calls: list[int] = []
    attn.key.register_forward_hook(lambda _, given, __: calls.append(given[0].shape[1]))
    for i in range(6):
        new = query[:, i : i + 1], stream[:, i : i + 1]
        close(attn.attention_weights(*new, cache=cache, grow=True), looked[:, :, i : i + 1, : i + 1], 1e-6)
        close(attn(*new, cache=cache, grow=True), expected[:, i : i + 1], 1e-6)
    assert calls == [1] * 12  # each key once to look and once to attend
    cache.expand(2)
    assert cache.tensors["key"].shape[0] == 4
    with pytest.raises(UserError, match="one key for each query"):
        attn(query, stream[:, :5], grow=True)


@torch.no_grad()
def test_a_cached_memory_is_projected_once():
    attn, query, key, mask, cache = randomised(XLinear(8, heads=2)), random(2, 3, 8), random(2, 5, 8), None, Cache()
    expected = attn(query, key, mask=mask)
    calls: list[int] = []
    attn.key.register_forward_hook(lambda *_: calls.append(1))
    out = [attn(query[:, i : i + 1], key, cache=cache) for i in range(3)]
    close(torch.cat(out, 1), expected)
    assert len(calls) == 1


@torch.no_grad()
@pytest.mark.parametrize("masked", ["no", "keys", "pairs"])
def test_shared_memories_equal_repeated_ones(small_blocks, masked):
    attn, query, key = randomised(XLinear(8, heads=2)), random(6, 4, 8), random(2, 5, 8, seed=1)
    mask = None if masked == "no" else chance(2, 5) if masked == "keys" else chance(2, 4, 5)
    repeated = None if mask is None else mask.repeat_interleave(3, 0)
    close(attn(query, key, mask=mask), attn(query, key.repeat_interleave(3, 0), mask=repeated))
    spatial, channel = attn.distributions(query, key, mask=mask)
    again, gate = attn.distributions(query, key.repeat_interleave(3, 0), mask=repeated)
    close(spatial, again)
    close(channel, gate)


@torch.no_grad()
def test_several_memories_are_read_as_one():
    attn, query = randomised(build("xlinear", dim=8, socket="fusion", memory_dim=6, heads=2)), random(2, 3, 8)
    one, two = random(2, 4, 6, seed=1), random(2, 5, 6, seed=2)
    both = torch.cat([one, two], 1)
    close(attn(query, [one, two]), attn(query, both))
    of_one, of_two = chance(2, 4), chance(2, 3, 5)
    wide = torch.cat([of_one[:, None].expand(2, 3, 4), of_two], 2)
    close(attn(query, [one, two], mask=[of_one, of_two]), attn(query, both, mask=wide))
    wide = torch.cat([of_one, torch.ones(2, 5, dtype=torch.bool)], 1)
    soiled = one.masked_fill(~of_one[..., None], float("nan"))
    close(attn(query, [soiled, two], mask=[of_one, None]), attn(query, both, mask=wide))


@torch.no_grad()
def test_weights_are_distributions():
    attn, mask = randomised(XLinear(8, heads=2)), chance(2, 3, 5)
    mask[1, 2] = False
    spatial, channel = attn.distributions(random(2, 3, 8), random(2, 5, 8, seed=1), mask=mask)
    assert spatial.shape == (2, 2, 3, 5)
    assert channel.shape == (2, 2, 3, 4)
    close(spatial.sum(-1), mask.any(-1)[:, None].expand(2, 2, 3).double())
    assert not spatial.masked_select(~mask[:, None]).any()


# Around the arithmetic.


@pytest.mark.parametrize("options", [{}, {"gate": False}, {"group_norm": False, "activation": "relu", "heads": 1}])
def test_state_dict_round_trip(options):
    attn = randomised(XLinear(16, **options), 1)
    again = XLinear(16, **options).double()
    again.load_state_dict(attn.state_dict())
    assert torch.equal(again(random(2, 3, 16)), attn(random(2, 3, 16)))


def test_sizes_are_the_published_ones():
    assert build("xlinear", dim=1024, socket="token").middle.weight.shape == (64, 128)
    assert build("xlinear", dim=768, socket="token").middle.weight.shape == (48, 96)


def test_infinite_order_is_elu_with_slope_one():
    attn = XLinear(8, heads=2, activation="elu")
    assert isinstance(attn.key.activation, nn.ELU)
    assert attn.key.activation.alpha == 1
    assert XLinear(8, heads=2).key.activation.alpha == 1.3


def test_macs_grow_with_both_sides():
    attn, no_gate = XLinear(16, heads=2), XLinear(16, heads=2, gate=False)
    assert attn.macs(3) == attn.macs(3, 3)
    assert no_gate.macs(3, 5) < attn.macs(3, 5) < attn.macs(3, 6) < attn.macs(4, 6)
    assert XLinearStack(16, heads=2, separate=True).macs(5) > XLinearStack(16, heads=2).macs(5) > 4 * attn.macs(1, 5)


def test_half_precision_of_autocast():
    attn, query = XLinear(16, heads=2), torch.randn(2, 3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out = attn(query, mask=torch.tensor([[True, True, False]] * 2))
    torch.testing.assert_close(out.float(), attn(query, mask=torch.tensor([[True, True, False]] * 2)), rtol=0, atol=0.1)


@torch.no_grad()
def test_an_exported_block_computes_the_same():
    attn, query, key, mask = randomised(XLinear(8, heads=2)), random(2, 3, 8), random(2, 5, 8, seed=1), chance(2, 5)
    program = torch.export.export(attn, (query, key), {"mask": mask})
    close(program.module()(query, key, mask=mask), attn(query, key, mask=mask))


def test_compiled_without_breaks():
    attn, query, key, mask = randomised(XLinear(8, heads=2)), random(2, 3, 8), random(2, 5, 8, seed=1), chance(2, 5)
    compiled = torch.compile(attn, fullgraph=True, backend="aot_eager")
    close(compiled(query, key, mask=mask), attn(query, key, mask=mask))
    close(compiled(query, causal=True), attn(query, causal=True))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"query": (2, 3, 7)}, r"query has shape \(2, 3, 7\); expected \(batch, tokens, 8\)"),
        ({"key": (2, 5, 7)}, r"key has shape \(2, 5, 7\); expected \(batch, tokens, 8\)"),
        ({"key": (3, 5, 8)}, "query has a batch of 2, key of 3; expected a divisor"),
        ({"value": (2, 5, 8)}, "value was given without key"),
        ({"key": (2, 5, 8), "value": (2, 4, 8)}, r"value has shape \(2, 4, 8\); expected batch and tokens of key"),
        ({"key": (2, 5, 8), "mask": (2, 4)}, r"mask has shape \(2, 4\); expected"),
        ({"key": (2, 5, 8), "mask": [None]}, "key is one tensor and mask a list; expected both alike"),
        ({"key": [(2, 5, 8)], "mask": (2, 5)}, "key is a list and mask one tensor; expected both alike"),
        ({"key": [(2, 5, 8)], "mask": [None, None]}, "key has 1 memories, value 1 and mask 2; expected as many"),
        ({"key": []}, "key has 0 memories"),
    ],
)
def test_bad_calls_are_told(call, words):
    def made(name: str, given):
        if isinstance(given, list):
            return [made(name, each) for each in given]
        if given is None:
            return None
        return torch.ones(given, dtype=torch.bool) if name == "mask" else torch.ones(given)

    tensors = {name: made(name, given) for name, given in ({"query": (2, 3, 8)} | call).items()}
    with pytest.raises(UserError, match=words):
        XLinear(8, heads=2)(tensors.pop("query"), **tensors)


def test_masks_of_numbers_are_refused():
    with pytest.raises(UserError, match=r"mask has type torch\.float32; expected booleans"):
        XLinear(8, heads=2)(torch.ones(2, 3, 8), mask=torch.ones(2, 3))
    with pytest.raises(UserError, match=r"mask has shape \(2, 4\) and type torch\.bool; expected booleans of shape"):
        XLinearStack(8, heads=2)(torch.ones(2, 3, 8), torch.ones(2, 4, dtype=torch.bool))


def test_self_attention_needs_one_width():
    with pytest.raises(UserError, match=r"query has shape \(2, 3, 8\); expected \(batch, tokens, 6\)"):
        XLinear(8, heads=2, memory_dim=6)(torch.ones(2, 3, 8))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 3}, "dim=8 is not divisible by heads=3"),
        ({"heads": 0}, "heads=0"),
        ({"mid": 0}, "mid=0"),
        ({"memory_dim": 0}, "memory_dim=0"),
        ({"alpha": 0.0}, r"alpha=0\.0 must be above 0"),
        ({"dropout": 1.0}, r"dropout=1\.0 must be at least 0 and below 1"),
        ({"activation": "gelu"}, "activation=gelu is not one of celu, relu, elu"),
    ],
)
def test_bad_settings_are_told(options, words):
    with pytest.raises(ValueError, match=words):
        XLinear(8, **options)


def test_bad_settings_of_a_stack_are_told():
    with pytest.raises(ValueError, match="layers=-1 must not be negative"):
        XLinearStack(8, layers=-1)
    with pytest.raises(ValueError, match=r"update_dropout=-1 must be at least 0"):
        XLinearStack(8, update_dropout=-1)


def test_the_catalogue_has_it():
    card = catalogue()["xlinear"]
    assert card.sockets == ("token", "fusion")
    assert set(card.settings()) == {"heads", "mid", "activation", "alpha", "group_norm", "gate", "dropout"}


def test_official_names_leave_out_what_is_thrown_away():
    weights = {"in_proj_v1.0.weight": torch.ones(1), "in_proj_q.0.bias": torch.ones(1)}
    assert set(xlinear_names(weights)) == {"query.map.bias"}
    stacked = {"layers.1.encoder_attn.in_proj_k.2.bias": torch.ones(1), "bifeat_emb.0.0.bias": torch.ones(1)}
    assert set(xlinear_names(stacked)) == {"blocks.1.key.norm.bias", "updates.0.map.bias"}
    assert np.all([name in xlinear_names({name: torch.ones(1)}) for name in ("other.weight",)])
