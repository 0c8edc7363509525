"""The context operators against pixel loops written from the equations, over random sizes and settings."""

from __future__ import annotations

import pytest
import torch
from context_cases import feature_map, operator
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import context_attention as slow

sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
seeds = st.integers(0, 2**16)
heads = st.sampled_from([1, 2])
positions = st.builds(
    slow.Position,
    window=st.sampled_from([1, 3, 5, 7, 13, 31]),
    padding=st.sampled_from(["inf", "zero", "min", "learned"]),
    smoothing=st.sampled_from(["sqrt", "zscore"]),
)
thorough = settings(max_examples=100, deadline=None, derandomize=True)


def compare(name, size, seed, reference, options, own=None, **reference_options):
    module = operator(name, dim=8, seed=seed, reduction=2, **options, **(own or {}))
    x = feature_map(2, 8, *size, seed=seed)
    weights = {key: value.numpy() for key, value in module.state_dict().items()}
    expected = torch.from_numpy(reference(x.numpy(), weights, **options, **reference_options))
    with torch.no_grad():
        torch.testing.assert_close(module(x), expected, rtol=1e-10, atol=1e-10)


@thorough
@given(sizes, heads, st.integers(1, 3), st.booleans(), seeds)
def test_criss_cross(size, heads, recurrence, scale, seed):
    compare("crisscross", size, seed, slow.criss_cross, {"heads": heads, "recurrence": recurrence, "scale": scale})


@thorough
@given(sizes, heads, st.integers(1, 2), positions, seeds)
def test_bilateral_criss_cross(size, heads, recurrence, position, seed):
    options = {"heads": heads, "recurrence": recurrence}
    compare("bilateral_cc", size, seed, slow.criss_cross, options, vars(position), position=position)


@thorough
@given(sizes, heads, st.booleans(), st.integers(1, 10), seeds)
def test_criss_cross_with_relative_positions(size, heads, scale, max_offset, seed):
    options = {"heads": heads, "recurrence": 2, "scale": scale}
    compare("crisscross_rpe", size, seed, slow.criss_cross, options, {"max_offset": max_offset})


@thorough
@given(sizes, heads, st.booleans(), seeds)
def test_non_local(size, heads, scale, seed):
    compare("nonlocal", size, seed, slow.non_local, {"heads": heads, "scale": scale})


@thorough
@given(sizes, heads, positions, seeds)
def test_bilateral_non_local(size, heads, position, seed):
    compare("bilateral_nl", size, seed, slow.non_local, {"heads": heads}, vars(position), position=position)


@thorough
@given(sizes, heads, st.booleans(), st.integers(1, 10), seeds)
def test_non_local_with_relative_positions(size, heads, scale, max_offset, seed):
    options = {"heads": heads, "scale": scale}
    compare("nonlocal_rpe", size, seed, slow.non_local, options, {"max_offset": max_offset})


def test_the_references_disagree_with_another_window():
    """The comparison can fail: a window one wider is seen."""
    with pytest.raises(AssertionError):
        compare(
            "bilateral_cc",
            (5, 6),
            0,
            slow.criss_cross,
            {"heads": 1, "recurrence": 1},
            {"window": 5, "padding": "zero", "smoothing": "sqrt"},
            position=slow.Position(3, "zero", "sqrt"),
        )
