"""``vlp doctor``: is this installation sound, what can it use, and is a data set complete?"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from vlplatform import __version__, attention, registry
from vlplatform.cli import compose
from vlplatform.errors import UserError

HELP = "Check the installation, the devices and the plugins; with data=… also read a whole data set."
EPILOG = """examples:
  vlp doctor
  vlp doctor data=camvid data.root=CamVid"""

REQUIRED = (
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "datasets",
    "hydra-core",
    "huggingface_hub",
    "safetensors",
)
OPTIONAL = {"wandb": "the W&B tracker", "tensorboard": "the TensorBoard tracker"}
MARKS = {"ok": "ok  ", "absent": "–   ", "bad": "BAD "}

State = Literal["ok", "absent", "bad"]
"""``absent``: something optional is not there, which is no fault."""
Finding = tuple[str, State, str]
"""What was looked at, its state, and what was found."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Overrides that name a data set to be read, and the output form."""
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="data=… data.root=… to check a data set"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the findings; exit code 0 when nothing is wrong, 2 otherwise."""
    findings = [*_packages(), *_devices(), *_storage(), *_plugins()]
    if args.overrides:
        findings += _data(args.overrides)
    if args.json:
        rows = [{"what": w, "ok": state != "bad", "state": state, "found": found} for w, state, found in findings]
        print(json.dumps(rows, indent=1))
    else:
        for what, state, found in findings:
            print(f"{MARKS[state]} {what:<16} {found}")
        if any(state == "absent" for _, state, _ in findings):
            print("(–: optional and not here; nothing else needs it)")
    return 2 if any(state == "bad" for _, state, _ in findings) else 0


def _packages() -> list[Finding]:
    findings: list[Finding] = [
        ("vlplatform", "ok", f"{__version__} on Python {platform.python_version()}, {platform.system()}")
    ]
    for name in (*REQUIRED, *OPTIONAL):
        try:
            findings.append((name, "ok", version(name)))
        except PackageNotFoundError:
            if need := OPTIONAL.get(name):
                findings.append((name, "absent", f"not installed ({need} needs it)"))
            else:
                findings.append((name, "bad", f"not installed: pip install {name}"))
    java = shutil.which("java")
    use = "runs METEOR, SPICE and the official tokeniser, for scores of captions"
    findings.append(("java", "ok" if java else "absent", f"{'found' if java else 'not found'} (it {use})"))
    return findings


def _devices() -> list[Finding]:
    torch: Any = importlib.import_module("torch")
    found: list[Finding] = [("cpu", "ok", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")]
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        found.append((f"cuda:{index}", "ok", f"{torch.cuda.get_device_name(index)}, {memory:.0f} GiB"))
    if not torch.cuda.device_count():
        found.append(("cuda", "absent", "no device (everything runs on the CPU)"))
    return found


def _storage() -> list[Finding]:
    from vlplatform.data import cache_folder

    cache = cache_folder()
    existing = next(p for p in (cache, *cache.parents) if p.exists())
    free = shutil.disk_usage(existing).free / 2**30
    writable = os.access(existing, os.W_OK)
    note = f"{free:.0f} GiB free" if writable else "not writable (set VLP_CACHE to another folder)"
    return [("cache", "ok" if writable and free > 1 else "bad", f"{_home_relative(cache)}, {note}")]


def _plugins() -> list[Finding]:
    findings: list[Finding] = [("mechanisms", "ok", ", ".join(attention.catalogue()))]
    for name in registry.task_names():
        try:
            findings.append((f"task {name}", "ok", registry.task(name).summary))
        except UserError as error:
            findings.append((f"task {name}", "bad", str(error)))
    return findings


def _data(overrides: list[str]) -> list[Finding]:
    """Read every record of every split of the chosen data set; each bad one is named."""
    resolved = compose.compose(overrides)
    task = registry.task(resolved["task"]["name"]).build({g: resolved[g] for g in compose.GROUPS})
    findings: list[Finding] = []
    for split in ("train", "val", "test"):
        try:
            records = task.records(split)
        except UserError as error:
            findings.append((f"data {split}", "absent" if split == "test" else "bad", str(error)))
            continue
        faults: list[Finding] = []
        for index in range(len(records)):
            try:
                records[index]
            except UserError as error:
                faults.append((f"data {split}", "bad", str(error)))
        findings += faults or [(f"data {split}", "ok", f"{len(records)} records, all readable")]
    notes = task.describe().get("data", {}).get("notes", ())
    return [*findings, *(("notes", "ok", note) for note in notes)]


def _home_relative(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)
