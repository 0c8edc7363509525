"""What the segmentation models share: backbone, resizing to the input, settings that rebuild them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from vlp_segmentation.models.layers import resize
from vlplatform import attention, settings
from vlplatform.attention import Socket
from vlplatform.errors import UserError
from vlplatform.hub import SaveMixin
from vlplatform.vision.backbone import Backbone, BackboneSettings


@dataclass(frozen=True)
class Labels:
    """The classes a model tells apart: their names, and their colours (R, G, B) in pictures."""

    names: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...]


class Outputs(NamedTuple):
    """What a model returns in training: logits at the input's size, and those of the auxiliary head if it has one.

    Attributes:
        logits: (B, classes, H, W).
        aux: (B, classes, H, W) or None.
    """

    logits: Tensor
    aux: Tensor | None


class SegmentationModel(SaveMixin, nn.Module, ABC):
    """RGB images (B, 3, H, W) in 0..1 → logits (B, classes, H, W); :class:`Outputs` in training mode.

    ``attn`` is a mechanism's name and settings in one mapping (``{"name": "conv", "kernel": 3}``). Any size.
    """

    task = "segmentation"
    name: ClassVar[str]
    summary: ClassVar[str]
    socket: ClassVar[Socket]
    """The socket the mechanism sits in."""
    Settings: ClassVar[type[BackboneSettings]]
    """The dataclass of the model's settings."""

    def __init__(self, labels: Labels, attn: Mapping[str, Any], model: BackboneSettings) -> None:
        super().__init__()
        self.labels = labels
        self.attn = dict(attn)
        self.model_settings = model
        self.backbone = Backbone(model)
        self.aux: nn.Module | None = None
        self.aux_weight = 0.0  # the auxiliary head's share of the loss

    def settings(self) -> dict[str, Any]:
        """All that the plugin's ``rebuild`` needs, JSON-ready; where weights once came from is left out."""
        model = settings.as_dict(self.model_settings)
        for source in ("pretrained", "weights", "partial_weights"):
            del model[source]
        return {
            "model": {"name": self.name, **model},
            "attn": self.attn,
            "classes": list(self.labels.names),
            "palette": [list(colour) for colour in self.labels.palette],
        }

    @abstractmethod
    def decode(self, features: list[Tensor]) -> Tensor:
        """Logits (B, classes, h, w) at the decoder's size from the backbone's maps, finest first."""

    def forward(self, image: Tensor) -> Tensor | Outputs:
        """Logits at the images' size."""
        features = self.backbone(image)
        logits = resize(self.decode(features), image.shape[-2:])
        if not self.training:
            return logits
        # The auxiliary head reads the last map but one: stage 3 of four.
        return Outputs(logits, None if self.aux is None else resize(self.aux(features[-2]), image.shape[-2:]))


class Fusion(nn.Sequential):
    """A local mechanism in place of a 3×3 convolution, then batch norm and ReLU: (B, in, H, W) → (B, out, H, W).

    ``defaults`` are settings for a mechanism that has them and that the user left alone (heads per block).
    """

    def __init__(self, attn: Mapping[str, Any], in_dim: int, out_dim: int, **defaults: Any) -> None:
        known = attention.resolve(attn["name"], "local").settings()
        chosen = {**{k: v for k, v in defaults.items() if k in known}, **attn}
        if "out_dim" in known:
            chosen["out_dim"] = out_dim
        elif in_dim != out_dim:
            raise UserError(
                f"attn={attn['name']} has no out_dim, and this model needs one that maps {in_dim} channels to "
                f"{out_dim}: use model=deeplabv3plus, or give the mechanism an out_dim."
            )
        super().__init__(attention.build(dim=in_dim, socket="local", **chosen), nn.BatchNorm2d(out_dim), nn.ReLU())
