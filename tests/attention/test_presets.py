"""Presets: attention with settings chosen in a paper, which takes the settings of plain attention besides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vlplatform.attention import build, catalogue
from vlplatform.attention.multi_head import MultiHeadAttention
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry

PRESETS = ("ngsa", "mdsa", "mh_heads", "large", "extend_qk")


def attentions(module: torch.nn.Module) -> list[MultiHeadAttention]:
    return [part for part in module.modules() if isinstance(part, MultiHeadAttention)]


def boxes(tokens: int) -> Geometry:
    return Geometry.from_boxes(torch.rand(tokens, 4).cumsum(-1))


@pytest.mark.parametrize("name", PRESETS)
def test_settings_of_plain_attention(name: str) -> None:
    settings: dict[str, Any] = {"scale": "model", "head_dim": 6, "bias": False, "dropout": 0.1}
    module = build(name, dim=16, heads=2, socket="token", memory_dim=12, **settings)
    for attn in attentions(module):
        assert attn.scale == 16**-0.5
        assert attn.sizes.value_dim == (18 if name == "large" else 6)
        assert attn.sizes.heads == (6 if name == "mh_heads" else 2)
        assert attn.key.in_features == attn.value.in_features == 12
        assert attn.query.bias is None
        assert attn.dropout == 0.1
    out = module(torch.randn(2, 5, 16), torch.randn(2, 7, 12), geometry=(boxes(5), boxes(7)))
    assert out.shape == (2, 5, 16)


@pytest.mark.parametrize("name", PRESETS)
def test_they_have_all_of_them_that_they_do_not_choose(name: str) -> None:
    missing = {*catalogue()["sa"].settings()} - {*catalogue()[name].settings()}
    assert missing == {"terms"} | ({"key_dim"} if name == "extend_qk" else set())


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "extend_qk"])
def test_a_width_of_queries_and_keys(name: str) -> None:
    assert all(attn.sizes.key_dim == 5 for attn in attentions(build(name, dim=16, socket="token", heads=2, key_dim=5)))


def test_nothing_changed_where_nothing_is_given() -> None:
    widths = {"ngsa": (8, 8), "mdsa": (8, 8), "mh_heads": (8, 8), "large": (24, 24), "extend_qk": (16, 8)}
    for name, expected in widths.items():
        for attn in attentions(build(name, dim=16, heads=2, socket="token")):
            assert (attn.sizes.key_dim, attn.sizes.value_dim) == expected
            assert attn.scale == expected[0] ** -0.5


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mdsa", {"heads": 3}, r"^attn=mdsa: attn=dsa: dim=16 is not divisible by heads=3"),
        ("mdsa", {"key_dim": 0}, r"^attn=mdsa: attn=dsa: head_dim=8 and key_dim=0"),
        ("mdsa", {"drop": 1.0}, r"^attn=mdsa: drop=1.0"),
        ("ngsa", {"kinds": ["absolute"]}, r"^attn=ngsa: gsa: kinds=\['absolute'\] must be"),
        ("ngsa", {"geometry_dim": 0}, r"^attn=ngsa: gsa: geometry_dim=0"),
        ("msa", {"of": "nsa+gsa", "inner": {"kinds": []}}, r"^attn=msa: attn=nsa\+gsa: gsa: kinds=\[\]"),
        ("msa", {"of": "eta"}, r"^attn=msa: attn=eta does not fit"),
        ("nsa+gsa", {"kinds": []}, r"^attn=nsa\+gsa: gsa: kinds=\[\]"),
        ("sa", {"terms": ["nsa", {"name": "gsa", "kinds": []}]}, r"^attn=sa: gsa: kinds=\[\]"),
        ("gsa", {"kinds": []}, r"^attn=gsa: kinds=\[\]"),
        ("mh_heads", {"times": 0}, r"^attn=mh_heads: times=0 must be at least 1"),
        ("large", {"times": 0}, r"^attn=large: times=0 must be at least 1"),
    ],
)
def test_refusals_name_preset_and_term(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        build(name, dim=16, socket="token", **{"heads": 2, **settings})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings", "given", "message"),
    [
        ("mdsa", {}, {}, r"^attn=mdsa \(dsa\) needs geometry"),
        ("ngsa", {}, {}, r"^attn=ngsa \(gsa\) needs geometry"),
        ("ngsa", {}, {"causal": True}, r"^attn=ngsa \(nsa\) with norm=instance"),
        ("ngsa", {}, {"geometry": Geometry.from_points(torch.zeros(6, 2))}, r"^attn=ngsa \(gsa\) needs boxes"),
        ("msa", {"of": "swin_window"}, {}, r"^attn=msa \(swin_window\) needs geometry"),
        ("msa", {"of": "mdsa"}, {}, r"^attn=msa \(mdsa \(dsa\)\) needs geometry"),
        ("sa", {"terms": ["dsa"]}, {}, r"^attn=sa \(dsa\) needs geometry"),
        ("dsa", {}, {}, r"^attn=dsa needs geometry"),
        ("nsa+dsa", {}, {}, r"^attn=dsa needs geometry"),
    ],
)
def test_calls_refused_name_preset_and_term(
    name: str, settings: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    module, x = build(name, dim=16, heads=2, socket="token", **settings), torch.randn(1, 6, 16)
    with pytest.raises(UserError, match=message):
        module(x, **given)


def test_a_list_in_a_preset_is_the_list() -> None:
    """The normalised, geometry-aware attention is the sum of its terms."""
    outs: list[Tensor] = []
    for name, settings in (("ngsa", {}), ("nsa+gsa", {})):
        torch.manual_seed(0)
        module = build(name, dim=16, heads=2, socket="token", scale="model", head_dim=4, **settings)
        torch.manual_seed(1)
        outs.append(module(torch.randn(1, 6, 16), geometry=boxes(6)))
    assert torch.equal(*outs)
