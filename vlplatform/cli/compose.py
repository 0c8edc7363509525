"""Settings from the command line: Hydra composes the groups of ``configs/``, typed dataclasses check them.

The one file of the library that imports Hydra. A key that a YAML file does not mention may be overridden all
the same (``trainer.clip_norm=1``): whether it exists is for the typed settings to say, who know the nearest name.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vlplatform
from vlplatform import attention, registry, settings
from vlplatform.attention import composition
from vlplatform.errors import UserError, nearest

GROUPS = ("task", "attn", "model", "data", "trainer")
_GIVEN = "_given_"
"""Under this name a section given by the caller goes to Hydra; no file has it."""


@dataclass
class RunSettings:
    """What belongs to the run itself.

    Attributes:
        seed: Seed of weights, data order and augmentation.
        name: Folder of the run below ``out``; null makes one from task, model, attention, data and seed.
        out: Folder that holds the runs.
        resume: ``auto`` continues the newest sound checkpoint of the run, a path that one; null starts anew.
        overwrite: Replace a run of the same name.
    """

    seed: int = 0
    name: str | None = None
    out: str = "runs"
    resume: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed={self.seed} must lie in 0 … {2**31 - 1}")
        if self.name is not None and (self.name in ("", ".", "..") or Path(self.name).name != self.name):
            raise ValueError(f"name={self.name} must be a plain folder name")


def configs() -> Path:
    """The folder of the Hydra groups: inside an installed package, or at the top of a source tree."""
    package = Path(vlplatform.__file__).parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def options(group: str) -> list[str]:
    """The names of a group: its YAML files, and what is installed without one (plugins' tasks, models, data sets)."""
    return sorted({*_files(group), *_registered(group)})


def comments(group: str, name: str) -> str:
    """What the comments of a group's YAML file say; empty where there is no such file."""
    path = configs() / group / f"{name}.yaml"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    head = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.lstrip("# ") for line in head if "@package" not in line)


def compose(
    overrides: Sequence[str], *, recipe: bool = True, given: Mapping[str, Mapping[str, Any]] = {}
) -> dict[str, Any]:
    """The resolved settings: a mapping with the sections of ``GROUPS`` and the keys of :class:`RunSettings`.

    Args:
        overrides: As on the command line.
        recipe: Whether the recipe TASK_DATA is added, if there is one.
        given: Group → section that takes the place of the group's YAML file, whatever file the overrides choose;
            overrides of its keys win over it.

    Raises:
        UserError: An unknown group choice, an override that cannot be read, or a section without a name.
    """
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    logging.getLogger("hydra").setLevel(logging.ERROR)
    prepared = _prepared(overrides)
    for group, section in given.items():
        ConfigStore.instance().store(group=group, name=_GIVEN, node=dict(section))
        prepared = [f"{group}={_GIVEN}", *(o for o in prepared if not o.startswith(f"{group}="))]
    if not recipe:
        prepared.append("~recipe")
    for group in GROUPS:
        for name in set(_registered(group)) - set(_files(group)):
            ConfigStore.instance().store(group=group, name=name, node={"name": name})
    try:
        resolved = OmegaConf.to_container(_hydra(prepared), resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"the settings {' '.join(overrides)} cannot be composed: {first}.") from error
    assert isinstance(resolved, dict)
    for group in GROUPS:
        name = resolved[group].get("name", "")
        if group != "trainer" and not isinstance(name, str):
            shown = "null" if name is None else name
            raise UserError(f"{group}.name={shown} is not a name: {nearest(shown, options(group))}.")
    return {str(key): value for key, value in resolved.items()}


def origins(overrides: Sequence[str]) -> dict[str, str]:
    """Settings of the trainer that a file of ``configs/`` sets, and no override: name → ``configs/recipe/NAME.yaml``.

    Args:
        overrides: As :func:`compose` has taken them.
    """
    from omegaconf import OmegaConf

    choices = _hydra(_prepared(overrides), return_hydra_config=True).hydra.runtime.choices
    found: dict[str, str] = {}
    for group in ("base", "recipe", "trainer", "adjust"):  # as in config.yaml: each wins over those before it
        path = configs() / group / f"{choices[group]}.yaml"
        if path.is_file():
            values: Any = OmegaConf.to_container(OmegaConf.load(path))
            section = values if group == "trainer" else values.get("trainer", {})
            found |= dict.fromkeys(section, f"configs/{group}/{path.name}")
    given = {override.lstrip("+~").partition("=")[0] for override in overrides}
    return {name: file for name, file in found.items() if f"trainer.{name}" not in given}


def run_settings(resolved: dict[str, Any]) -> RunSettings:
    """The run's own settings out of the composed ones.

    Raises:
        UserError: A top-level key that is neither a section nor one of :class:`RunSettings`, or a wrong value.
    """
    own = {key: value for key, value in resolved.items() if key not in GROUPS}
    known = set(settings.describe(RunSettings)) | set(GROUPS)
    for key, value in own.items():
        if key not in known:
            meant = [] if isinstance(value, Mapping) else places(key, resolved)
            remedy = f"write {shown_as(meant, value)}" if meant else nearest(key, known)
            raise UserError(f"{key} is not a setting: {remedy}.")
    try:
        return settings.parse(RunSettings, own, "run")
    except UserError as error:  # these keys stand alone: nobody can type run.seed
        raise UserError(str(error).removeprefix("run.").removeprefix("run: ")) from error


def places(key: str, resolved: Mapping[str, Any] | None = None) -> list[str]:
    """The full names of the settings called ``key``: the run's, a group's choice, or in a group (``trainer.steps``).

    Args:
        key: A bare name, or one that begins with a group's (``trainer.steps``), which is its own answer.
        resolved: The composed settings: their choices decide which model, data set … is looked into. Else the defaults.
    """
    from vlplatform.engine.settings import TrainerSettings

    if key in GROUPS or key in settings.describe(RunSettings) or key.partition(".")[0] in GROUPS:
        return [key]
    resolved = compose([]) if resolved is None else resolved
    found = _within("trainer", TrainerSettings, key)
    for group in ("attn", "task", "model", "data"):
        for cls in settings_of(group, resolved).values():
            found += _within(group, cls, key)
    return list(dict.fromkeys(found))


def settings_of(group: str, resolved: Mapping[str, Any]) -> dict[str, type[Any]]:
    """Name → settings class of what is chosen in ``task``, ``attn``, ``model`` or ``data``.

    There are several where the choice is left open (``auto``) or is a family, and none where the task's plugin
    describes none.

    Args:
        group: One of these four.
        resolved: The composed settings.
    """
    plugin, name = registry.task(resolved["task"]["name"]), resolved[group].get("name", "auto")
    if group == "attn":
        catalogue = attention.catalogue()
        if "+" in name:
            parts = [attention.resolve(part, "token") for part in name.split("+")]
            return {name: composition.settings_class(parts)}
        names = getattr(plugin, "auto_attns", ()) if name == "auto" else (name,)
        met = [each for name in names for each in ([catalogue[name]] if name in catalogue else _family(name))]
        return {each.name: each.settings_class() for each in met}
    find: Callable[[str, str], type[Any] | None] = getattr(plugin, "settings_class", lambda *_: None)
    found = {each: find(group, each) for each in ([name] if name != "auto" else plugin.models())}
    return {each: cls for each, cls in found.items() if cls is not None}


def shown_as(names: Sequence[str], value: Any) -> str:
    """What to type for a value under one of several names: ``trainer.steps=5``, ``a.b=5 or c.b=5``."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return " or ".join(f"{name}={text.replace(' ', '')}" for name in names)


def _family(name: str) -> list[attention.Mechanism]:
    return [mechanism for mechanism in attention.catalogue().values() if name in mechanism.families.values()]


def _within(prefix: str, cls: type[Any], key: str) -> list[str]:
    """The settings called ``key`` of a settings class and of the classes within it, each under its full name."""
    found: list[str] = []
    for name, hint in typing.get_type_hints(cls).items():
        if name == key:
            found.append(f"{prefix}.{name}")
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            found += _within(f"{prefix}.{name}", hint, key)
    return found


def _hydra(prepared: Sequence[str], **how: bool) -> Any:
    """What Hydra composes; ``return_hydra_config=True`` adds its own section, which knows all choices."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(configs().resolve()), version_base="1.3"):
        return hydra_compose("config", overrides=list(prepared), **how)


def _files(group: str) -> list[str]:
    return [path.stem for path in (configs() / group).glob("*.yaml")]


def _registered(group: str) -> list[str]:
    if group == "attn":
        return list(attention.catalogue())
    if group == "task":
        return registry.task_names()
    listing = {"model": "models", "data": "data_sets"}.get(group)
    plugins = [registry.task(name) for name in registry.task_names()] if listing else []
    return [name for plugin in plugins for name in getattr(plugin, listing or "")()]


def _prepared(overrides: Sequence[str]) -> list[str]:
    """The overrides as Hydra wants them."""
    return [_prepare(each) for override in overrides for each in _sums(override)]


def _sums(override: str) -> list[str]:
    """``attn=nsa+gsa``, for which there is no file, as the name of the plain attention that hosts the terms."""
    key, _, value = override.partition("=")
    if key != "attn" or "+" not in value:
        return [override]
    for part in value.split("+"):
        _prepare(f"attn={part}")  # refuses an unknown name
    return ["attn=sa", f"attn.name={value}"]


def _prepare(override: str) -> str:
    """One override as Hydra wants it, its group choice checked: ``trainer.x=1`` becomes ``++trainer.x=1``."""
    key, equals, value = override.partition("=")
    if not equals or not key.strip("+~"):
        raise UserError(f"'{override}' is not a setting: write key=value (task=segmentation, trainer.steps=100).")
    plain = key.lstrip("+")
    if plain.lstrip("~") in (*GROUPS, "recipe") and "~" in plain:
        raise UserError(f"'{override}' would leave out a whole group: choose one with {plain.lstrip('~')}=NAME.")
    if plain in (*GROUPS, "recipe"):
        if value not in (names := options(plain)):
            raise UserError(f"{plain}={value} is unknown: {nearest(value, names)}.")
        return f"{plain}={value}"
    if key.startswith("~"):
        return override
    return f"++{plain}={_quote(value)}"


def _quote(value: str) -> str:
    """A value that Hydra's grammar would stumble over (a path with blanks, brackets, = or letters like ü) in quotes."""
    if value[:1] in ("[", "{", "'", '"') or re.fullmatch(r"[\w./+-]*", value, re.ASCII):
        return value
    return "'" + value.replace("'", "\\'") + "'"
