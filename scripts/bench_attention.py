"""Time and peak memory, forward and backward, of every token attention against plain attention of the same sizes.

    python scripts/bench_attention.py [--cases 50x50 10x196 4x1024] [--mechanisms sa,dsa,gsa] [--json FILE]

A case is a batch and a number of tokens, which lie on a grid or, where none divides them, in boxes of their own per
item. The whole module is measured, projections included, in float32 on the CPU and under bfloat16 autocast on a GPU.
Times are medians of repeats in which the mechanisms take turns; memory is the peak above what stood before the
forward pass, gradients included.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from measure import peak_bytes, seconds
from torch import nn

from vlplatform.attention import build, catalogue
from vlplatform.attention.xlinear import XLinear
from vlplatform.engine.memory import keep_freed_memory
from vlplatform.geometry import Geometry

BARS = {  # mechanism → highest ratio to plain attention by tokens, from the project's own aims
    "nsa": {50: 1.15, 196: 1.15},
    "bilateral_sa": {50: 1.15, 196: 1.15, 1024: 2.0},
    "rel_pos": {50: 1.15, 196: 1.15},
    "dsa": {50: 1.15, 196: 1.15, 1024: 2.5},
    "gsa": {50: 1.8, 196: 1.8},
    "acf1d": {50: 1.5, 196: 1.5},
    "acf2d": {50: 1.5, 196: 1.5},
    "msa": {50: 3.0, 196: 3.0},
}


@dataclass
class Row:
    """One mechanism in one case."""

    mechanism: str
    batch: int
    tokens: int
    milliseconds: float = 0.0
    mebibytes: float = 0.0
    time_ratio: float = 0.0
    memory_ratio: float = 0.0


def geometry_of(batch: int, tokens: int, device: torch.device) -> Geometry:
    """The squarest grid of so many tokens, or boxes per item where that would be a thin strip."""
    height = max(side for side in range(1, int(tokens**0.5) + 1) if tokens % side == 0)
    if height * height * 2 > tokens:
        return Geometry.from_grid(height, tokens // height, device=device)
    corner, side = torch.rand(2, batch, tokens, 2, device=device)
    return Geometry.from_boxes(torch.cat((corner, corner + side / 2), -1), size=(2.0, 2.0))


def measure(names: list[str], batch: int, tokens: int, options: argparse.Namespace) -> list[Row]:
    """The rows of one case."""
    device = torch.device(options.device)
    torch.manual_seed(0)
    geometry = geometry_of(batch, tokens, device)
    if options.boxes:
        corner, side = torch.rand(2, batch, tokens, 2, device=device)
        geometry = Geometry.from_boxes(torch.cat((corner, corner + side / 2), -1), size=(2.0, 2.0))
    steps, rows = {}, []
    for name in names:
        if geometry.grid is None and name in ("swin_window", "halo_window"):
            continue
        module = build(name, dim=options.dim, heads=options.heads, socket="token").to(device).train()
        x = torch.randn(batch, tokens, options.dim, device=device, requires_grad=True)

        def work(module: nn.Module = module, x: torch.Tensor = x) -> None:
            with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
                out = module(x, geometry=geometry)
            out.backward(x.detach().to(out.dtype))
            x.grad = None
            module.zero_grad(set_to_none=True)

        work()
        rows.append(Row(name, batch, tokens, mebibytes=peak_bytes(work, device) / 2**20))
        steps[name] = work
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.repeats):
        for name, work in steps.items():
            times[name].append(seconds(work, device))
    for row in rows:
        row.milliseconds = 1e3 * statistics.median(times[row.mechanism])
    plain = next(row for row in rows if row.mechanism == "sa")
    for row in rows:
        row.time_ratio, row.memory_ratio = row.milliseconds / plain.milliseconds, row.mebibytes / plain.mebibytes
    return rows


class ElementWise(XLinear):
    """``xlinear`` as it is usually written: products of every query and key, element by element."""

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """(B, N, D) and (B, M, D) → (B, N, D)."""
        assert self.value_query is not None
        assert self.channel is not None
        of_query, of_value = self._heads(self.query(query)), self._heads(self.value_query(query))
        keys, values = self._heads(self.key(key)), self._heads(self.value(key))
        joint = self.middle(of_query[:, :, :, None] * keys[:, :, None]).relu()  # (B, h, N, M, c)
        weights = self.spatial(joint)[..., 0].softmax(-1)
        gate = self.channel(joint.mean(3)).sigmoid()
        summed = (weights[..., None] * (values[:, :, None] * of_value[:, :, :, None])).sum(3)
        return (gate * summed).transpose(1, 2).flatten(2)


def measure_xlinear(options: argparse.Namespace) -> list[str]:
    """Lines of a table: 17 queries over 50 keys, D 768, 8 heads, batch 50, against the element-wise form."""
    device = torch.device(options.device)
    torch.manual_seed(0)
    query = torch.randn(50, 17, 768, device=device, requires_grad=True)
    key = torch.randn(50, 50, 768, device=device, requires_grad=True)
    ours, naive = (kind(768, heads=8).to(device).train() for kind in (XLinear, ElementWise))
    naive.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(query, key), naive(query, key), rtol=1e-3, atol=1e-4)
    works = {}
    for name, module in (("element-wise", naive), ("xlinear", ours)):

        def work(module: nn.Module = module) -> None:
            module(query, key).sum().backward()
            query.grad = key.grad = None
            module.zero_grad(set_to_none=True)

        work()
        works[name] = work
    memory = {name: peak_bytes(work, device) / 2**20 for name, work in works.items()}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(options.repeats):
        for name, work in works.items():
            times[name].append(seconds(work, device))
    best = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    lines = ["", "| 17 queries, 50 keys | ms | ratio | bar | MiB | ratio | bar |", "|---|---|---|---|---|---|---|"]
    for name in works:
        ratio, share = best[name] / best["element-wise"], memory[name] / memory["element-wise"]
        lines.append(f"| {name} | {best[name]:.0f} | {ratio:.2f} | ≤ 0.3 | {memory[name]:.0f} | {share:.2f} | ≤ 0.3 |")
    return lines


def main() -> int:
    """Measure, print Markdown, write JSON; exit code 1 where a bar is missed."""
    known = [m.name for m in catalogue().values() if "token" in m.sockets]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["50x50", "10x196", "4x1024"], metavar="BATCHxTOKENS")
    parser.add_argument("--mechanisms", default=",".join(known))
    parser.add_argument("--boxes", action="store_true", help="boxes of their own per item in place of a grid")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--xlinear", action="store_true", help="only xlinear against its element-wise form")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    if options.xlinear:
        print("\n".join(measure_xlinear(options)))
        return 0
    names = options.mechanisms.split(",")
    names = names if "sa" in names else ["sa", *names]
    cases = [tuple(int(n) for n in case.split("x")) for case in options.cases]
    rows = [row for batch, tokens in cases for row in measure(names, batch, tokens, options)]

    on_gpu = options.device.startswith("cuda")
    machine = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU, {options.threads} threads"
    print(f"{datetime.date.today()}, {machine}, torch {torch.__version__}, D {options.dim}, {options.heads} heads\n")
    print("| mechanism | batch | tokens | ms | / sa | MiB | / sa | bar | |\n|---|---|---|---|---|---|---|---|---|")
    missed = False
    for row in rows:
        bar = BARS.get(row.mechanism, {}).get(row.tokens)
        verdict = "" if bar is None else "pass" if row.time_ratio <= bar else "FAIL"
        missed |= verdict == "FAIL"
        print(
            f"| {row.mechanism} | {row.batch} | {row.tokens} | {row.milliseconds:.1f} | {row.time_ratio:.2f} "
            f"| {row.mebibytes:.0f} | {row.memory_ratio:.2f} | {'' if bar is None else f'≤ {bar}'} | {verdict} |"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
