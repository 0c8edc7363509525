"""Limiting cases of the token mechanisms that hold whatever the weights are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from random_calls import attention, boxes
from torch import Tensor, nn

from vlplatform.attention.kernels import using
from vlplatform.attention.score_term import Depth
from vlplatform.geometry import Geometry

both_paths = pytest.mark.parametrize("path", ["auto", "plain"])
SCORES = pytest.mark.parametrize("scores", ["weights", "logits"])


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regions(batch: int, count: int) -> Geometry:
    return Geometry.from_boxes(torch.from_numpy(boxes(np.random.default_rng(0), batch, count)), (100, 100))


def same(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def plain(module: nn.Module, **settings) -> nn.Module:
    """Attention without terms that has the module's other weights."""
    base = attention("sa", heads=module.sizes.heads, **settings)
    base.load_state_dict({k: v for k, v in module.state_dict().items() if not k.startswith("terms.")})
    return base


def zero(*layers: nn.Module | nn.Parameter | None) -> None:
    for layer in layers:
        for parameter in [layer] if isinstance(layer, nn.Parameter) else [] if layer is None else layer.parameters():
            parameter.zero_()


@both_paths
@pytest.mark.parametrize("on", ["query", "both"])
def test_a_single_query_takes_the_mean_of_the_values(path, on):
    module, query, key = attention("nsa", heads=2, on=on), tokens(3, 4, 8), tokens(3, 5, 8, seed=1)
    real = torch.tensor([[False, True, False, False]]).expand(3, -1)
    mask = torch.tensor([[True, True, False, True, True]]).expand(3, -1)
    mean = module.output(module.value(key)[:, [0, 1, 3, 4]].mean(1))
    with using(path):
        same(module(query, key, mask=mask, query_mask=real)[:, 1], mean)
        alone = module(query, mask=real)[:, 1]
    same(alone, module.output(module.value(query))[:, 1])


@both_paths
def test_normalised_queries_know_neither_offset_nor_scale(path):
    module, x = attention("nsa", heads=2), tokens(3, 6, 8)
    with using(path):
        before = module(x)
        module.query.bias.add_(tokens(8))
        same(module(x), before)
        module.query.weight.mul_(tokens(8).abs()[:, None] + 0.5)
        same(module(x), before, 1e-3)  # up to ε


def test_the_variance_of_queries_is_biased():
    module, x = attention("nsa", heads=2), tokens(3, 6, 8)
    base = plain(module)
    q = F.instance_norm(base.query(x).transpose(1, 2), eps=1e-5).transpose(1, 2)
    weights = (
        torch.einsum("bihd,bjhd->bhij", q.unflatten(2, (2, 4)), base.key(x).unflatten(2, (2, 4))).div(2).softmax(-1)
    )
    same(module.attention_weights(x), weights)


@both_paths
@pytest.mark.parametrize("zeros", ["relation", "maps"])
def test_geometry_without_weights_leaves_plain_attention(path, zeros):
    module, x = attention("gsa", heads=2, kinds=["content_independent", "query", "key"]), tokens(3, 6, 8)
    term = module.terms[0]
    zero(*([term.geometry] if zeros == "relation" else [term.weight, term.query, term.key]))
    with using(path):
        same(module(x, geometry=regions(3, 6)), plain(module)(x))


@both_paths
def test_equal_boxes_add_a_constant_per_key(path):
    module, x = attention("gsa", heads=2, kinds=["key"]), tokens(3, 6, 8)
    term, base = module.terms[0], plain(module)
    f = torch.tensor([np.log(1e-3), np.log(1e-3), 0, 0], dtype=torch.float64)
    constant = term.key(x).unflatten(2, (2, -1)) @ term.geometry(f).relu()  # (B, M, h)
    q, k = (layer(x).unflatten(2, (2, 4)) for layer in (base.query, base.key))
    weights = (torch.einsum("bihd,bjhd->bhij", q, k) / 2 + constant.transpose(1, 2)[:, :, None]).softmax(-1)
    equal = Geometry.from_boxes(torch.tensor([[3.0, 5.0, 17.0, 9.0]], dtype=torch.float64).expand(6, -1))
    with using(path):
        same(module.attention_weights(x, geometry=equal), weights)
        same(
            module(x, geometry=equal),
            base.output((weights @ base.value(x).unflatten(2, (2, 4)).transpose(1, 2)).transpose(1, 2).flatten(2)),
        )


@both_paths
@pytest.mark.parametrize("still", ["w", "place"])
def test_distance_that_says_nothing_leaves_the_rectified_logits(path, still):
    module, x = attention("dsa", heads=2), tokens(3, 6, 8)
    places = tokens(1, 6, 2)
    if still == "w":
        module.terms[0].w.zero_()
    else:
        places = places[:, :1].expand(-1, 6, -1)
    q, k, v = (layer(x).unflatten(2, (2, 4)).transpose(1, 2) for layer in (module.query, module.key, module.value))
    weights = (q @ k.transpose(2, 3) / 2).relu().softmax(-1)
    with using(path):
        same(module(x, geometry=Geometry.from_points(places)), module.output((weights @ v).transpose(1, 2).flatten(2)))


smoothed = pytest.mark.parametrize("smoothing", ["sqrt", "zscore"])


@both_paths
@smoothed
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("padding", "window", "value"),
    [
        ("zero", 3, 0.0),
        ("zero", 13, 3.0),
        ("min", 3, -2.0),
        ("learned", 3, 3.0),
        ("learned", 13, 0.0),
        ("inf", 13, 3.0),
    ],
)
def test_constant_position_logits_leave_plain_attention(path, smoothing, causal, padding, window, value):
    """Constant over all keys: with padding 0 or −∞ where the window holds the whole sequence."""
    module = attention("bilateral_sa", heads=2, padding=padding, smoothing=smoothing, window=window)
    zero(module.terms[0].logits)
    module.terms[0].logits.bias.fill_(value)
    x = tokens(3, 6, 8)
    with using(path):
        same(module(x, causal=causal), plain(module)(x, causal=causal))


@both_paths
@pytest.mark.parametrize("causal", [False, True])
def test_position_logits_alone_are_a_renormalised_dynamic_convolution(path, causal):
    """Content 0 and padding −∞: the softmax of those of the window's logits that lie in the sequence."""
    window, x = 3, tokens(3, 6, 8)
    module = attention("bilateral_sa", heads=2, padding="inf", window=window)
    zero(module.query)
    term, v = module.terms[0], module.value(x).unflatten(2, (2, 4))
    f = term.logits(term.embedding(x)).unflatten(2, (2, window)) / 2  # √d
    left = 2 if causal else 1
    expected = torch.zeros_like(v)
    for i in range(6):
        taps = [t for t in range(window) if 0 <= i + t - left < 6]
        weights = f[:, i, :, taps].softmax(-1)
        expected[:, i] = sum(weights[:, :, n, None] * v[:, i + t - left] for n, t in enumerate(taps))
    with using(path):
        same(module(x, causal=causal), module.output(expected.flatten(2)))


@smoothed
def test_padding_is_seen_outside_the_window_alone(smoothing):
    """A learnt value differs from 0 only where there are keys outside the window."""
    learned = attention("bilateral_sa", heads=2, padding="learned", smoothing=smoothing, window=5)
    at_zero = attention("bilateral_sa", heads=2, padding="zero", smoothing=smoothing, window=5)
    own = learned.state_dict()
    for name in ("weight", "bias"):
        own[f"terms.0.logits.{name}"] = own[f"terms.0.logits.{name}"].unflatten(0, (2, 6))[:, :5].flatten(0, 1)
    at_zero.load_state_dict(own)
    short, long = tokens(2, 3, 8), tokens(2, 9, 8)
    same(learned(short), at_zero(short))
    assert not torch.allclose(learned(long), at_zero(long))


def clusters(module: nn.Module, x: Tensor, depth: Depth | None = None, **arguments) -> Tensor:
    """C, or C̃ above the lowest layer, of an attention whose clusters grow."""
    depth = Depth() if depth is None else depth
    module(x, depth=depth, **arguments)
    return depth.shared[module.terms[0].name, depth.layer]


def binding(module: nn.Module) -> None:
    """All probabilities of eq. 4 become 1."""
    for layer in module.terms[0].modules():
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, 1e3)


@both_paths
@SCORES
@pytest.mark.parametrize("name", ["acf1d", "acf2d"])
@pytest.mark.parametrize("ones", ["bound", "window"])
def test_clusters_of_all_tokens_leave_plain_attention(path, scores, name, ones):
    module = attention(name, heads=2, scores=scores, **({"window": 9} if ones == "window" else {}))
    if ones == "bound":
        binding(module)
    x, base = tokens(3, 6, 8), plain(module)
    weights = base.attention_weights(x)
    if scores == "weights":
        weights = weights.softmax(-1)  # eq. 2 to the letter
    v = base.value(x).unflatten(2, (2, 4)).transpose(1, 2)
    with using(path):
        same(
            module(x, geometry=Geometry.from_grid(2, 3, dtype=torch.float64)),
            base.output((weights @ v).transpose(1, 2).flatten(2)),
        )


def test_fixed_windows_are_binary():
    x, place = tokens(1, 7, 8), torch.arange(7)
    c = clusters(attention("acf1d", heads=2, window=2), x)
    same(c[0], ((place[:, None] - place).abs() <= 2).double())


def test_clusters_obey_the_equations():
    """C_ii = 1, C_ij = C_ji, and eq. 5, C_ij = P(s_j | s_i … s_{j−1}) C_i,j−1, gives the product of eq. 3."""
    module, x = attention("acf1d", heads=2), tokens(2, 9, 8)
    c, merge = clusters(module, x), module.terms[0].merge.map
    same(c.diagonal(dim1=1, dim2=2), torch.ones(2, 9, dtype=torch.float64))
    same(c, c.transpose(1, 2))
    for i in range(9):
        product = torch.ones(2, dtype=torch.float64)
        for j in range(i + 1, 9):
            step = merge(torch.cat((x[:, j], x[:, i:j].mean(1)), -1))[:, 0].sigmoid()
            product = product * step
            same(c[:, i, j], step * c[:, i, j - 1])
            same(c[:, i, j], product)
            assert (c[:, i, j] <= c[:, i, j - 1]).all()


def test_clusters_never_shrink_with_depth():
    """Eq. 6: C̃ of a layer lies between that of the layer below and 1."""
    depth, below = Depth(), torch.zeros(())
    for layer in range(4):
        module = attention("acf1d", seed=layer, heads=2)
        grown = clusters(module, tokens(2, 9, 8, seed=layer), depth.at(layer))
        assert (grown >= below - 1e-12).all()
        assert (grown <= 1 + 1e-12).all()
        below = grown


@SCORES
def test_clusters_of_a_prefix_do_not_know_what_follows(scores):
    module, x = attention("acf1d", heads=2, scores=scores), tokens(2, 9, 8)
    changed = torch.cat((x[:, :5], tokens(2, 4, 8, seed=1)), 1)
    same(module(x, causal=True)[:, :5], module(changed, causal=True)[:, :5])
    same(clusters(module, x)[:, :5, :5], clusters(module, x[:, :5]))


@SCORES
@pytest.mark.parametrize("rate", [1, 2])
@pytest.mark.parametrize(("grid", "name"), [((1, 7), "across"), ((7, 1), "down")])
def test_a_grid_of_one_row_or_column_is_a_sequence(scores, rate, grid, name):
    plane, line = (attention(n, heads=2, scores=scores, rate=rate) for n in ("acf2d", "acf1d"))
    shared = {k: v for k, v in plane.state_dict().items() if not k.startswith("terms.")}
    merge = {k.replace(name, "merge"): v for k, v in plane.state_dict().items() if f".{name}." in k}
    line.load_state_dict(shared | merge)
    x = tokens(2, 7, 8)
    same(plane(x, geometry=Geometry.from_grid(*grid, dtype=torch.float64)), line(x))


def test_clusters_of_a_grid_are_products_of_two_sequences():
    """Along the top row and along the left column of the rectangle of two cells."""
    module, height, width = attention("acf2d", heads=2), 3, 4
    x = tokens(1, height * width, 8)
    c = clusters(module, x, geometry=Geometry.from_grid(height, width, dtype=torch.float64))[0]
    line, grid = attention("acf1d", heads=2), x.unflatten(1, (height, width))
    line.terms[0].merge.load_state_dict(module.terms[0].across.state_dict())
    rows = clusters(line, grid[0])  # (H, W, W)
    line.terms[0].merge.load_state_dict(module.terms[0].down.state_dict())
    columns = clusters(line, grid[0].transpose(0, 1))  # (W, H, H)
    for a in range(height * width):
        for b in range(height * width):
            (y, u), (v, z) = divmod(a, width), divmod(b, width)
            same(c[a, b], rows[min(y, v), u, z] * columns[min(u, z), y, v])


@both_paths
def test_mixtures_that_mix_nothing_leave_plain_attention(path):
    module, x = attention("talking_heads", heads=2), tokens(3, 6, 8)
    for matrix in module.terms[0].parameters():
        matrix.copy_(torch.eye(2))
    with using(path):
        same(module(x), plain(module)(x))


@both_paths
@pytest.mark.parametrize(
    ("name", "settings", "tables"),
    [
        ("rel_pos", {"clip": 2}, ["key", "value"]),
        ("swin_window", {"window": 9}, ["table"]),
        ("halo_window", {"block": 2, "halo": 3}, ["table"]),
    ],
)
def test_positions_without_vectors_leave_plain_attention(path, name, settings, tables):
    module, x = attention(name, heads=2, **settings), tokens(3, 6, 8)
    zero(*(getattr(module.terms[0], table) for table in tables))
    with using(path):
        same(module(x, geometry=Geometry.from_grid(2, 3, dtype=torch.float64)), plain(module)(x))
