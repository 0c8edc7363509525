"""From pictures to features: the settings, the network they name, and the same network again from what was kept.

Beside the features, the words that an attribute detector, a model of some task, finds in the pictures.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor

from vlplatform import settings as typed
from vlplatform.data.shards import Record
from vlplatform.errors import UserError


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """Settings of ``vlp prepare features``: of the network, and of the work.

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
        attributes: Words beside the features: of this attribute detector, a run, folder or hub id of task=attributes.
        attribute_words: Most words of a picture.
        attribute_score: Words surer than this are kept, up to the most.
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
    attributes: str | None = None
    attribute_words: int = 10
    attribute_score: float = 0.0
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
        bounds = {"size": 16, "grid": 0, "regions": 1, "least": 0, "attribute_words": 1}
        bounds |= {"batch": 1, "workers": 0, "shard": 1}
        for name, low in bounds.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {low}")
        for name in ("score", "nms", "attribute_score"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie in 0 … 1")

    def identity(self) -> dict[str, Any]:
        """What the features depend on: a stopped run goes on only if this is the same."""
        kinds = {"backbone": ("size", "stride", "grid"), "detector": ("regions", "least", "score", "nms")}
        kind = "backbone" if self.backbone is not None else "detector"
        values = {name: getattr(self, name) for name in (kind, "pretrained", *kinds[kind])}
        if self.weights is not None:
            path = Path(self.weights).expanduser()
            values["weights"] = f"{path.name} {_digest(path)}"
        if self.attributes is not None:
            values["attributes"] = f"{Path(self.attributes).absolute().name} {_digest_of_model(self.attributes)}"
            values |= {name: getattr(self, name) for name in ("attribute_words", "attribute_score")}
        return values

    def places(self) -> dict[str, Any]:
        """Where the file of weights and the attribute detector lie, if there are any; no record depends on it."""
        places: dict[str, Any] = {}
        if self.weights is not None:
            places["weights_path"] = str(Path(self.weights).expanduser().absolute())
        if self.attributes is not None:
            folder = Path(self.attributes).expanduser()
            places["attributes_source"] = str(folder.absolute()) if folder.exists() else self.attributes
        return places


def settings_of(made: Mapping[str, Any], *, words: bool = True) -> FeatureSettings:
    """The settings behind an identity, with the file of weights and the attribute detector found again.

    Args:
        made: What :meth:`FeatureSettings.identity` gave, beside it perhaps what :meth:`FeatureSettings.places` gave.
        words: Whether attribute words are wanted, where there are some; else no detector is looked for.

    Raises:
        UserError: No identity, or the file or detector is neither where it was nor in the current folder.
    """
    known = {field.name for field in dataclasses.fields(FeatureSettings)}
    values = {key: value for key, value in made.items() if key in known and key not in ("weights", "attributes")}
    if "weights" in made:
        name, _, digest = str(made["weights"]).rpartition(" ")
        places = [Path(str(made["weights_path"]))] if made.get("weights_path") else []
        places.append(Path(Path(name).name))
        found = next((path for path in places if path.is_file() and _digest(path) == digest), None)
        if found is None:
            raise UserError(
                f"the features were made with the weights {name} (SHA-256 {digest} …), and no such file is at "
                f"{places[0]}: put it at {places[-1].absolute()}, or give features (.npz) in place of pictures."
            )
        values["weights"] = str(found)
    if words and "attributes" in made:
        name, _, digest = str(made["attributes"]).rpartition(" ")
        sources = [str(made["attributes_source"])] if made.get("attributes_source") else []
        sources.append(name)
        values["attributes"] = next((source for source in sources if _is_model(source, digest)), None)
        if values["attributes"] is None:
            raise UserError(
                f"the words beside the features are those of the attribute detector {name} (SHA-256 {digest} …), and "
                f"no such model is at {sources[0]}: put it at {Path(name).absolute()}, or give features (.npz) in "
                "place of pictures."
            )
    return typed.parse(FeatureSettings, values, "the extractor")


@dataclass(frozen=True)
class Picture:
    """A picture on its way to the networks.

    Attributes:
        image: (3, H, W) uint8 in the size that the network of the features takes.
        size: Its own (width, height).
        whole: (3, H, W) uint8 in its own size, where attribute words are asked for.
    """

    image: Tensor
    size: tuple[int, int]
    whole: Tensor | None = None


def fitted(image: Tensor, settings: FeatureSettings) -> Picture:
    """A picture (3, H, W) uint8 in the size that the network takes: a backbone's, or its own for a detector."""
    from torchvision.transforms.v2 import functional

    small = image if settings.backbone is None else functional.resize(image, [settings.size] * 2, antialias=True)
    return Picture(small, (image.shape[2], image.shape[1]), None if settings.attributes is None else image)


class WordDetector(Protocol):
    """What a model has whose words ``vlp prepare features`` can write beside the features."""

    def detect_words(self, pictures: Sequence[Tensor], *, most: int, above: float) -> list[tuple[str, ...]]:
        """At most ``most`` words of each picture (3, H, W) uint8 that are surer than ``above``, the surest first."""
        ...


def word_detector(source: str, device: torch.device) -> WordDetector:
    """The attribute detector that was trained and saved, or published, as ``source``.

    Raises:
        UserError: No model, one that names no words, or one that cannot name those of pictures.
    """
    from vlplatform.hub import load

    model = load(source, device=device)
    if not hasattr(model, "detect_words"):
        task = getattr(model, "loaded_config")["task"]  # noqa: B009 - set by load on any module
        raise UserError(
            f"prepare.attributes={source} is a model of task={task}, which finds no words in pictures: give one of "
            "task=attributes."
        )
    detector = cast(WordDetector, model)
    detector.detect_words([torch.zeros(3, 32, 32, dtype=torch.uint8)], most=1, above=0)  # what it lacks is told now
    return detector


Extract = Callable[[Sequence[Picture]], list[Record]]


def extractor(settings: FeatureSettings, device: torch.device) -> Extract:
    """From pictures, as :func:`fitted` gives them, to records: features, and words if the settings name a detector.

    Raises:
        UserError: An unknown network, or weights that are not to be had or do not fit.
    """
    network = _network(settings, device)
    if settings.attributes is None:
        return network
    detector = word_detector(settings.attributes, device)

    def with_words(pictures: Sequence[Picture]) -> list[Record]:
        whole = [picture.whole for picture in pictures if picture.whole is not None]
        found = detector.detect_words(whole, most=settings.attribute_words, above=settings.attribute_score)
        return [
            dataclasses.replace(record, words=words) for record, words in zip(network(pictures), found, strict=True)
        ]

    return with_words


def _network(settings: FeatureSettings, device: torch.device) -> Extract:
    """From pictures to records of features alone."""
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

        def of_grids(pictures: Sequence[Picture]) -> list[Record]:
            maps = grids(torch.stack([p.image for p in pictures]).to(device)).cpu()
            rows, columns = maps.shape[1:3]
            return [Record(m.flatten(0, 1), grid=(rows, columns), size=p.size) for m, p in zip(maps, pictures)]

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

    def of_regions(pictures: Sequence[Picture]) -> list[Record]:
        found = detector([p.image for p in pictures])
        return [Record(r.features, boxes=r.boxes, scores=r.scores, size=p.size) for r, p in zip(found, pictures)]

    return of_regions


def _digest_of_model(source: str) -> str:
    """The first 16 digits of the SHA-256 of a saved or published model's weights.

    Raises:
        UserError: There is no such model.
    """
    from vlplatform.hub.export import CONFIG, read_config
    from vlplatform.hub.loading import locate

    return read_config(locate(source) / CONFIG)["sha256"][:16]


def _is_model(source: str, digest: str) -> bool:
    """Whether there is a model at ``source``, and it is that one."""
    with suppress(UserError):
        return _digest_of_model(source) == digest
    return False


def _digest(path: Path) -> str:
    """The first 16 digits of a file's SHA-256."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**22):
            digest.update(block)
    return digest.hexdigest()[:16]
