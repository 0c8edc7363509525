"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference vectors and real data beside the repository; the test is skipped without it."""
    folder = Path(os.environ.get("VLP_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (folder / "reference").is_dir():
        pytest.skip(f"no reference data at {folder} (set VLP_SHARED)")
    return folder
