"""A launcher that dies takes its process along, which saves first; after Ctrl-C its death changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's alone")

LAUNCHER = "import subprocess, sys; subprocess.Popen([sys.executable, *sys.argv[1:]]).wait()"
CHILD = """
import sys, time
from pathlib import Path
from vlplatform.engine.interrupt import SignalWatch
from vlplatform.engine.launch import start_missing_processes

folder = Path(sys.argv[1])
start_missing_processes()
with SignalWatch() as watch:
    (folder / "ready").touch()
    while not watch.received:
        time.sleep(0.02)
    (folder / "noted").touch()
    while not (folder / "go").exists():  # still saving
        time.sleep(0.02)
(folder / "saved").write_text(str(watch.received))
"""


def appears(path: Path) -> bool:
    """Whether a file comes to be within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if path.exists():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("first", [None, signal.SIGINT], ids=["launcher terminated", "Ctrl-C before"])
def test_the_launchers_end(first, tmp_path):
    (tmp_path / "launch.py").write_text(LAUNCHER)
    (tmp_path / "child.py").write_text(CHILD)
    command = [sys.executable, tmp_path / "launch.py", tmp_path / "child.py", tmp_path]
    environment = {**os.environ, "ACCELERATE_MIXED_PRECISION": "no", "PYTHONPATH": os.getcwd()}
    launcher = subprocess.Popen([str(word) for word in command], env=environment)
    try:
        assert appears(tmp_path / "ready")
        (child,) = psutil.Process(launcher.pid).children()
        if first is not None:
            child.send_signal(first)
            assert appears(tmp_path / "noted")
        launcher.terminate()
        launcher.wait()
        assert appears(tmp_path / "noted")
        time.sleep(0.3)  # for a signal that must not kill
        (tmp_path / "go").touch()
        assert appears(tmp_path / "saved")
        assert (tmp_path / "saved").read_text() == str(int(first or signal.SIGTERM))
    finally:
        (tmp_path / "go").touch()
        launcher.kill()
