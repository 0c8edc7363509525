"""Mechanisms by name: what there is, what a wrong name is told, and what an import costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vlplatform import attention
from vlplatform.attention import Mechanism, build, catalogue, resolve
from vlplatform.errors import UserError

CONTEXT = {"nonlocal", "crisscross", "bilateral_nl", "bilateral_cc", "nonlocal_rpe", "crisscross_rpe"}


def test_the_catalogue_has_the_context_operators():
    assert {name for name, card in catalogue().items() if "context" in card.sockets} >= CONTEXT


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_cards_are_complete(name):
    card = catalogue()[name]
    assert card.name == name
    assert card.summary
    assert card.paper
    assert set(card.families) <= set(card.sockets) <= set(attention.SOCKETS)
    assert "dim" not in card.settings()


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_mechanism_of_a_map_builds_runs_and_has_a_cost(name):
    card = catalogue()[name]
    for socket in set(card.sockets) & {"context", "local"}:
        module = build(name, dim=16, socket=socket)
        assert module(torch.randn(2, 16, 5, 6)).shape[::2] == (2, 5)
        assert module.macs(5, 6) > 0


def test_a_family_name_means_the_sockets_own_member():
    assert resolve("bilateral", "context") is catalogue()["bilateral_cc"]
    assert type(build("bilateral", dim=16, socket="context")) is type(build("bilateral_cc", dim=16, socket="context"))


@pytest.mark.parametrize(
    ("name", "socket", "words"),
    [
        ("crisscros", "context", "attn=crisscros is not a known mechanism: did you mean 'crisscross'"),
        ("crisscross", "local", "attn=crisscross does not fit the local socket .it fits context."),
        ("bilateral", "fusion", "attn=bilateral does not fit the fusion socket"),
        ("", "context", "is not a known mechanism"),
    ],
)
def test_wrong_names_are_answered_with_the_right_ones(name, socket, words):
    with pytest.raises(UserError, match=words):
        resolve(name, socket)


def test_a_name_that_does_not_fit_is_told_which_do():
    with pytest.raises(UserError) as refusal:
        resolve("conv", "context")
    told = str(refusal.value).rstrip(".").rpartition(": ")[2]
    assert set(told.split(", ")) >= CONTEXT | {"bilateral"}


def test_wrong_settings_are_named():
    with pytest.raises(UserError, match=r"attn\.windw is not a setting of attn: did you mean 'window'"):
        build("bilateral", dim=16, socket="context", windw=3)
    with pytest.raises(UserError, match=r"attn\.window='wide' has the wrong type: expected whole number"):
        build("bilateral", dim=16, socket="context", window="wide")


class Point:
    """An entry point of an outside package."""

    value = "outside:CARD"

    def __init__(self, name: str, loaded: object) -> None:
        self.name, self.loaded = name, loaded

    def load(self) -> object:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


@pytest.fixture
def plugins(monkeypatch):
    """Pretends that entry points are installed; the catalogue is read anew, and again afterwards."""

    def install(*points: Point) -> None:
        monkeypatch.setattr(attention, "entry_points", lambda group: points)
        catalogue.cache_clear()

    yield install
    catalogue.cache_clear()


def outside(name: str) -> Mechanism:
    return Mechanism(name, lambda dim: torch.nn.Conv2d(dim, dim, 1), ("context",), "one pixel", "nobody")


def test_an_outside_mechanism_joins_by_its_entry_point(plugins):
    plugins(Point("mine", outside("mine")))
    assert build("mine", dim=4, socket="context")(torch.ones(1, 4, 2, 2)).shape == (1, 4, 2, 2)


def test_an_outside_mechanism_cannot_take_a_name_in_use(plugins):
    plugins(Point("mine", outside("crisscross")))
    with pytest.raises(UserError, match=r"outside:CARD takes the name 'crisscross'"):
        catalogue()


def test_an_outside_package_that_fails_is_named(plugins):
    plugins(Point("mine", ImportError("no module named numba")))
    with pytest.raises(UserError, match=r"plugin 'mine' \(outside:CARD\) cannot be imported.*numba"):
        catalogue()


ALONE = """
import sys, torch
allowed = set(sys.stdlib_module_names) | {name.partition(".")[0] for name in sys.modules} | {"vlplatform"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ImportError(f"{name} is neither the standard library nor torch")
sys.meta_path.insert(0, Refuse())
import vlplatform.attention as attention
for name, card in attention.catalogue().items():
    for socket in set(card.sockets) & {"context", "local"}:
        attention.build(name, dim=16, socket=socket)(torch.ones(1, 16, 4, 4)).sum().backward()
floors = {name.split(".")[1] for name in sys.modules if name.startswith("vlplatform.")}
print(*sorted(floors))
"""


def test_the_mechanisms_need_torch_alone():
    root = Path(attention.__file__).parents[2]
    command = [sys.executable, "-W", "error", "-c", ALONE]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["attention", "errors", "geometry", "settings"]
