"""``vlp prepare``: compute what training would compute again and again, once."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from vlplatform import settings as typed
from vlplatform.cli.arguments import one_of
from vlplatform.cli.checkpoint import pick_device
from vlplatform.data.shards import ShardWriter
from vlplatform.errors import UserError
from vlplatform.vision import pictures
from vlplatform.vision.extract import Extract, FeatureSettings, Picture, extractor, fitted

HELP = """Compute the features of pictures (and find words in them) once, into a folder of memory-mapped shards, for
data.features=OUT.

A run that was stopped goes on where it was when the same command is given again."""


def _epilog() -> str:
    lines = ["settings of features:"]
    for name, entry in typed.describe(FeatureSettings).items():
        lines.append(f"  {name}={json.dumps(entry['default'])}  ({entry['type']})")
        lines.append(f"      {entry['help']}")
    examples = """
examples:
  vlp prepare features photos out backbone=resnet50
  vlp prepare features photos out backbone=resnet18 stride=16 weights=resnet18.safetensors grid=7
  vlp prepare features list.txt out detector=fasterrcnn_resnet50_fpn_v2 regions=50 device=cuda:0 on_error=skip
  vlp train task=captioning data=karpathy data.root=flickr8k data.features=out

attribute words beside the features, for model=eta:
  vlp train task=attributes data=karpathy data.root=flickr8k name=words
  vlp prepare features flickr8k/images out backbone=resnet50 attributes=runs/words
  vlp train task=captioning model=eta data=karpathy data.root=flickr8k data.features=out"""
    return "\n".join(lines) + "\n" + examples


EPILOG = _epilog()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to prepare, from what, into what, and how."""
    parser.add_argument("what", metavar="features", type=one_of("prepare", ("features",)), help="what to compute")
    parser.add_argument(
        "images",
        metavar="IMAGES",
        type=Path,
        help="a folder (with the folders in it), or a text file with a path a line",
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder of the features")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="settings, listed below")


def run(args: argparse.Namespace) -> int:
    """Compute what is not there yet; exit code 0.

    Raises:
        UserError: Settings, pictures, weights or the folder do not allow it.
    """
    settings = typed.parse(FeatureSettings, typed.of_words(args.overrides), "prepare")
    files = _files(args.images)
    if settings.weights is not None and not Path(settings.weights).expanduser().is_file():
        raise UserError(f"prepare.weights={settings.weights} is not a file: give a file of weights.")
    extract = extractor(settings, torch.device(pick_device(settings.device)))  # before anything is written
    with ShardWriter(
        args.out, settings.identity(), about=settings.places(), records=settings.shard, dtype=settings.dtype
    ) as writer:
        todo = {key: path for key, path in files.items() if key not in writer.done}
        skipped = _compute(todo, len(files), writer, settings, extract) if todo else {}
        if not writer.done and len(skipped) == len(todo):
            raise UserError(
                f"none of the {len(files)} pictures of {args.images} can be read: {next(iter(skipped.values()))}"
            )
        writer.finish()
    listed = args.out / "skipped.txt"
    listed.unlink(missing_ok=True)
    if skipped:
        listed.write_text(
            "".join(f"{key}\t{' '.join(why.split())}\n" for key, why in skipped.items()), encoding="utf-8"
        )
        print(f"pictures that could not be read and were skipped: {len(skipped)}, see {listed}")
    print(f"{len(files) - len(skipped)} pictures ({len(todo) - len(skipped)} of them now) in {args.out}")
    return 0


def _compute(
    todo: dict[str, Path], total: int, writer: ShardWriter, settings: FeatureSettings, extract: Extract
) -> dict[str, str]:
    """Compute the records of ``todo``; the skipped pictures and why."""
    from vlplatform.engine.progress import Display

    done, skipped = total - len(todo), dict[str, str]()
    with Display() as display:
        display.start(total, done)
        for batch in _batches(todo, settings):
            good = [(key, picture) for key, picture in batch if isinstance(picture, Picture)]
            for key, fault in batch:
                if isinstance(fault, str):
                    if settings.on_error == "stop":
                        raise UserError(fault)
                    skipped[key] = fault
            if good:
                for (key, _), record in zip(good, extract([picture for _, picture in good])):
                    writer.add(key, record)
            done += len(batch)
            display.update(done, f"{len(skipped)} skipped" if skipped else "pictures")
    return skipped


class _Images(Dataset[Any]):
    """Decoded pictures as the network takes them; or in place of a picture what is wrong."""

    def __init__(self, files: dict[str, Path], settings: FeatureSettings, remedy: str) -> None:
        self.files, self.settings, self.remedy = list(files.items()), settings, remedy

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[str, Picture | str]:
        key, path = self.files[index]
        try:
            return key, fitted(pictures.read_image(path, self.remedy), self.settings)
        except UserError as error:
            return key, str(error)


def _batches(todo: dict[str, Path], settings: FeatureSettings) -> Iterator[list[Any]]:
    images = _Images(
        todo,
        settings,
        "restore or remove it, or leave out such pictures with on_error=skip",
    )
    yield from DataLoader(
        images,
        batch_size=settings.batch,
        num_workers=settings.workers,
        collate_fn=list,
        worker_init_fn=_leave_interrupts_to_the_parent,
    )


def _leave_interrupts_to_the_parent(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _files(images: Path) -> dict[str, Path]:
    """Name in the shards → file: the path below the folder (of the pictures, or of their list), else the bare name."""
    if images.is_dir():
        files = {name: images / name for name in pictures.listed(images)}
        if not files:
            raise UserError(f"{images} holds no pictures ({', '.join(pictures.SUFFIXES)}): name another folder.")
        return files
    if not images.is_file():
        raise UserError(f"the pictures {images} do not exist: give a folder, or a text file with a path a line.")
    try:
        lines = [line.strip() for line in images.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise UserError(
            f"{images} is no text: give a folder of pictures, or a text file with a path a line."
        ) from error
    files = {}
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        path = Path(line)
        key = path.as_posix() if not path.is_absolute() and ".." not in path.parts else path.name
        if key in files:
            raise UserError(
                f"{images}, line {number}, names '{key}' a second time: each picture needs a name of its own."
            )
        files[key] = images.parent / path
    if not files:
        raise UserError(f"{images} lists no pictures: write a path a line.")
    return files
