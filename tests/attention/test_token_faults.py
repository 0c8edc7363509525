"""What once went wrong over tokens, each found by a reader or a user."""

from __future__ import annotations

import copy

import pytest
import torch

from vlplatform.attention import build
from vlplatform.attention.cache import Cache
from vlplatform.attention.kernels import using
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry
from vlplatform.interpret.capture import capture
from vlplatform.layers import Decoder, Encoder

GRID = Geometry.from_grid(2, 4, dtype=torch.float64)


@pytest.fixture
def _blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlplatform.attention.multi_head._ROOM", 500)
    monkeypatch.setattr("vlplatform.attention.xlinear._ROOM", 500)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("name", ["dsa", "bilateral", "xlinear", "talking_heads"])
def test_parameters_lent_to_a_module_get_their_own_gradients(name: str) -> None:
    torch.manual_seed(0)
    module = build(name, dim=8, heads=2, socket="token").double()
    lent = {key: torch.randn_like(value).requires_grad_() for key, value in module.named_parameters()}
    x, found = torch.randn(2, 8, 8, dtype=torch.float64), []
    for path in ("auto", "plain"):
        with using(path):
            out = torch.func.functional_call(module, lent, (x,), {"geometry": GRID})
        found.append(torch.autograd.grad(out.sin().sum(), list(lent.values()), allow_unused=True))
    for fast, plain in zip(*found):
        if plain is not None:
            torch.testing.assert_close(fast, plain)
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("name", ["dsa", "xlinear"])
def test_the_mode_may_change_before_the_backward_pass(name: str) -> None:
    module = build(name, dim=8, heads=2, socket="token", dropout=0.5).double().train()
    x = torch.randn(2, 8, 8, dtype=torch.float64, requires_grad=True)
    grads = []
    for change in (False, True):
        torch.manual_seed(0)
        out = module.train()(x, geometry=GRID)
        if change:
            module.eval()
        grads.append(torch.autograd.grad(out.sum(), x)[0])
    assert torch.equal(*grads)


@pytest.mark.parametrize("name", ["nsa", "acf1d", "gsa", "acf2d"])
def test_masks_of_keys_in_any_shape_are_padding(name: str) -> None:
    torch.manual_seed(0)
    module = build(name, dim=8, heads=2, socket="token").double()
    x, mask = torch.randn(2, 8, 8, dtype=torch.float64), torch.rand(2, 8) > 0.4
    given = {"geometry": Geometry.from_boxes(torch.rand(2, 8, 4, dtype=torch.float64).cumsum(-1))}
    expected = module(x, mask=mask, **given)
    for same in (mask[:, None], mask[:, None, None]):
        assert torch.equal(module(x, mask=same, **given), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name", ["sa", "dsa", "gsa", "bilateral", "rel_pos", "rel_pe", "acf1d", "acf2d", "abs_pe", "nsa"]
)
def test_modules_of_half_precision(name: str, dtype: torch.dtype) -> None:
    module = build(name, dim=8, heads=2, socket="token").to(dtype)
    out = module(torch.randn(2, 8, 8, dtype=dtype), geometry=Geometry.from_grid(2, 4))
    assert out.dtype == dtype
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("name", ["dsa", "gsa", "rel_pe", "abs_pe", "acf2d"])
def test_geometry_of_another_batch(name: str) -> None:
    module = build(name, dim=8, heads=2, socket="token")
    boxes = torch.rand(3, 6, 4).cumsum(-1)
    with pytest.raises(UserError, match="geometry has a batch of 3; expected 1 or the 2"):
        module(torch.randn(2, 6, 8), geometry=Geometry.from_boxes(boxes, size=(1.0, 1.0)))


@pytest.mark.parametrize("name", ["sa", "xlinear"])
def test_shared_beams_are_reordered(name: str) -> None:
    torch.manual_seed(0)
    module = build(name, dim=8, heads=2, socket="token").double().eval()
    query, memory, cache = torch.randn(4, 1, 8).double(), torch.randn(2, 5, 8).double(), Cache()
    module(query, memory, cache=cache)
    cache.reorder(torch.tensor([3, 2, 0, 1]))  # the images change places
    torch.testing.assert_close(module(query, memory, cache=cache), module(query, memory.flip(0)))


def test_branches_keep_their_clusters_apart() -> None:
    torch.manual_seed(0)
    encoder = Encoder(8, 2, attn={"name": "msa", "of": "acf1d", "form": "paper"}, heads=2).double().eval()
    alone = copy.deepcopy(encoder)
    for layer in alone.layers:
        layer.attention.branches = layer.attention.branches[1:2]
    for layer in encoder.layers:
        layer.attention.branches = torch.nn.ModuleList([layer.attention.branches[1]] * 3)
    x = torch.randn(1, 6, 8).double()
    torch.testing.assert_close(encoder(x)[0], alone(x)[0])


def test_a_causal_decoder_refuses_statistics_over_all_queries() -> None:
    tokens, memory = torch.randn(1, 4, 8), torch.randn(1, 3, 8)
    with pytest.raises(UserError, match="normalises over all queries"):
        Decoder(8, 1, cross="nsa", heads=2)(tokens, memory)
    Decoder(8, 1, cross="nsa", heads=2)(tokens, memory, causal=False)
    Decoder(8, 1, cross={"name": "nsa", "on": "key"}, heads=2)(tokens, memory)


def test_capture_takes_any_call() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(1, 4, 8), torch.randn(1, 3, 8)
    attn = build("sa", dim=8, heads=2, socket="token").eval()
    with capture(attn) as captured:
        attn(x, y, y)
    assert captured.weights("model").shape == (1, 2, 4, 3)
    several, cache = build("msa", dim=8, heads=2, socket="token", branches=2), Cache()
    with capture(several) as captured:
        several(x[:, :2], causal=True, cache=cache)
        several(x[:, 2:], causal=True, cache=cache, draws=torch.tensor([0.0, 0.9]))
    assert captured.weights("model").shape == (1, 4, 2, 4)


def test_clusters_are_softmaxed_over_visible_keys_alone() -> None:
    torch.manual_seed(0)
    terms = ["acf2d", {"name": "halo_window", "block": 1, "halo": 1}]
    attn = build("sa", dim=8, heads=2, socket="token", terms=terms).double().eval()
    weights = attn.attention_weights(torch.randn(1, 8, 8).double(), geometry=GRID)
    assert not weights[0, :, 0, [2, 3, 6, 7]].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 8, dtype=torch.float64))


def test_clusters_that_grow_can_be_computed_again() -> None:
    torch.manual_seed(0)
    from torch.utils.checkpoint import checkpoint

    from vlplatform.attention.score_term import Depth

    encoder = Encoder(8, 3, attn="acf1d", heads=2).double().eval()
    x = torch.randn(1, 6, 8, dtype=torch.float64, requires_grad=True)
    plain = torch.autograd.grad(encoder(x)[0].sum(), x)[0]
    tokens, depth = x, Depth()
    for i, layer in enumerate(encoder.layers):
        tokens = checkpoint(layer, tokens, depth=depth.at(i), use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(tokens.sum(), x)[0], plain)


@pytest.mark.usefixtures("_blocks")
def test_nothing_in_padding_becomes_nothing() -> None:
    x, mask = torch.randn(2, 8, 8), torch.ones(2, 8, dtype=torch.bool)
    mask[1], x[1] = False, float("nan")
    for name in ("sa", "dsa", "xlinear", "dynamic_conv"):
        module = build(name, dim=8, heads=2, socket="token")
        for path in ("auto", "plain"):
            with using(path):
                out = module(x, mask=mask, geometry=Geometry.from_grid(2, 4))
            assert not out[1].any()
            assert torch.isfinite(out).all()


@pytest.mark.parametrize("name", ["sa", "bilateral", "acf1d", "dynamic_conv", "xlinear"])
def test_looking_changes_nothing(name: str) -> None:
    torch.manual_seed(0)
    attn, x, cache = build(name, dim=8, heads=2, socket="token").double().eval(), torch.randn(1, 4, 8).double(), Cache()
    whole = attn(x, causal=True)
    attn(x[:, :2], causal=True, cache=cache)
    with capture(attn) as captured:
        third = attn(x[:, 2:3], causal=True, cache=cache)
    assert torch.equal(captured.weights("model"), captured.weights("model"))
    attn.attention_weights(x[:, 3:], causal=True, cache=cache)
    last = attn(x[:, 3:], causal=True, cache=cache)
    torch.testing.assert_close(torch.cat((third, last), 1), whole[:, 2:], rtol=1e-6, atol=1e-6)


def test_a_mask_of_one_cached_query_is_its_own() -> None:
    torch.manual_seed(0)
    attn, x = build("sa", dim=8, heads=2, socket="token").double().eval(), torch.randn(1, 4, 8).double()
    pairs = torch.rand(1, 4, 4) > 0.5
    pairs[..., 0] = True
    whole, cache = attn(x, causal=True, mask=pairs), Cache()
    steps = [attn(x[:, i : i + 1], causal=True, cache=cache, mask=pairs[:, i : i + 1, : i + 1]) for i in range(4)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_a_causal_call_compiles_for_any_length() -> None:
    torch.compiler.reset()
    attn = build("sa", dim=8, heads=2, socket="token")
    compiled = torch.compile(attn, fullgraph=True, backend="eager")
    for tokens in (5, 6, 9):
        x = torch.randn(1, tokens, 8)
        torch.testing.assert_close(compiled(x, causal=True), attn(x, causal=True))


def test_absolute_geometry_is_cached() -> None:
    attn = build("abs_pe", dim=8, heads=2, socket="token").double().eval()
    x, boxes = torch.randn(1, 4, 8).double(), torch.rand(1, 4, 4).double().cumsum(-1)
    whole = attn(x, causal=True, geometry=Geometry.from_boxes(boxes, size=(1.0, 1.0)))
    steps, cache = [], Cache()
    for i in range(4):
        pair = tuple(Geometry.from_boxes(part, size=(1.0, 1.0)) for part in (boxes[:, i : i + 1], boxes[:, : i + 1]))
        steps.append(attn(x[:, i : i + 1], causal=True, cache=cache, geometry=pair))
    torch.testing.assert_close(torch.cat(steps, 1), whole)


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("sa", {"query": [torch.zeros(1, 2, 8)]}, "query is a list; expected one tensor"),
        ("dsa", {"geometry": (7, 7)}, "geometry is a tuple; expected a Geometry"),
        ("dsa", {"geometry": torch.zeros(2, 4)}, "geometry is a Tensor; expected a Geometry"),
        ("sa", {"mask": [[True, True]]}, "mask is a list"),
        ("swin_window", {"cache": Cache(), "geometry": Geometry.from_grid(1, 2)}, "cannot be cached"),
    ],
)
def test_more_calls_refused(name: str, call: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(name, dim=8, heads=2, socket="token")(**{"query": torch.zeros(1, 2, 8), **call})


def test_more_builds_refused() -> None:
    with pytest.raises(UserError, match="socket=tokens is none: did you mean 'token'"):
        build("sa", dim=8, socket="tokens")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="key was not given"):
        build("sa", dim=8, heads=2, socket="token", memory_dim=4)(torch.zeros(1, 2, 8))
    with pytest.raises(UserError, match="boxes is a list"):
        Geometry.from_boxes([[0.0, 0, 1, 1]])  # pyright: ignore[reportArgumentType]


def test_terms_are_given_as_classes() -> None:
    import functools

    from vlplatform.attention import MultiHeadAttention
    from vlplatform.attention.bilateral_sa import Bilateral
    from vlplatform.attention.dsa import DistanceSensitive

    attn = MultiHeadAttention(8, heads=2, terms=[DistanceSensitive, functools.partial(Bilateral, window=3)])
    assert attn(torch.randn(1, 8, 8), geometry=Geometry.from_grid(2, 4)).shape == (1, 8, 8)


@pytest.mark.usefixtures("_blocks")
def test_a_tied_parameter_gets_its_gradient_once() -> None:
    torch.manual_seed(0)
    attn, x, found = build("talking_heads", dim=8, heads=2, socket="token").double(), torch.randn(2, 8, 8).double(), []
    attn.terms[0].after = attn.terms[0].before
    for path in ("auto", "plain"):
        with using(path):
            found.append(torch.autograd.grad(attn(x).sin().sum(), attn.terms[0].before)[0])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["sa", "dsa", "xlinear"])
@pytest.mark.parametrize("path", ["auto", "plain", "fused"])
def test_nan_in_padding_reaches_no_gradient(name: str, path: str) -> None:
    module, mask = build(name, dim=8, heads=2, socket="token"), torch.tensor([[True] * 5 + [False] * 3])
    x = torch.randn(1, 8, 8).masked_fill(~mask[..., None], float("nan"))
    with using(path):
        module(x, mask=mask, geometry=Geometry.from_grid(2, 4))[mask].sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", ["sa", "xlinear"])
def test_no_keys_at_all(name: str) -> None:
    attn = build(name, dim=8, heads=2, socket="token")
    assert not attn(torch.randn(2, 3, 8), torch.zeros(2, 0, 8)).any()
    assert attn(torch.zeros(2, 0, 8)).shape == (2, 0, 8)


def test_boxes_inside_out_are_refused() -> None:
    boxes = torch.tensor([[0.0, 0, 1, 1], [2, 2, 2, 3], [-5, 4, 9, 4], [0, 0, 0, 0]]).expand(2, -1, -1).clone()
    assert Geometry.from_boxes(boxes).boxes is not None  # without width or height, outside the picture, of zeros
    boxes[1, 2] = torch.tensor([5.0, 0, 4, 1])
    with pytest.raises(UserError, match=r"boxes\[1, 2\] = \[5.0, 0.0, 4.0, 1.0\] is inside out") as caught:
        Geometry.from_boxes(boxes)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"boxes\[0, 0\] = .* is inside out"):
        Geometry.from_boxes(torch.tensor([[0.0, 2, 1, 1]]))
    boxes[0, 3, 0] = float("nan")
    with pytest.raises(UserError, match=r"boxes\[0, 3\] = .* is not finite"):
        Geometry.from_boxes(boxes)
    assert len(Geometry.from_points(torch.tensor([[1.0, -1.0]]))) == 1


def test_padded_boxes_may_hold_anything() -> None:
    boxes, mask = torch.rand(2, 4, 4).cumsum(-1), torch.tensor([[True, True, False, False], [True] * 3 + [False]])
    boxes[~mask] = torch.tensor([float("nan"), 0.0, -1.0, 0.0])
    geometry = Geometry.from_boxes(boxes, mask=mask)
    assert geometry.boxes is not None
    assert torch.equal(geometry.boxes[mask], boxes[mask])
    assert not geometry.boxes[~mask].any()
    single = Geometry.from_boxes(boxes[0], mask=mask[0]).boxes
    assert single is not None
    assert torch.equal(single[0], geometry.boxes[0])
    with pytest.raises(UserError, match=r"boxes\[1, 3\]"):
        Geometry.from_boxes(
            boxes, mask=torch.ones_like(mask).masked_fill(~mask & (torch.arange(2)[:, None] == 0), False)
        )
    with pytest.raises(UserError, match=r"mask of boxes must be booleans of shape \(2, 4\)"):
        Geometry.from_boxes(boxes, mask=mask[0])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("rel_pos", {"clip": 2}),
        ("bilateral", {"window": 5}),
        ("bilateral", {"window": 3, "padding": "inf", "smoothing": "zscore"}),
    ],
)
def test_exports_for_any_number_of_tokens(name: str, settings: dict[str, object], causal: bool, masked: bool) -> None:
    torch.manual_seed(0)
    module = build(name, dim=8, heads=2, socket="token", **settings).eval()
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    given, shapes = {"causal": causal}, {"query": sizes, "causal": None}
    if masked:
        given, shapes = {**given, "mask": torch.rand(2, 8) > 0.3}, {**shapes, "mask": sizes}
    program = torch.export.export(module, (torch.randn(2, 8, 8),), given, dynamic_shapes=shapes).module()
    for tokens in (2, 7, 70):
        x = torch.randn(3, tokens, 8)
        if masked:
            given["mask"] = torch.rand(3, tokens) > 0.3
        torch.testing.assert_close(program(x, **given), module(x, **given), rtol=1e-4, atol=1e-5)
