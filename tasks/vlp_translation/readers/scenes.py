"""Scenes, the embedded world: true sentences in two small invented languages, nothing to download."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from vlp_translation.cache import digest_of
from vlp_translation.readers.records import Pair, ParallelData
from vlplatform.data.scenes import ScenesSettings, load
from vlplatform.data.scenes.dataset import SPLITS, VERSION
from vlplatform.data.scenes.translation import LANGUAGES
from vlplatform.errors import nearest

SUMMARY = "Scenes, the embedded world of shapes, in two invented languages: agreement and reordering"


@dataclass(frozen=True, kw_only=True)
class Settings(ScenesSettings):
    """Settings of ``data=scenes``: those of the world beside the direction.

    Attributes:
        source: Language to translate from: vela, toru.
        target: Language to translate into.
    """

    source: str = LANGUAGES[0]
    target: str = LANGUAGES[1]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("source", "target"):
            if (language := getattr(self, name)) not in LANGUAGES:
                raise ValueError(f"{name}={language} is not a language of Scenes: {nearest(language, LANGUAGES)}")
        if self.source == self.target:
            raise ValueError(f"source={self.source} and target={self.target} must differ")


def open_data(settings: Settings) -> ParallelData:
    """Scenes with the world's settings, three pairs for each; a split is made when it is asked for."""
    world = ScenesSettings(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(ScenesSettings)})

    def read(split: str) -> Iterator[Pair]:
        for row in load(split, world).select_columns(["id", "pairs"]):
            scene, pairs = row["id"], row["pairs"]  # type: ignore[index]  # rows of datasets are mappings
            for number, pair in enumerate(pairs):
                where = f"scene {scene}, sentence {number},"
                yield Pair(f"{scene}-{number}", pair[settings.source], pair[settings.target], where)

    def fingerprint(split: str) -> str:
        facts = {key: value for key, value in dataclasses.asdict(world).items() if key not in SPLITS}
        return digest_of(facts, split, getattr(world, split), VERSION)

    return ParallelData(
        name="scenes",
        languages=(settings.source, settings.target),
        read=read,
        fingerprint=fingerprint,
        licence="Apache-2.0, generated",
        notes=("Scenes is generated: a yardstick for code, never a published result",),
    )
