"""What a run ran on: versions, devices and the commit, with nobody's paths in it."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import vlplatform

PACKAGES = [
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "datasets",
    "safetensors",
    "huggingface_hub",
    "hydra-core",
]


def environment(device: torch.device, processes: int) -> dict[str, Any]:
    """JSON-ready facts for ``environment.json``."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "vlplatform": vlplatform.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": {"type": device.type, "name": name, "processes": processes},
        "cpu_cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree this package lies in, ``-dirty`` if changed; None for an installed package."""
    root = Path(vlplatform.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
