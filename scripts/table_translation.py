"""The translation table on Multi30k, English into German: mechanisms × seeds, mean ± standard deviation of BLEU.

Every run is ``vlp train task=translation data=multi30k attn=MECHANISM`` with that data set's recipe (the small
Transformer of Wu et al. 2021, text only, lower case, joint BPE), scored by ``vlp eval --split test_2016_flickr``. A run
that was stopped goes on, and what is finished is not run again, so the script can be stopped and started; settings,
steps or data other than those that a run began with are refused.

    python scripts/table_translation.py --root multi30k --out runs/table_translation --jobs 2
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MECHANISMS = ("sa", "bilateral", "nsa", "rel_pos", "dynamic_conv", "acf1d")
SPLIT = "test_2016_flickr"
LANGUAGES = ("en", "de")
SCORES = ("bleu", "sacrebleu", "chrf")


def run(mechanism: str, seed: int, args: argparse.Namespace) -> None:
    """One training and its evaluation, unless they are there."""
    name = f"{mechanism}-{seed}"
    folder, root = args.out / name, args.root.resolve()
    _same_data(folder / "settings.json", root)
    begun = time.monotonic()
    words = ["task=translation", "data=multi30k", f"data.root={root}", f"attn={mechanism}"]
    words += [f"seed={seed}", f"name={name}", f"out={args.out}", "resume=auto", *args.settings]
    words += [f"trainer.steps={args.steps}"] if args.steps else []
    _vlp(name, args.threads, ["train", *words])  # of a finished run it but compares the settings
    if _scores(folder).is_file() and _scores(folder).stat().st_mtime > (folder / "metrics.json").stat().st_mtime:
        return  # else the run has grown longer since
    _vlp(
        name, args.threads, ["eval", str(folder), "--split", SPLIT, "--batch-size", "64", "--out", str(_scores(folder))]
    )
    print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)


def table(out: Path, mechanisms: list[str], seeds: int) -> str:
    """The Markdown table of what is finished."""
    lines = [f"| mechanism | {' | '.join(SCORES)} | seeds |", "|---" * (len(SCORES) + 2) + "|"]
    for mechanism in mechanisms:
        files = [_scores(out / f"{mechanism}-{seed}") for seed in range(seeds)]
        found = [json.loads(file.read_text())["values"] for file in files if file.is_file()]
        if found:
            cells = [_cell([values[score] for values in found if score in values]) for score in SCORES]
            lines.append(f"| {mechanism} | {' | '.join(cells)} | {len(found)} |")
    return "\n".join(lines)


def _same_data(settings: Path, root: Path) -> None:
    """Refuse a run that began with other data, which ``vlp train`` would take for the same ones moved."""
    if settings.is_file() and (given := json.loads(settings.read_text())["data"]["root"]) != str(root):
        raise SystemExit(f"{settings} has data.root={given}, not {root}: give that as --root, or another --out.")


def _has_test_set(root: Path) -> None:
    """Refuse data that the runs could be trained on and not scored."""
    for language in LANGUAGES:
        if not any((root / f"{SPLIT}.{language}{ending}").is_file() for ending in ("", ".gz")):
            raise SystemExit(f"{root} lacks {SPLIT}.{language} (or .gz), which the runs are scored on: add it.")


def _vlp(name: str, threads: int, words: list[str]) -> None:
    vlp, environment = Path(sys.executable).with_name("vlp"), {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([vlp, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: vlp {words[0]} failed: {done.stderr.strip() or done.stdout.strip()}")


def _scores(folder: Path) -> Path:
    return folder / f"{SPLIT}.json"


def _cell(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else "–"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def main() -> None:
    """Train and score what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder of train.en, train.de, …, test_2016_flickr.de")
    parser.add_argument("--out", type=Path, default=Path("runs/table_translation"))
    parser.add_argument("--steps", type=int, help="updates at most; the recipe's unless given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="of each run")
    parser.add_argument("--only", nargs="*", default=list(MECHANISMS))
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of all runs")
    args = parser.parse_args()
    _has_test_set(args.root)
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = [(mechanism, seed) for seed in range(args.seeds) for mechanism in args.only]
        list(pool.map(lambda job: run(job[0], job[1], args), jobs))
    print(table(args.out, args.only, args.seeds))


if __name__ == "__main__":
    main()
