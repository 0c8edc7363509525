"""Time and peak memory, forward and backward, of every feature-map operator against the 3×3 convolution and unfold.

    python scripts/bench_maps.py [--sizes 65x65 97x97] [--channels 256] [--operators conv,local_bilateral] [--json FILE]

Freed memory is kept between the steps, as in a training run. Times are medians of repeats in which the operators take
turns, so that whatever else the machine does hits all alike.
Memory is the peak above what stood before the forward pass, the gradients included:
on CUDA by the allocator's own count; on the CPU by PyTorch's profiler, which sees every tensor allocated and freed (not
what the convolution's library takes for itself).
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
import torch.nn.functional as F
from measure import peak_bytes, seconds
from torch import Tensor, nn

from vlplatform.attention import build, catalogue
from vlplatform.attention.local import LocalBilateral
from vlplatform.engine.memory import keep_freed_memory

DENSE, ROOM = ("nonlocal", "nonlocal_rpe", "bilateral_nl"), 12 * 2**30  # bytes that their HW×HW weights may take


class Unfold(LocalBilateral):
    """``local_bilateral`` as it is usually written: keys and values unfolded into k² copies."""

    def forward(self, x: Tensor) -> Tensor:
        """``x`` (B, C, H, W) → (B, C', H, W)."""
        batch, _, height, width = x.shape
        places, heads, pixels = self.kernel**2, self.heads, height * width
        query, key, value = (self.projections[name](x) for name in ("query", "key", "value"))
        columns = (F.unfold(m, self.kernel, padding=self.kernel // 2) for m in (key, value))
        keys, values = (m.view(batch, heads, -1, places, pixels) for m in columns)
        logits = torch.einsum("bmdp,bmdtp->bmtp", query.view(batch, heads, -1, pixels), keys)
        if self.position is not None:
            logits = logits + self.position(query).view(batch, places, heads, pixels).transpose(1, 2)
        inside = F.unfold(x.new_ones(1, 1, height, width), self.kernel, padding=self.kernel // 2)
        weights = logits.masked_fill(inside.view(1, 1, places, pixels) == 0, float("-inf")).softmax(2)
        out = torch.einsum("bmtp,bmdtp->bmdp", weights, values)
        return self.output(out.reshape(batch, -1, height, width))


@dataclass
class Row:
    """One operator at one size; a reason in place of numbers where it was left out."""

    operator: str
    size: str
    milliseconds: float | None = None
    mebibytes: float | None = None
    to_conv: float | None = None
    to_unfold: float | None = None
    memory_to_unfold: float | None = None
    skipped: str = ""


def step(module: nn.Module, x: Tensor, gradient: Tensor) -> None:
    """Forward and backward; the gradients are dropped afterwards."""
    module(x).backward(gradient)
    x.grad = None
    module.zero_grad(set_to_none=True)


def measure(names: list[str], size: tuple[int, int], options: argparse.Namespace) -> list[Row]:
    """The rows of one size."""
    device, (height, width) = torch.device(options.device), size
    torch.manual_seed(0)
    rows, steps = [], {}
    for name in names:
        row = Row(name, f"{height}x{width}")
        rows.append(row)
        dense = 4 * (height * width) ** 2 * 3
        if name in DENSE and dense > ROOM:
            row.skipped = f"left out: its {height * width}² weights need {dense / 2**30:.0f} GiB"
            continue
        socket = "local" if name == "unfold" or "local" in catalogue()[name].sockets else "context"
        module = Unfold(options.channels) if name == "unfold" else build(name, dim=options.channels, socket=socket)
        module = module.to(device).train()
        x = torch.randn(1, options.channels, height, width, device=device, requires_grad=True)
        with torch.no_grad():
            gradient = torch.randn_like(module(x))

        def work(module: nn.Module = module, x: Tensor = x, gradient: Tensor = gradient) -> None:
            step(module, x, gradient)

        work()
        row.mebibytes = peak_bytes(work, device) / 2**20
        steps[name] = work
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(options.repeats):
        for name, work in steps.items():
            if turn < 3 or sum(times[name]) < options.seconds:
                times[name].append(seconds(work, device))
    for row in rows:
        if row.operator in times:
            row.milliseconds = 1e3 * statistics.median(times[row.operator])
    base = {row.operator: row for row in rows}
    for row in rows:
        conv, unfold = base.get("conv"), base.get("unfold")
        if row.milliseconds and conv and conv.milliseconds:
            row.to_conv = row.milliseconds / conv.milliseconds
        if row.milliseconds and unfold and unfold.milliseconds:
            row.to_unfold = row.milliseconds / unfold.milliseconds
        if row.mebibytes and unfold and unfold.mebibytes:
            row.memory_to_unfold = row.mebibytes / unfold.mebibytes
    return rows


def bars(rows: list[Row]) -> list[str]:
    """The bars that can be judged from the rows, each with its figure."""
    by = {(row.operator, row.size): row for row in rows}
    lines = []
    for row in rows:
        other = by.get(("crisscross", row.size))
        checks: list[tuple[str, float | None, float]] = []
        if row.operator == "local_bilateral":
            checks = [
                ("time / conv", row.to_conv, 1.0),
                ("time / unfold", row.to_unfold, 0.4),
                ("memory / unfold", row.memory_to_unfold, 0.3),
            ]
        elif row.operator == "bilateral_cc" and row.milliseconds and other and other.milliseconds:
            checks = [("time / crisscross", row.milliseconds / other.milliseconds, 1.3)]
        for what, value, bar in checks:
            if value is not None:
                verdict = "pass" if value <= bar else "FAIL"
                lines.append(f"| {row.operator} | {row.size} | {what} | {value:.2f} | ≤ {bar} | {verdict} |")
    return lines


def main() -> int:
    """Measure, print Markdown, write JSON; exit code 1 where a bar is missed."""
    local = [name for name, m in catalogue().items() if "local" in m.sockets]
    context = [name for name, m in catalogue().items() if "context" in m.sockets]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["65x65", "97x97", "128x256"])
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--operators", default=",".join(["unfold", *local, *context]))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=20.0, help="per operator and size, after three repeats")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    names = options.operators.split(",")
    sizes = [(int(height), int(width)) for height, width in (size.split("x") for size in options.sizes)]
    rows = [row for size in sizes for row in measure(names, size, options)]

    on_gpu = options.device.startswith("cuda")
    machine = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU, {options.threads} threads"
    torch_is = f"torch {torch.__version__}, float32, batch 1, {options.channels} channels"
    print(f"{datetime.date.today()}, {machine}, {torch_is}\n")
    print("| operator | map | ms | / conv | / unfold | MiB | / unfold |\n|---|---|---|---|---|---|---|")
    for row in rows:
        numbers = (row.milliseconds, row.to_conv, row.to_unfold, row.mebibytes, row.memory_to_unfold)
        forms = ("{:.0f}", "{:.2f}", "{:.2f}", "{:.0f}", "{:.2f}")
        cells = ["" if number is None else form.format(number) for form, number in zip(forms, numbers)]
        print(
            f"| {row.operator} | {row.size} | {' | '.join(cells)} |"
            if not row.skipped
            else f"| {row.operator} | {row.size} | {row.skipped} |||||"
        )
    verdicts = bars(rows)
    print("\n| operator | map | bar | measured | wanted | |\n|---|---|---|---|---|---|", *verdicts, sep="\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return int(any("FAIL" in line for line in verdicts))


if __name__ == "__main__":
    sys.exit(main())
