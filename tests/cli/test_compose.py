"""Composition of settings from the command line."""

from __future__ import annotations

import pytest

from vlplatform.cli import compose
from vlplatform.errors import UserError


def test_defaults_and_overrides():
    got = compose.compose(["attn=crisscross", "attn.recurrence=1", "trainer.steps=7", "seed=3"])
    assert got["attn"] == {"name": "crisscross", "recurrence": 1}
    assert got["trainer"]["steps"] == 7
    assert compose.run_settings(got) == compose.RunSettings(seed=3)
    assert got["data"]["name"] == "scenes"


def test_every_registered_mechanism_can_be_chosen():
    for name in compose.options("attn"):
        assert compose.compose([f"attn={name}"])["attn"]["name"] == name


@pytest.mark.parametrize("value", ["/a b/c=d", "(x)", "a,b", "x:y", "it's", "ünï"])
def test_paths_with_odd_characters_arrive_as_written(value):
    assert compose.compose([f"data.root={value}"])["data"]["root"] == value


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("attn=bilatral", "attn=bilatral is unknown: did you mean 'bilateral'?"),
        ("task=segmentatoin", "task=segmentatoin is unknown: did you mean 'segmentation'?"),
        ("data=cityscape", "did you mean 'cityscapes'?"),
        ("+recipe=nothing", "recipe=nothing is unknown"),
        ("steps", "'steps' is not a setting: write key=value"),
        ("trainer.steps=[1", "cannot be composed"),
    ],
)
def test_unknown_choices_name_the_nearest(override, sentence):
    with pytest.raises(UserError) as caught:
        compose.compose([override])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_top_level_keys_are_refused():
    with pytest.raises(UserError, match="sead is not a setting: did you mean 'seed'"):
        compose.run_settings(compose.compose(["sead=3"]))


@pytest.mark.parametrize("override", ["seed=-1", "name=a/b", "name=.."])
def test_run_settings_are_checked(override):
    with pytest.raises(UserError):
        compose.run_settings(compose.compose([override]))
