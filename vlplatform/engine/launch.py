"""What ``accelerate launch`` leaves undone: starting all processes, and passing on the signal that ends it.

Without an MPI host file ``--cpu --num_processes N`` of Accelerate 1.x starts one process and says nothing: that process
starts the others. And the launcher of a single process dies of SIGTERM alone: its process asks the kernel for a signal.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import psutil

WORLD_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
PATIENCE = 10.0
"""Seconds that the other processes have to end after the first one."""
_PR_SET_PDEATHSIG = 1


def start_missing_processes() -> None:
    """Become the first of N CPU processes, if that is what was asked for; each other one runs this same command.

    A process that a launcher has started also receives SIGTERM when that launcher dies (:func:`end_with_launcher`).
    """
    end_with_launcher()
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


def end_with_launcher() -> None:
    """On Linux, have SIGTERM sent to this process when the launcher, its parent, is gone; elsewhere do nothing.

    After Ctrl-C, which the terminal sends to both, the launcher dies while this process saves its state: the SIGTERM
    that follows then is no second wish to stop, and is passed over.
    """
    parent = os.getppid()
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return
    if not _is_launcher(parent) or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    told = False

    def terminated(number: int, _: FrameType | None) -> None:
        nonlocal told
        if os.getppid() == parent or told:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        told = True
        threading.Thread(target=hand_on, args=(number,), daemon=True).start()

    def hand_on(number: int) -> None:
        # Before training, nobody has noted the signal: give it to whoever watches for it next.
        while signal.getsignal(number) is terminated:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, terminated)
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    except (OSError, AttributeError):  # a C library without it: as before
        return
    if os.getppid() != parent:  # it died before the kernel knew our wish
        os.kill(os.getpid(), signal.SIGTERM)


def _is_launcher(process: int) -> bool:
    """Whether a process is Accelerate's launcher: a Python that runs ``launch``, with its settings in our environment.

    A shell script called launch.sh, which may well end before a run in the background does, is none.
    """
    if not any(name.startswith("ACCELERATE_") for name in os.environ):
        return False
    try:
        words = psutil.Process(process).cmdline()
    except psutil.Error:
        return False
    return "python" in Path(words[0] if words else "").name and "launch" in " ".join(words[1:4])


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
