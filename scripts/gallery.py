"""Writes docs/mechanisms.md and its pictures from the catalogue (``--check`` only compares the text, exit code 1).

Each mechanism gets its equations (from its docstring), settings, cost, sockets, source, and a picture of the weights of
one query: on the patches of a Scenes image, or over the words of a Scenes caption for mechanisms that know only order.
Queries and keys are set to the tokens themselves, so that content attention shows what looks alike; everything else is
drawn at random and enlarged, to show what the idea does, not what a trained model has learnt.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform import attention
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.multi_head import MultiHeadAttention
from vlplatform.data.scenes import scene
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry
from vlplatform.interpret import draw
from vlplatform.interpret.capture import capture, evaluating

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURES = DOCS / "pictures" / "mechanisms"
SIDE, DIM, HEADS, POINT = 12, 64, 4, (0.46, 0.46)
ORDERED = ("bilateral_sa", "rel_pos", "acf1d", "dynamic_conv", "light_conv")
ORDER: tuple[attention.Socket, ...] = ("token", "fusion", "context", "local")
TITLES = {
    "token": "Over tokens",
    "fusion": "Over several memories",
    "context": "Over a feature map",
    "local": "In a window",
}


def patches(image: Tensor, side: int, dim: int) -> Tensor:
    """Standardised colours and contrasts of side × side patches, turned into ``dim`` numbers: (1, side², dim)."""
    pixels = image.permute(2, 0, 1)[None].float() / 255
    mean = F.adaptive_avg_pool2d(pixels, side)
    contrast = (F.adaptive_avg_pool2d(pixels**2, side) - mean**2).clamp_min(0).sqrt()
    features = torch.cat((mean, contrast), 1).flatten(2).transpose(1, 2)
    features = (features - features.mean(1, keepdim=True)) / (features.std(1, keepdim=True) + 1e-6)
    return features @ torch.randn(features.shape[-1], dim, generator=torch.Generator().manual_seed(0)) * 0.6


def words(text: str, dim: int) -> tuple[Tensor, list[str]]:
    """A random vector per word, the same for the same word: (1, N, dim)."""
    listed = re.findall(r"\w+", text.lower())
    vectors = {
        word: torch.randn(dim, generator=torch.Generator().manual_seed(i)) for i, word in enumerate(sorted(set(listed)))
    }
    return torch.stack([vectors[word] for word in listed])[None], listed


@torch.no_grad()
def prepare(module: nn.Module) -> nn.Module:
    """Queries and keys become the tokens themselves; the mechanism's own parameters are enlarged."""
    for part in module.modules():
        if isinstance(part, MultiHeadAttention):
            for layer in (part.query, part.key):
                if layer.weight.shape[0] == layer.weight.shape[1]:
                    layer.weight.copy_(torch.eye(len(layer.weight)) * 0.8)
                    layer.bias.zero_()
            for parameter in part.terms.parameters():
                parameter.mul_(3.0 if parameter.ndim < 3 else 1.5)
    return module.eval()


@torch.no_grad()
def picture(mechanism: Mechanism, socket: attention.Socket) -> Any:
    """A figure of the mechanism's weights, or none where it has none."""
    torch.manual_seed(1)
    shown = scene(1, 7)
    image = torch.as_tensor(shown.image)
    tokens, geometry = patches(image, SIDE, DIM), Geometry.from_grid(SIDE, SIDE)
    module = prepare(
        attention.build(
            mechanism.name, dim=DIM, socket=socket, **({"heads": HEADS} if socket in ("token", "fusion") else {})
        )
    )
    query = int(POINT[0] * SIDE) * SIDE + int(POINT[1] * SIDE)
    if socket == "token" and mechanism.name in ORDERED:
        sentence, listed = words(shown.captions[0], DIM)
        with capture(module) as captured:
            module(sentence)
        return matrix(captured.weights(captured.names("tokens")[0])[0], listed)
    if socket in ("token", "fusion"):
        sentence, _ = words(shown.captions[0], DIM)
        with capture(module) as captured:
            if socket == "fusion":
                module(tokens, [tokens, sentence])
            else:
                module(tokens, geometry=geometry)
        weights = [captured.weights(name) for name in captured.names("tokens")]
        maps = next(w for w in weights if w.shape[-1] >= SIDE * SIDE)[0, :, query, : SIDE * SIDE]
        return overlays(image, [each.view(SIDE, SIDE) for each in maps[:HEADS]])
    operator: Any = module
    if not hasattr(operator, "attention_maps"):
        return None
    features = patches(image, 2 * SIDE, DIM).transpose(1, 2).unflatten(2, (2 * SIDE, 2 * SIDE))
    with evaluating(module):
        found = operator.attention_maps(features, int(POINT[0] * 2 * SIDE), int(POINT[1] * 2 * SIDE))
    return overlays(image, [each[0].mean(0) for each in found.values()], list(found))


def overlays(image: Tensor, maps: list[Tensor], names: list[str] | None = None) -> Any:
    """One image per map, the query marked."""
    figure, axes = plt.subplots(1, len(maps), figsize=(1.9 * len(maps), 2.2), squeeze=False, layout="constrained")
    for i, (axis, heat) in enumerate(zip(axes[0], maps)):
        axis.imshow(draw.heat_overlay(image.numpy(), heat - heat.min(), POINT), interpolation="nearest")
        axis.set_title(names[i] if names else f"head {i + 1}", fontsize=8)
        axis.axis("off")
    return figure


def matrix(weights: Tensor, listed: list[str]) -> Any:
    """The weights of two heads, query by key."""
    figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.1))
    for i, axis in enumerate(axes):
        axis.imshow(weights[i], cmap="viridis", vmin=0)
        axis.set_xticks(range(len(listed)), listed, rotation=90, fontsize=6)
        axis.set_yticks(range(len(listed)), listed if i == 0 else [], fontsize=6)
        axis.set_title(f"head {i + 1}", fontsize=8)
    figure.tight_layout(pad=0.4)
    return figure


def equations(mechanism: Mechanism) -> str:
    """The docstring up to its arguments, as Markdown."""
    text = inspect.cleandoc(inspect.getdoc(mechanism.build) or "")
    text = re.split(r"\n(?:Args|Raises|Attributes):", text)[0].strip()
    text = re.sub(r"^=+ +=+\n|\n=+ +=+(?=\n|$)", "\n", text)
    text = re.sub(r"^(``[^`]+``(?: \([^)]*\))?) {2,}", r"* \1: ", text, flags=re.M)
    text = re.sub(r":(?:class|func|mod|meth|attr):`~?([\w.]+\.)?(\w+)`", r"`\2`", text)
    return text.replace("``", "`")


def cost(mechanism: Mechanism, socket: attention.Socket) -> str:
    """Parameters and multiply–adds at one usual size."""
    dim, size = (512, (196,)) if socket in ("token", "fusion") else (256, (96, 96))
    operator: Any = attention.build(mechanism.name, dim=dim, socket=socket)
    count = f"{sum(p.numel() for p in operator.parameters()):,} parameters"
    if not hasattr(operator, "macs"):
        return count
    given = (196, (196, 196)) if socket == "fusion" else size
    at = f"{dim} × 196 tokens" if socket in ("token", "fusion") else f"{dim} × 96 × 96"
    return f"{count}, {operator.macs(*given) / 1e9:.3f} G multiply–adds at {at}"


def abilities(mechanism: Mechanism) -> str:
    """What a token mechanism needs and can do, by trying it."""
    module = attention.build(mechanism.name, dim=16, heads=2, socket="token").eval()
    tokens, other = torch.randn(1, 4, 16), torch.randn(1, 3, 16)
    corners = torch.tensor([[0.0, 0, 1, 1], [0, 0, 2, 1], [1, 1, 3, 2], [2, 0, 3, 3]])[None]
    kinds: dict[str, tuple[Any, Any]] = {
        "nothing": (None, None),
        "geometry, points at least": (Geometry.from_points(corners[..., :2]), Geometry.from_points(corners[:, :3, :2])),
        "geometry with boxes": (Geometry.from_boxes(corners), Geometry.from_boxes(corners[:, :3])),
        "geometry and the picture's size": (
            Geometry.from_boxes(corners, (3.0, 3.0)),
            Geometry.from_boxes(corners[:, :3], (3.0, 3.0)),
        ),
        "a grid": (Geometry.from_grid(2, 2), Geometry.from_grid(1, 3)),
    }

    def works(*arguments: Tensor, **named: Any) -> bool:
        try:
            with torch.no_grad():
                module(*arguments, **named)
        except UserError:
            return False
        return True

    need = next(kind for kind, (own, _) in kinds.items() if works(tokens, geometry=own))
    own, its = kinds[need]
    causal = works(tokens, geometry=own, causal=True)
    cached = causal and works(tokens, geometry=own, causal=True, cache=attention.Cache())
    can = [
        "causal calls and caches" if cached else "causal calls" if causal else "no causal calls",
        "keys of another sequence"
        if works(tokens, other, geometry=None if own is None else (own, its))
        else "self-attention only",
    ]
    return f"Needs {need}; {', '.join(can)}"


def source(mechanism: Mechanism) -> str:
    """Paper and equations."""
    mark = "eq. " if mechanism.equations[:1].isdigit() else ""
    return f"{mechanism.paper[:1].upper()}{mechanism.paper[1:]}, {mark}{mechanism.equations}"


def entry(mechanism: Mechanism, socket: attention.Socket, pictures: bool) -> str:
    """The section of one mechanism; its picture is drawn on request."""
    file = PICTURES / f"{mechanism.name}.png"
    if pictures and (figure := picture(mechanism, socket)) is not None:
        figure.savefig(file, dpi=90, pil_kwargs={"optimize": True})
        plt.close(figure)
    families = [f"`{name}` in the {where} socket" for where, name in mechanism.families.items()]
    settings = ", ".join(f"`{name}={value.get('default')}`" for name, value in mechanism.settings().items()) or "none"
    lines = [
        f"### {mechanism.name}",
        f"{mechanism.summary[0].upper()}{mechanism.summary[1:]}. *{source(mechanism)}*",
        "",
        equations(mechanism),
        "",
        f"* Sockets: {', '.join(mechanism.sockets)}" + (f"; also called {', '.join(families)}" if families else ""),
        f"* Kind: {'score term, combines with others' if mechanism.term else 'module of its own'}",
        *([f"* {abilities(mechanism)}"] if socket == "token" else []),
        f"* Cost: {cost(mechanism, socket)}",
        f"* Settings: {settings}",
    ]
    if file.exists():
        lines += ["", f"![weights of {mechanism.name}](pictures/mechanisms/{file.name})"]
    return "\n".join(lines) + "\n"


def page(pictures: bool) -> str:
    """The whole page."""
    parts = [
        "# Mechanisms\n",
        "Written by `scripts/gallery.py` from the catalogue. In the pictures queries and keys are the tokens "
        "themselves, so that content attention shows what looks alike; everything else is drawn at random and "
        "enlarged. They show what an idea does, not what a trained model has learnt. Colours run from the least weight "
        "to the greatest, however close they are (acf2d's softmax of weights, say, is nearly flat); the red dot is the "
        "query. Sources in full: [README](../README.md#references).\n",
        "Over tokens, `eta` and `gbc` have a residual and norm around each of their attentions inside; `msa` and "
        "`mdsa` have one in each branch (`form=code`) and expect another around them. Layers that count their depth "
        "(Swin's shift, ACF's growth, `abs_pe` at the bottom) take it from `depth=Depth(layer, shared)`, which "
        "`vlplatform.layers` passes along. A decoder's step is given the new tokens and a `Cache`; its geometry, if "
        "any, is a pair: of the new tokens, and of all so far.\n",
    ]
    for socket in ORDER:
        members = [m for m in attention.catalogue().values() if m.sockets[0] == socket]
        parts.append(f"## {TITLES[socket]} (`{socket}`)\n")
        parts += [entry(mechanism, socket, pictures) for mechanism in members]
    return "\n".join(parts)


def main() -> int:
    """Rewrite or compare."""
    file = DOCS / "mechanisms.md"
    if "--check" in sys.argv:
        return int(file.read_text(encoding="utf-8") != page(False))
    PICTURES.mkdir(parents=True, exist_ok=True)
    file.write_text(page(True), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
