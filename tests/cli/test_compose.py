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


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("steps=5", "write trainer.steps=5."),
        ("backbone=resnet18", "write model.backbone=resnet18."),
        ("crop=[32,48]", "data.augment.crop=[32,48]"),
        ("heads=4", "write attn.heads=4."),
        ("pretrained=false", "write model.pretrained=false."),
        ("cache=null", "write data.cache=null."),
    ],
)
def test_a_setting_without_its_group_is_found(override, meant):
    with pytest.raises(UserError) as caught:
        compose.run_settings(compose.compose([override]))
    assert f"{override.partition('=')[0]} is not a setting" in str(caught.value)
    assert meant in str(caught.value)


def test_a_smoke_run_on_own_pictures_is_small():
    own = compose.compose(["data=folder", "trainer=smoke"])
    assert own["model"]["backbone"] == "resnet18"
    assert own["data"]["augment"]["crop"] == [96, 96]
    assert (own["trainer"]["steps"], own["trainer"]["batch_size"]) == (8, 2)
    told = ["model.backbone=resnet50", "data.augment.crop=[32,48]", "trainer.batch_size=3"]
    chosen = compose.compose(["data=folder", "trainer=smoke", *told])
    assert chosen["model"]["backbone"] == "resnet50"
    assert chosen["data"]["augment"]["crop"] == [32, 48]
    assert chosen["trainer"]["batch_size"] == 3


def test_only_a_smoke_run_on_own_pictures_is_changed():
    assert compose.compose(["data=folder"])["data"]["augment"] == {"crop": [512, 512]}
    assert compose.compose(["data=folder"])["model"] == {"name": "auto"}
    for data in ("scenes", "camvid", "celebamask"):
        plain, smoke = compose.compose([f"data={data}"]), compose.compose([f"data={data}", "trainer=smoke"])
        assert (plain["model"], plain["data"]) == (smoke["model"], smoke["data"])
        assert smoke["trainer"]["batch_size"] == 4


def test_what_files_set_and_nobody_typed():
    found = compose.origins(["task=translation", "trainer.steps=40", "++trainer.keep=5"])
    recipe, base = "configs/recipe/translation_scenes.yaml", "configs/base/translation.yaml"
    assert (found["warmup"], found["warmup_start"]) == (recipe, base)
    assert not {"steps", "keep", "workers"} & set(found)
    own = compose.origins(["data=folder", "trainer=smoke"])
    assert own["steps"] == "configs/trainer/smoke.yaml"
    assert own["batch_size"] == "configs/adjust/smoke_segmentation_folder.yaml"


@pytest.mark.parametrize("override", ["seed=-1", "name=a/b", "name=.."])
def test_run_settings_are_checked(override):
    with pytest.raises(UserError):
        compose.run_settings(compose.compose([override]))
