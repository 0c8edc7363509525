"""The token mechanisms against loops written from the equations, over random sizes, padding, boxes and weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_calls import HEADS, LENGTHS, Case, attention, cases
from reference import token_attention as slow
from reference import token_geometry as of_boxes
from reference import token_places as of_places

from vlplatform.attention.score_term import Depth

SEEDS = st.integers(0, 2**16)
thorough = settings(max_examples=200, deadline=None, derandomize=True)
SMALL = st.one_of(st.integers(1, 6), st.integers(1, 6), st.integers(1, 16))


@thorough
@given(
    cases(causal=True),
    HEADS,
    st.sampled_from([{}, {"head_dim": 3}, {"key_dim": 5}, {"bias": False}]),
    st.sampled_from(["head", "model"]),
    st.booleans(),
    SEEDS,
)
def test_self_attention(case, heads, sizes, scale, own_values, seed):
    module = attention("sa", seed, heads=heads, scale=scale, **sizes)
    if own_values and case.inputs.key is not None:
        case = replace(
            case, inputs=replace(case.inputs, value=np.random.default_rng(seed).normal(size=case.inputs.key.shape))
        )
    case.compare(case.call(module), slow.sa(module, case.inputs, scale=scale))


@thorough
@given(cases(causal=True), HEADS, st.booleans(), st.booleans(), SEEDS)
def test_masks_of_pairs_and_heads(case, heads, of_heads, of_queries, seed):
    keys = case.inputs.query if case.inputs.key is None else case.inputs.key
    shape = (len(keys), heads if of_heads else 1, case.inputs.query.shape[1] if of_queries else 1, keys.shape[1])
    case = masked(case, np.random.default_rng(seed).random(shape) < 0.6)
    module = attention("sa", seed, heads=heads)
    case.compare(case.call(module), slow.sa(module, case.inputs))


def masked(case: Case, mask: np.ndarray) -> Case:
    """The case with a mask (B, h or 1, N or 1, M) in place of its own."""
    given = case.inputs
    tokens = {n: np.where(np.abs(t) < 100, t, 1.0) for n in ("query", "key") if (t := getattr(given, n)) is not None}
    return replace(case, inputs=replace(given, mask=mask, query_mask=None, **tokens))


PAIRED = {
    "dsa": ({}, of_boxes.dsa),
    "talking_heads": ({}, slow.talking_heads),
    "rel_pos": ({"clip": 2}, of_places.rel_pos),
    "bilateral_sa": ({"window": 3, "padding": "learned", "smoothing": "zscore"}, of_places.bilateral_sa),
    "bilateral_sa without padding": ({"window": 5, "padding": "inf", "smoothing": "zscore"}, of_places.bilateral_sa),
    "halo_window": ({"block": 2, "halo": 1}, of_places.halo_window),
    "acf1d": ({"rate": 2}, lambda module, inputs, **own: of_places.acf1d(module, inputs, **own)[0]),
    "acf2d": ({"scores": "logits"}, lambda module, inputs, **own: of_places.acf2d(module, inputs, **own)[0]),
}


@thorough
@given(
    cases(others=False, geometry=("grid",), sides=st.integers(1, 4)),
    HEADS,
    st.sampled_from(sorted(PAIRED)),
    st.sampled_from([0.2, 0.6]),
    SEEDS,
)
def test_masks_of_pairs_under_terms(case, heads, name, density, seed):
    batch, count, _ = case.inputs.query.shape
    case = masked(case, np.random.default_rng(seed).random((batch, 1, count, count)) < density)
    options, reference = PAIRED[name]
    module = attention(name.split()[0], seed, heads=heads, **options)
    case.compare(case.call(module), reference(module, case.inputs, **options))


@thorough
@given(
    cases(causal=True, geometry=("boxes", "points", "grid")),
    HEADS,
    st.sampled_from(["manhattan", "euclidean", "chebyshev"]),
    st.sampled_from(["dynamic_sigmoid", "linear", "quadratic", "scalar"]),
    SEEDS,
)
def test_distance_sensitive(case, heads, distance, scaling, seed):
    module = attention("dsa", seed, heads=heads, distance=distance, scaling=scaling)
    case.compare(case.call(module), of_boxes.dsa(module, case.inputs, distance=distance, scaling=scaling))


@thorough
@given(
    cases(),
    HEADS,
    st.sampled_from(["instance", "layer", "batch"]),
    st.sampled_from(["query", "key", "both"]),
    st.booleans(),
    st.booleans(),
    SEEDS,
)
def test_normalised(case, heads, norm, on, affine, training, seed):
    module = attention("nsa", seed, heads=heads, norm=norm, on=on, affine=affine).train(training)
    expected, buffers = slow.nsa(module, case.inputs, norm=norm, on=on)
    case.compare(case.call(module), expected)
    layers = [layer for layer in (module.terms[0].query, module.terms[0].key) if layer is not None]
    for layer, running in zip(layers, buffers):
        for name, statistic in running.items():
            torch.testing.assert_close(getattr(layer, name), torch.from_numpy(statistic), rtol=1e-10, atol=1e-10)


@thorough
@given(cases(causal=True), HEADS, st.sampled_from(["query", "key", "both"]), st.booleans(), SEEDS)
def test_normalised_by_layer_in_a_decoder(case, heads, on, affine, seed):
    module = attention("nsa", seed, heads=heads, norm="layer", on=on, affine=affine)
    case.compare(case.call(module), slow.nsa(module, case.inputs, norm="layer", on=on)[0])


KINDS = st.lists(st.sampled_from(["content_independent", "query", "key"]), min_size=1, max_size=3, unique=True)
BOXES = cases(causal=True, geometry=("boxes", "boxes", "grid"), lengths=SMALL, sides=st.integers(1, 4))


@thorough
@given(BOXES, HEADS, KINDS, st.sampled_from([None, 1, 5]), SEEDS)
def test_geometry_aware(case, heads, kinds, geometry_dim, seed):
    module = attention("gsa", seed, heads=heads, kinds=kinds, geometry_dim=geometry_dim)
    case.compare(case.call(module), of_boxes.gsa(module, case.inputs, kinds=kinds))


@thorough
@given(BOXES, HEADS, st.booleans(), SEEDS)
def test_box_relations(case, heads, inclusive, seed):
    module = attention("rel_pe", seed, heads=heads, inclusive=inclusive)
    case.compare(case.call(module), of_boxes.rel_pe(module, case.inputs, inclusive=inclusive))


@thorough
@given(
    cases(causal=True, geometry=("boxes", "points", "grid"), sized=True, dim=16),
    HEADS,
    st.integers(0, 1),
    st.booleans(),
    SEEDS,
)
def test_absolute_geometry(case, heads, layer, every_layer, seed):
    module = attention("abs_pe", seed, dim=16, heads=heads, every_layer=every_layer)
    expected = of_boxes.abs_pe(module, case.inputs, layer=layer, every_layer=every_layer)
    case.compare(case.call(module, depth=Depth(layer=layer)), expected)


@thorough
@given(cases(causal=True), HEADS, st.sampled_from([(True, True), (True, False), (False, True)]), SEEDS)
def test_talking_heads(case, heads, mixed, seed):
    module = attention("talking_heads", seed, heads=heads, logits=mixed[0], probabilities=mixed[1])
    case.compare(case.call(module), slow.talking_heads(module, case.inputs))


PADDINGS, SMOOTHINGS = st.sampled_from(["inf", "zero", "min", "learned"]), st.sampled_from(["sqrt", "zscore"])
OWN = cases(causal=True, others=False)


def window_of(case: Case, window: int) -> int:
    """Even windows in causal calls alone."""
    return window if case.inputs.causal or window % 2 else window + 1


@thorough
@given(OWN, HEADS, st.sampled_from([1, 2, 3, 4, 5, 8, 31]), PADDINGS, SMOOTHINGS, st.sampled_from([None, 3]), SEEDS)
def test_bilateral(case, heads, window, padding, smoothing, hidden, seed):
    options = {"window": window_of(case, window), "padding": padding, "smoothing": smoothing}
    module = attention("bilateral_sa", seed, heads=heads, hidden=hidden, **options)
    case.compare(case.call(module), of_places.bilateral_sa(module, case.inputs, **options))


@thorough
@given(OWN, HEADS, st.sampled_from([1, 2, 3, 5, 16]), st.booleans(), SEEDS)
def test_relative_positions(case, heads, clip, values, seed):
    module = attention("rel_pos", seed, heads=heads, clip=clip, values=values)
    case.compare(case.call(module), of_places.rel_pos(module, case.inputs, clip=clip))


GRID = cases(others=False, geometry=("grid",), sides=st.integers(1, 7))


@thorough
@given(GRID, HEADS, st.integers(1, 7), st.integers(0, 3), SEEDS)
def test_shifted_windows(case, heads, window, layer, seed):
    module = attention("swin_window", seed, heads=heads, window=window)
    expected = of_places.swin_window(module, case.inputs, window=window, layer=layer)
    case.compare(case.call(module, depth=Depth(layer=layer)), expected)


@thorough
@given(GRID, HEADS, st.integers(1, 4), st.integers(0, 3), SEEDS)
def test_windows_with_halos(case, heads, block, halo, seed):
    module = attention("halo_window", seed, heads=heads, block=block, halo=halo)
    case.compare(case.call(module), of_places.halo_window(module, case.inputs, block=block, halo=halo))


CLUSTERS = st.sampled_from([{"rate": 1}, {"rate": 1}, {"rate": 2}, {"rate": 3}, {"window": 0}, {"window": 2}])
SCORES = st.sampled_from(["weights", "logits"])


def compare_stack(name, reference, case, heads, grows, seed, options, **more):
    """Two layers that share what grows, each on the output of the one below."""
    depth, below = Depth(), None
    for layer in range(2):
        module = attention(name, seed + layer, heads=heads, grows=grows, **options)
        actual = case.call(module, depth=depth.at(layer))
        expected, clusters = reference(module, case.inputs, below=below if grows else None, **options, **more)
        case.compare(actual, expected)
        below, case = clusters, replace(case, inputs=replace(case.inputs, query=actual.numpy()))


@thorough
@given(
    cases(causal=True, others=False, lengths=st.one_of(SMALL, LENGTHS)), HEADS, SCORES, st.booleans(), CLUSTERS, SEEDS
)
def test_clusters_of_a_sequence(case, heads, scores, grows, options, seed):
    if options.get("rate", 1) > 1:
        case = replace(case, inputs=replace(case.inputs, causal=False))
    compare_stack("acf1d", of_places.acf1d, case, heads, grows, seed, {"scores": scores, **options})


@thorough
@given(cases(others=False, geometry=("grid",), sides=st.integers(1, 5)), HEADS, SCORES, st.booleans(), CLUSTERS, SEEDS)
def test_clusters_of_a_grid(case, heads, scores, grows, options, seed):
    compare_stack("acf2d", of_places.acf2d, case, heads, grows, seed, {"scores": scores, **options})


REGIONS = cases(others=False, geometry=("boxes", "points"), lengths=st.one_of(SMALL, SMALL, st.integers(1, 24)))


@thorough
@given(REGIONS, HEADS, SCORES, st.booleans(), CLUSTERS, st.integers(1, 6), SEEDS)
def test_clusters_of_regions(case, heads, scores, grows, options, height, seed):
    compare_stack("acf2d", of_places.acf2d, case, heads, grows, seed, {"scores": scores, "height": height, **options})


@thorough
@given(
    cases(causal=True, geometry=("boxes", "points", "grid"), lengths=SMALL, sides=st.integers(1, 4)),
    st.integers(1, 3),
    st.sampled_from(["code", "paper"]),
    st.sampled_from(["sa", "dsa"]),
    st.booleans(),
    st.sampled_from([0.0, 0.4]),
    SEEDS,
)
def test_branches(case, branches, form, of, training, drop, seed):
    module = attention("msa", seed, of=of, heads=2, branches=branches, form=form, drop=drop).train(training)
    draws = torch.rand(branches, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    branch = slow.sa if of == "sa" else of_boxes.dsa
    given_draws = {"draws": draws} if training else {}
    expected = slow.multi_branch(
        module, case.inputs, branch, form=form, drop=drop, draws=draws.numpy() if training else None
    )
    actual = case.call(module, **given_draws)
    if form == "code":  # a residual: items without keys are not zeros
        for item in range(len(actual)):
            if not case.keys(item):
                actual[item], expected[item] = 0, 0
    case.compare(actual, expected)


@thorough
@given(cases(geometry=("boxes", "grid"), lengths=SMALL, sides=st.integers(1, 4)), HEADS, KINDS, st.booleans(), SEEDS)
def test_normalised_and_geometry_aware(case, heads, kinds, swapped, seed):
    listed = [{"name": "nsa"}, {"name": "gsa", "kinds": kinds}]
    module = attention("sa", seed, heads=heads, terms=listed[::-1] if swapped else listed)
    terms = [
        slow.Normalised(t, "instance", "query") if t.name == "nsa" else of_boxes.GeometricBias(t, kinds)
        for t in module.terms
    ]
    case.compare(case.call(module), slow.attend(module, case.inputs, terms))
    if not swapped:
        whole = attention("ngsa", heads=heads, kinds=kinds)
        whole.load_state_dict(module.state_dict())
        case.compare(case.call(whole), slow.attend(module, case.inputs, terms))


@thorough
@given(
    cases(causal=True, others=False, geometry=("boxes", "grid"), sides=st.integers(1, 5)),
    HEADS,
    st.sampled_from([1, 3, 5, 31]),
    PADDINGS,
    SMOOTHINGS,
    st.booleans(),
    SEEDS,
)
def test_distance_and_position(case, heads, window, padding, smoothing, swapped, seed):
    """ReLU(qk) R + δ in either order of the list: what is added comes after what multiplies."""
    listed = ["dsa", {"name": "bilateral_sa", "window": window, "padding": padding, "smoothing": smoothing}]
    module = attention("sa", seed, heads=heads, terms=listed[::-1] if swapped else listed)
    bilateral = of_places.Bilateral(module.terms[0 if swapped else 1], window, padding, smoothing, case.inputs.causal)
    terms = [of_boxes.Distance(module.terms[1 if swapped else 0], "manhattan", "dynamic_sigmoid"), bilateral]
    case.compare(case.call(module), slow.attend(module, case.inputs, terms[::-1] if swapped else terms))


def test_a_small_room_makes_several_blocks(monkeypatch):
    """The comparisons above go through more than one block of queries."""
    module = attention("dsa", heads=2)
    whole, seen = type(module)._block, []
    monkeypatch.setattr(type(module), "_block", lambda *given, **more: seen.append(given[2]) or whole(*given, **more))
    case = Case(slow.Inputs(np.random.default_rng(0).normal(size=(2, 6, 8)), grid=(2, 3)), 100, "auto")
    case.call(module)
    assert len(seen) > 4
    assert len(set(seen)) > 2


def test_the_references_disagree_with_another_window():
    """The comparison can fail: a window two wider is seen."""
    case = Case(slow.Inputs(np.random.default_rng(0).normal(size=(2, 6, 8))), None, "auto")
    module = attention("bilateral_sa", heads=2, window=5, padding="zero", smoothing="sqrt")
    with pytest.raises(AssertionError):
        case.compare(
            case.call(module),
            of_places.bilateral_sa(module, case.inputs, window=3, padding="zero", smoothing="sqrt"),
        )
