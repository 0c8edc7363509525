"""SIGTERM and Ctrl-C: remember them until the current update is done."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """The run was asked to stop and has saved its state.

    Attributes:
        exit_code: What the process is to exit with: 130 after Ctrl-C, 143 after SIGTERM.
    """

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class SignalWatch:
    """Within it, the first SIGINT or SIGTERM is noted in ``received``, and said; a second one acts as usual.

    Outside the main thread signals cannot be caught, and nothing is noted.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SignalWatch:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received = number
        self._give_back()
        if os.environ.get("RANK", "0") == "0":  # Ctrl-C reaches every process of a launch
            name, again = ("Ctrl-C", "press") if number == signal.SIGINT else ("SIGTERM", "send it")
            line = f"{name}: saving after this update; {again} again to stop unsaved."
            start = "\n" if sys.stderr.isatty() else ""  # the cursor may stand in a progress bar
            os.write(2, f"{start}{line}\n".encode())  # print() must not be called again within itself

    def _give_back(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
