"""Entangled attention and its ablations: against loops, in limiting cases, and how they behave."""

from __future__ import annotations

import io
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import entangled as slow
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vlplatform.attention import build, catalogue
from vlplatform.attention.cache import Cache
from vlplatform.attention.entangled import Activation, Entangled, GatedBilateral, Parallel, Single, Stacked, Variant
from vlplatform.errors import UserError

VARIANTS = get_args(Variant)
every = pytest.mark.parametrize("variant", VARIANTS)
gated = pytest.mark.parametrize("variant", ["eta", "parallel"])


def make(variant: str = "eta", dim: int = 8, seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> nn.Module:
    """The mechanism with every parameter drawn anew."""
    options = {"heads": 2, "memory_dims": (6, 4)} | options
    module = build("eta", dim=dim, socket="fusion", variant=variant, **options).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.6)
    return module


def tokens(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def some_real(batch: int, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, length, generator=generator) < torch.rand((), generator=generator)


def inputs(batch: int = 2, queries: int = 5, visual: int = 7, semantic: int = 4, dtype: torch.dtype = torch.float64):
    """A query and memories of widths 8, 6 and 4."""
    memories = (tokens(batch, visual, 6, seed=2, dtype=dtype), tokens(batch, semantic, 4, seed=3, dtype=dtype))
    return tokens(batch, queries, 8, dtype=dtype), memories


def arrays(module: nn.Module) -> dict:
    return {key: value.numpy() for key, value in module.state_dict().items()}


# against loops


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    st.sampled_from(VARIANTS),
    st.sampled_from(get_args(Activation)),
    st.sampled_from([(4, 1), (4, 2), (6, 3)]),
    st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 8), st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(0, 2**16),
)
def test_against_loops(variant, activation, width, sizes, memory_dims, padded, seed):
    (batch, groups, queries, *lengths), (dim, heads) = sizes, width
    own = {"activation": activation} if variant in ("eta", "parallel") else {}
    module = make(variant, dim, seed, heads=heads, memory_dims=memory_dims, **own)
    query = tokens(batch * groups, queries, dim, seed=seed)
    memories = [tokens(batch, m, w, seed=seed + i) for i, (m, w) in enumerate(zip(lengths, memory_dims))]
    masks = [some_real(batch, m, seed + i) if p else None for i, (m, p) in enumerate(zip(lengths, padded))]
    expected = slow.fuse(
        query.numpy(),
        tuple(memory.numpy() for memory in memories),
        arrays(module),
        tuple(None if mask is None else mask.numpy() for mask in masks),
        heads=heads,
        variant=variant,
        **own,
    )
    with torch.no_grad():
        out = module(query, memories, mask=masks)
    torch.testing.assert_close(out, torch.from_numpy(expected), rtol=1e-10, atol=1e-10)


def test_the_comparison_can_fail():
    (query, memories), module = inputs(), make("stacked_v")
    names = arrays(module) | {k.replace("guide_semantic", "guide_visual"): v for k, v in arrays(module).items()}
    right = slow.fuse(query.numpy(), [m.numpy() for m in memories], names, (None, None), heads=2, variant="stacked_v")
    wrong = slow.fuse(query.numpy(), [m.numpy() for m in memories], names, (None, None), heads=1, variant="stacked_v")
    torch.testing.assert_close(module(query, memories), torch.from_numpy(right))
    assert not torch.allclose(module(query, memories), torch.from_numpy(wrong), rtol=1e-3)


# limiting cases


def steps(module: nn.Module, query: Tensor, memories, *names: str) -> Tensor:
    """The steps of these names, one after the other."""
    for name in names:
        query = module.get_submodule(name)(query, memories[int("semantic" in name)], None, None)
    return query


@gated
def test_a_gate_without_weights_is_the_mean(variant):
    (query, memories), module = inputs(), make(variant)
    module.join.gate.weight.data.zero_()
    module.join.gate.bias.data.zero_()
    to_visual = ("guide_semantic", "visual") if variant == "eta" else ("visual",)
    to_semantic = ("guide_visual", "semantic") if variant == "eta" else ("semantic",)
    visual, semantic = (steps(module, query, memories, *names) for names in (to_visual, to_semantic))
    assert torch.equal(module(query, memories), 0.5 * visual + 0.5 * semantic)


@pytest.mark.parametrize(("bias", "variant"), [(1e3, "stacked_v"), (-1e3, "stacked_s")])
def test_a_gate_at_its_ends_is_one_way_alone(bias, variant):
    (query, memories), module, way = inputs(), make("eta"), make(variant)
    module.join.gate.bias.data.fill_(bias)
    way.load_state_dict({name: module.state_dict()[name] for name in way.state_dict()})
    assert torch.equal(module(query, memories), way(query, memories))


@pytest.mark.parametrize(("bias", "variant"), [(1e3, "visual"), (-1e3, "semantic")])
def test_a_parallel_gate_at_its_ends_is_one_memory_alone(bias, variant):
    (query, memories), module, way = inputs(), make("parallel"), make(variant)
    module.join.gate.bias.data.fill_(bias)
    way.load_state_dict({name: module.state_dict()[name] for name in way.state_dict()})
    assert torch.equal(module(query, memories), way(query, memories))


def test_exchanging_the_modalities_exchanges_the_gate():
    (query, (visual, semantic)), module = inputs(), make("eta")
    other = make("eta", memory_dims=(4, 6))
    state = {}
    for name, value in module.state_dict().items():
        swapped = name.replace("visual", "?").replace("semantic", "visual").replace("?", "semantic")
        if name == "join.gate.weight":
            g_s, g_v, a = value.chunk(3, 1)
            value = -torch.cat((g_v, g_s, a), 1)
        state[swapped] = -value if name == "join.gate.bias" else value
    other.load_state_dict(state)
    torch.testing.assert_close(other(query, (semantic, visual)), module(query, (visual, semantic)))


@pytest.mark.parametrize("activation", get_args(Activation))
def test_the_gated_bilateral_controller(activation):
    gate = GatedBilateral(6, activation=activation).double()
    visual, semantic, *context = (tokens(2, 3, 6, seed=seed) for seed in range(5))
    f = {"identity": lambda x: x, "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}[activation]
    c = torch.sigmoid(torch.cat(context, -1) @ gate.gate.weight.T + gate.gate.bias)
    torch.testing.assert_close(gate(visual, semantic, tuple(context)), f(visual) * c + f(semantic) * (1 - c))


def test_the_names_build_the_classes():
    built = {variant: type(make(variant)) for variant in VARIANTS}
    stacked, single = ("stacked_v", "stacked_s"), ("visual", "semantic")
    assert built == {"eta": Entangled, "parallel": Parallel} | dict.fromkeys(stacked, Stacked) | dict.fromkeys(
        single, Single
    )
    gbc, parallel = build("gbc", dim=8, socket="fusion", heads=2, memory_dims=(6, 4)).double(), make("parallel")
    parallel.load_state_dict(gbc.state_dict())
    query, memories = inputs()
    assert torch.equal(gbc(query, memories), parallel(query, memories))


# padding and steps


@every
def test_padding_never_matters(variant):
    (query, memories), module = inputs(3, visual=11, semantic=9), make(variant)
    masks = (some_real(3, 11, 8), some_real(3, 9, 9))
    out = module(query, memories, mask=masks)
    for filling in (1e30, float("nan"), float("inf")):
        soiled = [m.masked_fill(~real[..., None], filling) for m, real in zip(memories, masks)]
        assert torch.equal(module(query, soiled, mask=masks), out)
    soiled = [m.masked_fill(~real[..., None], float("nan")) for m, real in zip(memories, masks)]
    module(query, soiled, mask=masks).sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


@every
def test_padding_is_as_if_cut_off(variant):
    (query, memories), module = inputs(visual=11, semantic=9), make(variant)
    masks = ((torch.arange(11) < 6).expand(2, 11), (torch.arange(9) < 4).expand(2, 9))
    cut = module(query, (memories[0][:, :6], memories[1][:, :4]))
    torch.testing.assert_close(module(query, memories, mask=masks), cut, rtol=1e-12, atol=1e-12)


@every
def test_memories_without_a_real_token_leave_the_residual(variant):
    (query, memories), module = inputs(), make(variant)
    masks = [torch.zeros(m.shape[:2], dtype=torch.bool) for m in memories]

    def norms(*names: str) -> Tensor:
        out = query
        for name in names:
            out = module.get_submodule(name).norm(out)
        return out

    if variant in ("visual", "semantic"):
        expected = norms(variant)
    elif variant == "stacked_v":
        expected = norms("guide_semantic", "visual")
    elif variant == "stacked_s":
        expected = norms("guide_visual", "semantic")
    elif variant == "parallel":
        visual, semantic = norms("visual"), norms("semantic")
        expected = module.join(visual, semantic, (semantic, visual, query))
    else:
        guides = norms("guide_semantic"), norms("guide_visual")
        ways = norms("guide_semantic", "visual"), norms("guide_visual", "semantic")
        expected = module.join(*ways, (*guides, query))
    torch.testing.assert_close(module(query, memories, mask=masks), expected, rtol=0, atol=0)


@every
def test_a_query_knows_nothing_of_the_others(variant):
    (query, memories), module = inputs(), make(variant)
    out, changed = module(query, memories), query.clone()
    changed[:, 3:] = 1e3
    torch.testing.assert_close(module(changed, memories)[:, :3], out[:, :3], rtol=1e-12, atol=1e-12)


@every
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_steps_equal_the_whole(variant, dtype, near):
    torch.manual_seed(0)
    query, memories = inputs(dtype=dtype)
    module = build("eta", dim=8, socket="fusion", heads=2, memory_dims=(6, 4), variant=variant).to(dtype)
    masks, cache = (some_real(2, 7, 8), None), Cache()
    out = [module(query[:, i : i + 1], memories, mask=masks, cache=cache) for i in range(query.shape[1])]
    torch.testing.assert_close(torch.cat(out, 1), module(query, memories, mask=masks), rtol=0, atol=near)


def test_the_cache_keeps_each_memory_of_each_attention_and_follows_a_beam():
    (query, memories), module, cache = inputs(3), make("eta"), Cache()
    module(query[:, :1], memories, cache=cache)
    assert set(cache.children) == {"guide_semantic", "visual", "guide_visual", "semantic"}
    assert all(set(child.tensors) == {"key", "value"} for child in cache.children.values())
    order = torch.tensor([2, 2, 0])
    cache.reorder(order)
    stale = [torch.full_like(m, float("nan")) for m in memories]  # projected once: not read again
    out = module(query[order, 1:2], stale, cache=cache)
    torch.testing.assert_close(out, module(query[order, 1:2], [m[order] for m in memories]))


# gradients, precision, compilation, cost


@every
def test_gradients(variant):
    module = make(variant, activation="tanh") if variant in ("eta", "parallel") else make(variant)
    query, memories = inputs(1, 2, 3, 2)
    names, values = zip(*module.named_parameters())
    masks = (torch.tensor([[True, False, True]]), None)
    leaves = [query, *(memories[i] for i in module.reads)]

    def apply(query, *rest):
        read = dict(zip(module.reads, rest))
        given = [read.get(i, memories[i]) for i in (0, 1)]
        parameters = dict(zip(names, rest[len(read) :]))
        return torch.func.functional_call(module, parameters, (query, given), {"mask": masks})

    arguments = (*(leaf.requires_grad_() for leaf in leaves), *values)
    assert torch.autograd.gradcheck(apply, arguments, fast_mode=True)


@every
def test_state_dict_round_trip(variant):
    (query, memories), module, other = inputs(), make(variant, seed=1), make(variant, seed=2)
    assert not torch.allclose(module(query, memories), other(query, memories))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(module(query, memories), other(query, memories))


@every
def test_autocast_is_near_full_precision(variant):
    (query, memories), module = inputs(dtype=torch.float32), make(variant, dtype=torch.float32)
    masks = (some_real(2, 7, 8), torch.zeros(2, 4, dtype=torch.bool))
    exact = module(query, memories, mask=masks)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(query, memories, mask=masks)
    out.float().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())
    assert (out - exact).norm() < 0.05 * exact.norm()


@every
def test_dropout_acts_in_training_alone(variant):
    (query, memories), module = inputs(), make(variant, dropout=0.5)
    assert not torch.equal(module(query, memories), module(query, memories))
    plain = make(variant)
    plain.load_state_dict(module.state_dict())
    assert torch.equal(module.eval()(query, memories), plain(query, memories))


@every
def test_compiles_to_one_graph(variant):
    torch._dynamo.reset()
    (query, memories), module = inputs(), make(variant)
    masks = (some_real(2, 7, 8), None)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(query, memories, mask=masks), module(query, memories, mask=masks))


@every
def test_exports(variant):
    (query, memories), module = inputs(), make(variant).eval()
    masks = (some_real(2, 7, 8), some_real(2, 4, 9))
    program = torch.export.export(module, (query, memories), {"mask": masks}, strict=False)
    torch.testing.assert_close(program.module()(query, memories, mask=masks), module(query, memories, mask=masks))


@every
def test_macs_are_those_that_torch_counts(variant):
    (query, memories), module = inputs(1), make(variant)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(query, memories)
    assert 2 * module.macs(5, (7, 4)) == counter.get_total_flops()


# what is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 3}, "heads=3"),
        ({"dropout": 1.5}, r"dropout=1\.5"),
        ({"activation": "gelu"}, "activation=gelu"),
        ({"variant": "late"}, "variant=late"),
        ({"variant": "stacked_v", "activation": "relu"}, "activation=relu belongs to a gate"),
        ({"memory_dims": (3, 0)}, r"memory_dims=\(3, 0\)"),
    ],
)
def test_bad_settings_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        catalogue()["eta"].build(8, **options)
    with pytest.raises(UserError, match=next(iter(options))):
        build("eta", dim=8, socket="fusion", **options)


def test_classes_refuse_unknown_words_themselves():
    with pytest.raises(ValueError, match="target=both"):
        Stacked(8, target="both")
    with pytest.raises(ValueError, match="modality=text"):
        Single(8, modality="text")
    with pytest.raises(ValueError, match="activation=gelu"):
        GatedBilateral(8, activation="gelu")


def test_bad_calls_are_named():
    (query, (visual, semantic)), module = inputs(4), make()
    half = torch.ones(4, 4, dtype=torch.bool)
    for wrong, words in (
        ({"query": query[..., :5]}, r"query has shape \(4, 5, 5\); expected \(batch, tokens, 8\)"),
        ({"memories": visual}, "memories came as a Tensor; expected a list or tuple of two"),
        ({"memories": (visual,)}, "memories came as 1 entries"),
        ({"memories": (semantic, visual)}, r"memories\[0\] \(visual\) has shape \(4, 4, 4\); .*, 6\)"),
        ({"memories": (visual, semantic[0])}, r"memories\[1\] \(semantic\) has shape \(4, 4\)"),
        ({"memories": (visual, semantic[:3])}, r"query has a batch of 4, memories\[1\] \(semantic\) of 3"),
        ({"mask": half}, "mask came as a Tensor"),
        ({"mask": (half, half)}, r"mask\[0\] \(visual\) has shape \(4, 4\) and type .*; expected .* \(4, 7\)"),
        ({"mask": (None, half.float())}, r"mask\[1\] \(semantic\) .* torch.float32; expected booleans"),
    ):
        with pytest.raises(UserError, match=words) as refusal:
            module(**({"query": query, "memories": (visual, semantic)} | wrong))
        assert "\n" not in str(refusal.value)
