"""What an encoder's attention lets its tokens know of places: a probe on Scenes, mechanisms × seeds.

A two-layer encoder over detector-like regions (vectors that do not carry positions, and boxes) learns, from the outputs
of two things, how the first lies to the second: left of, right of, above, below. Words, decoder, search are left out,
so that the table says what the mechanism itself can tell. Chance is 1/4; who knows the axis alone comes to 1/2.

    python scripts/probe_spatial.py [--steps 600] [--seeds 3] [--only sa gsa …]
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlp_captioning.readers.scenes import ScenesVisuals, Settings
from vlplatform.data.scenes.relations import PLACES
from vlplatform.geometry import Geometry
from vlplatform.layers import Encoder

MECHANISMS = ("sa", "nsa", "gsa", "ngsa", "dsa", "mdsa", "acf2d", "bilateral", "xlinear", "rel_pe", "abs_pe")
DIM, HEADS, LAYERS, BATCH = 64, 4, 2, 64

Scenes = list[tuple[Tensor, Tensor, list[tuple[int, int, int]]]]
"""Features (N, F), boxes (N, 4), and the clear pairs: first, second, number of the relation in ``PLACES``."""


class Probe(nn.Module):
    """Encoder, and a small network over the outputs of two things."""

    def __init__(self, attn: str, width: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.map = nn.Linear(width, DIM)
        self.encoder = Encoder(DIM, LAYERS, attn=attn, heads=HEADS, hidden=2 * DIM, dropout=0.0)
        self.tell = nn.Sequential(nn.Linear(2 * DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, len(PLACES)))

    def forward(self, features: Tensor, boxes: Tensor, mask: Tensor, pairs: Tensor) -> Tensor:
        """Logits (P, 4) of the pairs (P, 3): scene, first, second."""
        place = Geometry.from_boxes(boxes, (self.size, self.size))
        tokens = self.encoder(self.map(features), geometry=place, mask=mask)[0]
        scene, first, second = pairs.unbind(1)
        return self.tell(torch.cat((tokens[scene, first], tokens[scene, second]), -1))


def read(split: str, settings: Settings) -> Scenes:
    """The scenes of a split."""
    visuals = ScenesVisuals(settings)
    found: Scenes = []
    for item in visuals.items(split):
        seen, facts = visuals.visual(item), visuals.facts(item.id)
        assert seen.features is not None
        assert seen.boxes is not None
        pairs = [
            (a, b, relation)
            for a in facts.numbers
            for b in facts.numbers
            for relation, name in enumerate(PLACES)
            if a != b and facts.holds(name, a, b)
        ]
        found.append((seen.features, seen.boxes, pairs))
    return found


def batch(scenes: Scenes) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """What :class:`Probe` takes, padded, and the relations (P,)."""
    longest = max(len(features) for features, _, _ in scenes)
    features = torch.stack([F.pad(f, (0, 0, 0, longest - len(f))) for f, _, _ in scenes])
    boxes = torch.stack([torch.cat((b, b[:1].expand(longest - len(b), 4))) for _, b, _ in scenes])
    mask = torch.tensor([[i < len(f) for i in range(longest)] for f, _, _ in scenes])
    told = [(i, a, b, relation) for i, (_, _, pairs) in enumerate(scenes) for a, b, relation in pairs]
    pairs = torch.tensor(told)
    return (features, boxes, mask, pairs[:, :3]), pairs[:, 3]


def accuracy(attn: str, train: Scenes, val: Scenes, *, seed: int, steps: int, size: int) -> tuple[float, float]:
    """Shares of the pairs of ``val`` whose relation, and whose axis, a probe tells after training."""
    torch.manual_seed(seed)
    model = Probe(attn, train[0][0].shape[1], size)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        inputs, relations = batch([train[i] for i in torch.randint(len(train), (BATCH,)).tolist()])
        loss = F.cross_entropy(model(*inputs), relations)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    inputs, relations = batch(val)
    with torch.no_grad():
        chosen = model.eval()(*inputs).argmax(-1)
    return _share(chosen == relations), _share(chosen // 2 == relations // 2)


def _share(right: Tensor) -> float:
    return float(right.double().mean())


def main() -> None:
    """Train the probes and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(MECHANISMS))
    args = parser.parse_args()
    settings = Settings(train=2000, val=300, test=20)
    train, val = read("train", settings), read("val", settings)
    print("| mechanism | relation | axis | seeds |\n|---|---|---|---|", flush=True)
    for attn in args.only:
        runs: Any = [
            accuracy(attn, train, val, seed=s, steps=args.steps, size=settings.size) for s in range(args.seeds)
        ]
        cells = " | ".join(_cell(values) for values in zip(*runs))
        print(f"| {attn} | {cells} | {args.seeds} |", flush=True)


def _cell(values: tuple[float, ...]) -> str:
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


if __name__ == "__main__":
    main()
