"""The captioning table on Scenes: mechanisms × seeds at equal budget, mean ± standard deviation.

Every run is a command of its own (``vlp train task=captioning …``), several at a time with one thread each; what is
finished already is not run again, so the script can be stopped and started.

    python scripts/table_captioning.py --out runs/table --jobs 2
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MECHANISMS = ("sa", "nsa", "gsa", "ngsa", "dsa", "mdsa", "acf", "bilateral", "xlinear", "eta", "abs_pe")
SCORES = ("cider_d", "bleu4", "spatial_accuracy", "spatial_truth")
BUDGET = (
    "data.train=4000",
    "data.val=400",
    "data.test=20",
    "model.dim=128",
    "model.hidden=512",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "trainer.learning_rate=0.001",
    "trainer.log_every=100",
)


def choice(mechanism: str) -> list[str]:
    """The words that choose a mechanism: in the encoder of the same Transformer, but for the two that are models."""
    if mechanism == "acf":
        return ["model=acf"]
    return ["model=eta"] if mechanism == "eta" else ["model=transformer", f"attn={mechanism}"]


def run(mechanism: str, seed: int, steps: int, out: Path) -> None:
    """One training, unless it is there."""
    name = f"{mechanism}-{seed}"
    if (out / name / "metrics.json").is_file():
        return
    words = ["train", "task=captioning", *choice(mechanism), *BUDGET, f"seed={seed}", f"name={name}", f"out={out}"]
    words += [f"trainer.steps={steps}", f"trainer.eval_every={steps}", f"trainer.save_every={steps}", "overwrite=true"]
    begun = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    vlp = Path(sys.executable).with_name("vlp")
    done = subprocess.run([vlp, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr.strip() or done.stdout.strip()}")
    print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)


def table(out: Path, mechanisms: list[str], seeds: int) -> str:
    """The Markdown table of what is finished."""
    lines = [f"| mechanism | {' | '.join(SCORES)} | seeds |", "|---" * (len(SCORES) + 2) + "|"]
    for mechanism in mechanisms:
        files = [out / f"{mechanism}-{seed}" / "metrics.json" for seed in range(seeds)]
        found = [json.loads(file.read_text())["values"] for file in files if file.is_file()]
        if found:
            cells = [_cell([values[score] for values in found]) for score in SCORES]
            lines.append(f"| {mechanism} | {' | '.join(cells)} | {len(found)} |")
    return "\n".join(lines)


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return "–"
    spread = statistics.stdev(known) if len(known) > 1 else float("nan")
    return f"{statistics.mean(known):.3f} ± {spread:.3f}"


def main() -> None:
    """Train what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/table"))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(MECHANISMS))
    args = parser.parse_args()
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = [(m, seed) for seed in range(args.seeds) for m in args.only]
        list(pool.map(lambda job: run(job[0], job[1], args.steps, args.out), jobs))
    print(table(args.out, args.only, args.seeds))


if __name__ == "__main__":
    main()
