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
from typing import Any

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
        print(json.dumps([{"what": what, "ok": ok, "found": found} for what, ok, found in findings], indent=1))
    else:
        for what, ok, found in findings:
            print(f"{'ok  ' if ok else 'BAD '} {what:<16} {found}")
    return 0 if all(ok for _, ok, _ in findings) else 2


Finding = tuple[str, bool, str]


def _packages() -> list[Finding]:
    findings: list[Finding] = [
        ("vlplatform", True, f"{__version__} on Python {platform.python_version()}, {platform.system()}")
    ]
    for name in (*REQUIRED, *OPTIONAL):
        try:
            findings.append((name, True, version(name)))
        except PackageNotFoundError:
            need = OPTIONAL.get(name)
            findings.append((name, need is not None, f"not installed{f' ({need} needs it)' if need else ''}"))
    java = shutil.which("java")
    findings.append(("java", True, "found" if java else "not found (only METEOR and SPICE need it)"))
    return findings


def _devices() -> list[Finding]:
    torch: Any = importlib.import_module("torch")
    found: list[Finding] = [("cpu", True, f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")]
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        found.append((f"cuda:{index}", True, f"{torch.cuda.get_device_name(index)}, {memory:.0f} GiB"))
    if not torch.cuda.device_count():
        found.append(("cuda", True, "no device (everything runs on the CPU)"))
    return found


def _storage() -> list[Finding]:
    from vlplatform.data import cache_folder

    cache = cache_folder()
    existing = next(p for p in (cache, *cache.parents) if p.exists())
    free = shutil.disk_usage(existing).free / 2**30
    writable = os.access(existing, os.W_OK)
    note = f"{free:.0f} GiB free" if writable else "not writable (set VLP_CACHE to another folder)"
    return [("cache", writable and free > 1, f"{_home_relative(cache)}, {note}")]


def _plugins() -> list[Finding]:
    findings: list[Finding] = [("mechanisms", True, ", ".join(attention.catalogue()))]
    for name in registry.task_names():
        try:
            findings.append((f"task {name}", True, registry.task(name).summary))
        except UserError as error:
            findings.append((f"task {name}", False, str(error)))
    return findings


def _data(overrides: list[str]) -> list[Finding]:
    """Read every record of every split of the chosen data set; each bad one is named."""
    resolved = compose.compose([*overrides, "model.pretrained=false"])
    task = registry.task(resolved["task"]["name"]).build({g: resolved[g] for g in compose.GROUPS})
    findings: list[Finding] = []
    for split in ("train", "val", "test"):
        try:
            records = task.records(split)
        except UserError as error:
            findings.append((f"data {split}", split == "test", str(error)))
            continue
        faults: list[Finding] = []
        for index in range(len(records)):
            try:
                records[index]
            except UserError as error:
                faults.append((f"data {split}", False, str(error)))
        findings += faults or [(f"data {split}", True, f"{len(records)} records, all readable")]
    return findings


def _home_relative(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)
