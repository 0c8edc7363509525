"""Records, the embedded Scenes world, sampling and loading."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where generated data and downloads are kept: ``$VLP_CACHE``, else ``~/.cache/vlplatform``."""
    return Path(os.environ.get("VLP_CACHE") or Path.home() / ".cache" / "vlplatform")
