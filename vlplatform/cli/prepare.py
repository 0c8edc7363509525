"""``vlp prepare``: compute what training would compute again and again, once."""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vlplatform import settings as typed
from vlplatform.cli.arguments import one_of
from vlplatform.cli.checkpoint import pick_device
from vlplatform.data.shards import Record, ShardWriter
from vlplatform.errors import UserError
from vlplatform.vision import pictures

HELP = """Compute the features of pictures once, into a folder of memory-mapped shards, for data.features=OUT.

A run that was stopped goes on where it was when the same command is given again."""


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """Settings of ``vlp prepare features``.

    Attributes:
        backbone: Grid features of this timm model (resnet50, swin_base_patch4_window12_384 …).
        detector: Region features of this detector: fasterrcnn_resnet50_fpn_v2 or another Faster R-CNN of torchvision,
            or a DETR of transformers by its hub id or folder (facebook/detr-resnet-50).
        weights: File of weights (safetensors, or PyTorch's format with tensors alone) in place of the published ones.
        pretrained: Published weights; false takes random ones, for trials.
        size: Backbone: pictures are resized to this height and width.
        stride: Backbone: pixels per cell of the map to take; null takes the deepest.
        grid: Backbone: rows and columns that the map is pooled to; 0 leaves it as it is.
        regions: Detector: most boxes of a picture.
        least: Detector: fewest boxes of a picture, however unsure.
        score: Detector: boxes at least as sure as this are kept, up to the most.
        nms: Detector: of two boxes of a class that overlap more than this, the surer one stays.
        dtype: Of the features on the disk; float16 takes half the room.
        batch: Pictures at a time.
        workers: Processes that read pictures; 0 reads them in this one.
        device: auto, cpu, cuda:0 …
        on_error: What to do about a picture that cannot be read: stop, or skip it and list it in OUT/skipped.txt.
        shard: Pictures in a shard; a stopped run loses the shard that it was filling.
    """

    backbone: str | None = None
    detector: str | None = None
    weights: str | None = None
    pretrained: bool = True
    size: int = 224
    stride: int | None = None
    grid: int = 7
    regions: int = 36
    least: int = 10
    score: float = 0.2
    nms: float = 0.3
    dtype: Literal["float16", "float32"] = "float32"
    batch: int = 16
    workers: int = 2
    device: str = "auto"
    on_error: Literal["stop", "skip"] = "stop"
    shard: int = 512

    def __post_init__(self) -> None:
        if (self.backbone is None) == (self.detector is None):
            raise ValueError("give either backbone=NAME or detector=NAME")
        if self.weights is not None and not self.pretrained:
            raise ValueError(f"weights={self.weights} contradicts pretrained=false: leave one of them out")
        bounds = {"size": 16, "grid": 0, "regions": 1, "least": 0, "batch": 1, "workers": 0, "shard": 1}
        for name, low in bounds.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {low}")
        for name in ("score", "nms"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie in 0 … 1")

    def identity(self) -> dict[str, Any]:
        """What the features depend on: a stopped run goes on only if this is the same."""
        kinds = {"backbone": ("size", "stride", "grid"), "detector": ("regions", "least", "score", "nms")}
        kind = "backbone" if self.backbone is not None else "detector"
        values = {name: getattr(self, name) for name in (kind, "pretrained", *kinds[kind])}
        if self.weights is not None:
            path = Path(self.weights).expanduser()
            values["weights"] = f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
        return values


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
  vlp train task=captioning data=karpathy data.root=flickr8k data.features=out"""
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
    settings = typed.parse(FeatureSettings, _values(args.overrides), "prepare")
    files = _files(args.images)
    if settings.weights is not None and not Path(settings.weights).expanduser().is_file():
        raise UserError(f"prepare.weights={settings.weights} is not a file: give a file of weights.")
    device = torch.device(pick_device(settings.device))
    with ShardWriter(args.out, settings.identity(), records=settings.shard, dtype=settings.dtype) as writer:
        todo = {key: path for key, path in files.items() if key not in writer.done}
        skipped = _compute(todo, len(files), writer, settings, device) if todo else {}
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
        print(f"{len(skipped)} pictures could not be read and were skipped: {listed}")
    print(f"{len(files) - len(skipped)} pictures ({len(todo) - len(skipped)} of them now) in {args.out}")
    return 0


def _compute(
    todo: dict[str, Path], total: int, writer: ShardWriter, settings: FeatureSettings, device: torch.device
) -> dict[str, str]:
    """Compute the records of ``todo``; the skipped pictures and why."""
    from vlplatform.engine.progress import Display

    extract = _extractor(settings, device)
    done, skipped = total - len(todo), dict[str, str]()
    with Display() as display:
        display.start(total, done)
        for batch in _batches(todo, settings):
            good = [(key, image, size) for key, image, size in batch if isinstance(image, Tensor)]
            for key, fault, _ in batch:
                if isinstance(fault, str):
                    if settings.on_error == "stop":
                        raise UserError(fault)
                    skipped[key] = fault
            if good:
                records = extract([image for _, image, _ in good], [size for _, _, size in good])
                for (key, _, _), record in zip(good, records):
                    writer.add(key, record)
            done += len(batch)
            display.update(done, f"{len(skipped)} skipped" if skipped else "pictures")
    return skipped


Extract = Callable[[list[Tensor], list[tuple[int, int]]], list[Record]]


def _extractor(settings: FeatureSettings, device: torch.device) -> Extract:
    """From pictures and their sizes (width, height) to records."""
    from vlplatform.hub.importer import read_weights

    weights = None if settings.weights is None else read_weights(Path(settings.weights).expanduser())
    torch.manual_seed(0)  # random weights must be the same when a stopped run goes on
    if settings.backbone is not None:
        from vlplatform.vision.grids import GridExtractor

        grids = GridExtractor(
            settings.backbone,
            size=settings.size,
            stride=settings.stride,
            grid=settings.grid,
            pretrained=settings.pretrained,
            weights=weights,
        ).to(device)

        def of_grids(images: list[Tensor], sizes: list[tuple[int, int]]) -> list[Record]:
            maps = grids(torch.stack(images).to(device)).cpu()
            rows, columns = maps.shape[1:3]
            return [Record(m.flatten(0, 1), grid=(rows, columns), size=size) for m, size in zip(maps, sizes)]

        return of_grids

    from vlplatform.vision.regions import Choice, DetrDetector, TorchvisionDetector

    name = settings.detector or ""
    choice = Choice(settings.regions, settings.least, settings.score, settings.nms)
    if "/" in name or Path(name).is_dir():
        if weights is not None:
            raise UserError("prepare.weights does not go with a DETR: name a folder with its weights as the detector.")
        detector: Any = DetrDetector(name, choice, pretrained=settings.pretrained)
    else:
        detector = TorchvisionDetector(name, choice, pretrained=settings.pretrained, weights=weights)
    detector.to(device)

    def of_regions(images: list[Tensor], sizes: list[tuple[int, int]]) -> list[Record]:
        found = detector(images)
        return [Record(r.features, boxes=r.boxes, scores=r.scores, size=size) for r, size in zip(found, sizes)]

    return of_regions


class _Images(Dataset[Any]):
    """Decoded pictures, resized if ``size`` is given, with their own sizes; or in place of a picture what is wrong."""

    def __init__(self, files: dict[str, Path], size: int | None, remedy: str) -> None:
        self.files, self.size, self.remedy = list(files.items()), size, remedy

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[str, Tensor | str, tuple[int, int]]:
        from torchvision.transforms.v2 import functional

        key, path = self.files[index]
        try:
            image = pictures.read_image(path, self.remedy)
        except UserError as error:
            return key, str(error), (0, 0)
        size = (image.shape[2], image.shape[1])
        return key, image if self.size is None else functional.resize(image, [self.size] * 2, antialias=True), size


def _batches(todo: dict[str, Path], settings: FeatureSettings) -> Iterator[list[Any]]:
    images = _Images(
        todo,
        settings.size if settings.backbone is not None else None,
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


def _values(overrides: Sequence[str]) -> dict[str, Any]:
    """``key=value`` arguments; numbers, true, false and null as such, everything else as text."""
    values: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise UserError(f"'{override}' is no setting: write KEY=VALUE.")
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    return values
