"""Does a run survive being killed? Trains once undisturbed and once killed at random moments, and compares the bytes.

    python scripts/kill_resume.py --kills 20 -- run.py task=segmentation attn=bilateral trainer=smoke trainer.steps=60

The command is given ``out=``, ``name=`` and ``resume=auto``. ``kill -9`` comes at random moments after the first update
of each start, every other one at the next moment at which a checkpoint is being written. Compared at the end, bit for
bit: ``metrics.jsonl``, ``metrics.json``, the exported model, all tensors of the last checkpoint; ``report.html``
must be there. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vlplatform.engine.checkpoint import checkpoints, newest_checkpoint, step_of


def main() -> int:
    """Run, kill, continue, compare; prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--keep", type=Path, help="folder for both runs; else a temporary one")
    parser.add_argument("command", nargs="+", help="a Python program and its settings, without name=, out=, resume=")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="kill-resume-"))
    whole, cut = folder / "whole", folder / "cut"
    began = time.monotonic()
    if code := _start(args.command, whole).wait():
        return code
    seconds = time.monotonic() - began

    table = Table(
        "kill", "s after first update", "continued from", "in a save", "newest whole checkpoint", title=str(cut)
    )
    chance, kills, rounds = random.Random(args.seed), 0, 0
    while kills < args.kills:
        start = newest_checkpoint(cut / "checkpoints", lambda line: None)
        process = _start(args.command, cut)
        _wait_for_an_update(process, cut)
        after = chance.uniform(0, 2 * seconds / args.kills)
        time.sleep(after)
        while kills % 2 and process.poll() is None and not _saving(cut):
            time.sleep(0.001)
        if process.poll() is not None:  # it ended first: compare, and begin another one
            rounds += 1
            if process.returncode or list(_differences(whole, cut)):
                break
            shutil.rmtree(cut)
            continue
        process.kill()
        process.wait()
        kills += 1
        newest = newest_checkpoint(cut / "checkpoints", lambda line: None)
        table.add_row(str(kills), f"{after:.2f}", _name(start), "yes" if _saving(cut) else "", _name(newest))
    code = _start(args.command, cut).wait()
    differences = [f"exit code {code}"] if code else list(_differences(whole, cut))
    console = Console()
    console.print(table)
    console.print(f"{kills} kills, {rounds + 1} runs to the end · " + ("; ".join(differences) or "all bytes equal"))
    if args.keep is None and not differences:
        shutil.rmtree(folder)
    return bool(differences)


def _start(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    where = [f"out={folder.parent}", f"name={folder.name}", "resume=auto"]
    return subprocess.Popen([sys.executable, *command, *where], stdout=subprocess.DEVNULL)


def _wait_for_an_update(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until the run has logged once more than when it began (its opening cuts the file back)."""
    path = folder / "timings.jsonl"
    least = None
    while process.poll() is None:
        size = path.stat().st_size if path.exists() else None
        if size is not None:
            least = size if least is None else min(least, size)
            if size > least:
                return
        time.sleep(0.005)


def _saving(folder: Path) -> bool:
    return any((folder / "checkpoints").glob(".tmp-*"))


def _name(checkpoint: Path | None) -> str:
    return f"update {step_of(checkpoint)}" if checkpoint else "–"


def _differences(a: Path, b: Path) -> Iterator[str]:
    """What is not the same in two finished runs."""
    last = checkpoints(a / "checkpoints")[-1].relative_to(a)
    files = ["metrics.jsonl", "metrics.json", "best/model.safetensors"]
    files += [str(last / path.name) for path in sorted((a / last).glob("*.safetensors"))]
    for name in files:
        if not (b / name).exists() or (a / name).read_bytes() != (b / name).read_bytes():
            yield f"{name} differs"
    for run in (a, b):
        if not (run / "report.html").exists():  # its bytes hold times, which never repeat
            yield f"{run.name}/report.html is missing"


if __name__ == "__main__":
    raise SystemExit(main())
