"""The processes that ``accelerate launch --cpu --num_processes N`` is asked for and does not start.

Without an MPI host file Accelerate 1.x starts one process then, and says nothing. So that process starts the others.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys

import psutil

WORLD_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
PATIENCE = 10.0
"""Seconds that the other processes have to end after the first one."""


def start_missing_processes() -> None:
    """Become the first of N CPU processes, if that is what was asked for; each other one runs this same command."""
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() not in ("true", "1") or "MASTER_PORT" not in os.environ:
        return
    count = _asked_for()
    if count < 2 or any(name in os.environ for name in WORLD_SIZES):
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    os.environ.update(world, RANK="0", LOCAL_RANK="0")
    command = [sys.executable, *sys.orig_argv[1:]]
    others = [
        subprocess.Popen(command, env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(1, count)
    ]
    atexit.register(_end, others)


def _asked_for() -> int:
    """N from the command line of the launcher, our parent; 1 if it is no launcher of one machine."""
    try:
        words = psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        return 1
    if "launch" not in " ".join(words[:4]):
        return 1
    options = {}
    for word, following in zip(words, [*words[1:], ""]):
        name, _, value = word.replace("-", "_").partition("=")
        options.setdefault(name, value or following)
    if options.get("__num_machines", "1") != "1":
        return 1
    count = options.get("__num_processes", "1")
    return int(count) if count.isdecimal() else 1


def _end(others: list[subprocess.Popen[bytes]]) -> None:
    for process in others:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
