"""Typed settings: what is accepted, and the sentence that refuses the rest."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

import pytest

from vlplatform import settings
from vlplatform.errors import UserError, nearest


@dataclass
class Inner:
    rate: float = 0.5
    sizes: tuple[int, int] = (1, 2)

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError(f"rate={self.rate} must not be negative")


@dataclass
class Outer:
    steps: int
    name: str | None = None
    mode: Literal["fast", "exact"] = "fast"
    flags: list[bool] = field(default_factory=list)
    table: dict[str, float] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)


def test_values_are_converted_to_their_types():
    got = settings.parse(
        Outer, {"steps": 3, "table": {"a": 1}, "flags": [True], "inner": {"rate": 2, "sizes": [3, 4]}}, "trainer"
    )
    assert got == Outer(steps=3, flags=[True], table={"a": 1.0}, inner=Inner(2.0, (3, 4)))
    assert isinstance(got.inner.rate, float)
    assert settings.parse(Outer, settings.as_dict(got), "trainer") == got


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"step": 3}, "trainer.step is not a setting of trainer: did you mean 'steps'?"),
        ({}, "trainer.steps must be given (whole number)"),
        ({"steps": "many"}, "trainer.steps='many' has the wrong type: expected whole number"),
        ({"steps": True}, "trainer.steps=True has the wrong type: expected whole number"),
        ({"steps": 1.5}, "expected whole number"),
        ({"steps": 1, "name": []}, "trainer.name=[] has the wrong type: expected text or null"),
        ({"steps": 1, "mode": "exakt"}, "trainer.mode=exakt is not valid: did you mean 'exact'?"),
        ({"steps": 1, "flags": [1]}, "trainer.flags[0]=1 has the wrong type: expected true or false"),
        ({"steps": 1, "flags": "x"}, "expected list of true or false"),
        ({"steps": 1, "table": {"a": "b"}}, "trainer.table.a='b' has the wrong type: expected real number"),
        ({"steps": 1, "inner": 3}, "must be a group of settings"),
        ({"steps": 1, "inner": {"rate": -1}}, "trainer.inner: rate=-1.0 must not be negative"),
        ({"steps": 1, "inner": {"sizes": [1]}}, "has 1 values; 2 are needed"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_key(values, sentence):
    with pytest.raises(UserError) as caught:
        settings.parse(Outer, values, "trainer")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_constructor_is_a_settings_class():
    class Layer:
        def __init__(self, dim: int, *, heads: int = 8, mode: Literal["a", "b"] = "a", out: int | None = None):
            pass

    cls = settings.of_constructor(Layer, ("dim",))
    assert settings.describe(cls) == {
        "heads": {"type": "whole number", "default": 8},
        "mode": {"type": "one of: a, b", "default": "a"},
        "out": {"type": "whole number or null", "default": None},
    }
    assert dataclasses.asdict(settings.parse(cls, {"heads": 2}, "attn")) == {"heads": 2, "mode": "a", "out": None}


def test_nearest_lists_the_valid_names():
    assert nearest("bilatral", ["conv", "bilateral"]) == "did you mean 'bilateral'? valid: bilateral, conv"
    assert nearest("zzz", ["conv"]) == "valid: conv"
    assert nearest("x", []) == "there is none"
