"""The settings ``task.decode``: each reaches its search, and those that do not go together are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import images, make

from vlp_captioning.decoding import DecodeSettings
from vlp_captioning.models import Caption, Images
from vlplatform.errors import UserError
from vlplatform.settings import parse

IDS = ["a", "b", "c"]


def decoded(values: dict[str, Any], returned: int = 1) -> list[list[Caption]]:
    return parse(DecodeSettings, values, "task.decode").captions(
        make("transformer"), Images.of(images()), IDS, returned=returned
    )


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"beam": 4, "length_penalty": 1.0, "min_length": 3},
        {"beam": 4, "no_repeat": 1},
        {"beam": 4, "groups": 2, "diversity": 2.0},
        {"finish": "aside"},
        {"required": ["red", "above"], "beam": 5},
    ],
)
def test_beam_searches(values: dict[str, Any]) -> None:
    given = {**values, "max_length": 8}
    required = {"required": [values["required"]] * 3} if "required" in values else {}
    want = make("transformer").generate(images(), **{"beam": 3, **given, **required, "returned": 2})
    assert decoded(given, returned=2) == want


def test_sampling_depends_on_the_image_alone() -> None:
    values = {"samples": 4, "top_p": 0.9, "temperature": 1.5, "max_length": 6, "seed": 3}
    found = decoded(values, returned=2)
    assert all(len(each) == 2 and each[0].score >= each[1].score for each in found)
    torch.manual_seed(99)
    assert decoded(values, returned=2) == found
    settings, seen = parse(DecodeSettings, values, "task.decode"), images()
    alone = {name: value[1:2] for name, value in seen.items()}
    (again,) = settings.captions(make("transformer"), Images.of(alone), ["b"], returned=2)
    assert [caption.tokens for caption in again] == [caption.tokens for caption in found[1]]
    assert decoded({**values, "seed": 4}, returned=2) != found
    greedy = decoded({"beam": 1, "max_length": 6})
    assert [c[0].tokens for c in decoded({"samples": 1, "top_k": 1, "max_length": 6})] == [c[0].tokens for c in greedy]


def test_a_sample_repeats_nothing() -> None:
    for (caption,) in decoded({"samples": 1, "no_repeat": 1, "temperature": 3.0, "max_length": 9}):
        assert len(set(caption.tokens)) == len(caption.tokens)


def test_repeats_are_merged() -> None:
    model = make("transformer")
    model.caption = lambda hypothesis: Caption("a a red red a", 0.0, hypothesis.tokens, hypothesis.log_probs)  # pyright: ignore
    settings = DecodeSettings(merge_repeats=True)
    assert [c[0].text for c in settings.captions(model, Images.of(images()), IDS)] == ["a red a"] * 3
    assert DecodeSettings().captions(model, Images.of(images()), IDS)[0][0].text == "a a red red a"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"top_p": 0.9}, "top_k and top_p are about drawing words: say how often with samples=N"),
        ({"samples": 2, "required": ["a"]}, "leave out samples=2"),
        ({"beam": 4, "groups": 3}, "groups=3 must divide beam=4"),
        ({"beam": 4, "groups": 2, "required": ["a"]}, "do not go together: use one group"),
        ({"samples": -1}, "samples=-1 must not be negative"),
        ({"samples": 1, "top_p": 0}, "top_p=0.0 must be above 0"),
        ({"required": ["zebra"]}, "the word 'zebra' is required, and this model does not know it"),
        ({"no_repeat": -1}, "no_repeat=-1 must not be negative"),
    ],
)
def test_what_does_not_go_together(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        decoded(values)
