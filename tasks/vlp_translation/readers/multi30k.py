"""Multi30k: the descriptions of Flickr30k's pictures in English, German, French and Czech (task 1)."""

from __future__ import annotations

from dataclasses import dataclass

from vlp_translation.lines import find
from vlp_translation.readers.files import FilePairs, Files
from vlp_translation.readers.records import ParallelData
from vlplatform.data.root import open_root
from vlplatform.errors import UserError, nearest

SUMMARY = "Multi30k, 29,000 picture descriptions in English, German, French, Czech"

LANGUAGES = ("cs", "de", "en", "fr")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of ``data=multi30k``.

    Attributes:
        root: Folder of the files ``train.en``, ``val.de`` and so on, plain or ``.gz`` (``data/task1/raw`` of the
            published repository).
        source: Language to translate from: cs, de, en, fr.
        target: Language to translate into.
        test: The files of the split ``test``; of a folder that has neither of the default's two there is no such split.
            All test sets of the folder are splits by their own names, too.
    """

    root: str | None = None
    source: str = "en"
    target: str = "de"
    test: str = "test_2016_flickr"

    def __post_init__(self) -> None:
        for name in ("source", "target"):
            if (language := getattr(self, name)) not in LANGUAGES:
                raise ValueError(f"{name}={language} is not a language of Multi30k: {nearest(language, LANGUAGES)}")
        if self.source == self.target:
            raise ValueError(f"source={self.source} and target={self.target} must differ")


def open_data(settings: Settings) -> ParallelData:
    """The splits ``train``, ``val``, ``test``, and every test set that is there.

    Raises:
        UserError: The folder or one of its files is not there.
    """
    root = open_root(settings.root, "train.en, train.de, val.en and so on")
    present = {path.name.removesuffix(".gz") for path in root.iterdir()}
    sets = sorted(name.removesuffix(f".{settings.source}") for name in present if name.endswith(f".{settings.source}"))
    stems = {"train": "train", "val": "val", "test": settings.test}
    stems |= {name: name for name in sets if name not in stems and name.startswith("test")}
    splits: dict[str, list[Files]] = {}
    for split, stem in stems.items():
        source, target = (find(root / f"{stem}.{language}") for language in (settings.source, settings.target))
        if source is target is None and split == "test" and stem == Settings.test:
            continue  # nobody has asked for it, and training needs none
        if source is None or (target is None and split in ("train", "val", "test")):
            missing = settings.source if source is None else settings.target
            raise UserError(f"data.root={settings.root} lacks {stem}.{missing} (or {stem}.{missing}.gz): add it.")
        splits[split] = [(source, target)]
    files = FilePairs(splits)
    return ParallelData(
        name="multi30k",
        languages=(settings.source, settings.target),
        read=files.read,
        fingerprint=files.fingerprint,
        splits=tuple(splits),
        licence="non-commercial research and education, after Flickr30k",
        citation="Elliott, Frank, Sima'an, Specia: Multi30K, W16-3210, 2016; Elliott et al., W17-4718, 2017",
    )
