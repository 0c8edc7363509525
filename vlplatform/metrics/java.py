"""The Java tools of pycocoevalcap (tokeniser, METEOR, SPICE) as processes of our own, beside us and with a time limit.

pycocoevalcap is used for the programs it brings along; none of its Python runs, since that prints and writes into
its own package folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from vlplatform.errors import UserError

_OPTIONS = ("-Djava.awt.headless=true", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8")


def java() -> str | None:
    """The `java` program: that of JAVA_HOME, else the first on the path; None without one."""
    home = os.environ.get("JAVA_HOME")
    return (shutil.which("java", path=str(Path(home) / "bin")) if home else None) or shutil.which("java")


def tool(path: str) -> Path | None:
    """A file of pycocoevalcap by its path in the package (``"meteor/meteor-1.5.jar"``); None if it is not there."""
    spec = importlib.util.find_spec("pycocoevalcap")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [file for folder in folders if (file := Path(folder) / path).is_file()]
    return found[0].resolve() if found else None


def missing(*paths: str) -> str | None:
    """Why a tool that needs these files of pycocoevalcap cannot run; None if it can."""
    if java() is None:
        return "there is no Java on this machine (neither JAVA_HOME nor `java` on the path): install a Java runtime"
    if importlib.util.find_spec("pycocoevalcap") is None:
        return "the package pycocoevalcap is not installed: pip install pycocoevalcap"
    absent = [path for path in paths if tool(path) is None]
    return f"pycocoevalcap has no file {absent[0]}" if absent else None


class Job:
    """A Java tool at work, to be waited for or stopped.

    Input and output are files of a temporary folder, so that no pipe can fill up.

    Args:
        name: What to call it in messages.
        arguments: What follows `java`; the tool's files, options.
        text: Its standard input.
        files: Other input files by name; they lie in the folder the tool is started in.
        seconds: The time limit, from the start on; it holds whether somebody waits or not.

    Attributes:
        outputs: After `wait`: the files `*.out` the tool wrote into its folder, by name.

    Raises:
        UserError: There is no Java, or it does not start.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        seconds: float,
        text: str = "",
        files: Mapping[str, str] | None = None,
    ) -> None:
        program = java()
        if program is None:
            raise UserError(f"{name} cannot run: {missing()}.")
        self.name, self.seconds = name, seconds
        self.outputs: dict[str, str] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="vlp-java-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        for file, content in {"stdin": text, **(files or {})}.items():
            (self.folder / file).write_text(content, encoding="utf-8", errors="replace", newline="")
        self._until = time.monotonic() + seconds
        with (
            (self.folder / "stdin").open("rb") as given,
            (self.folder / "stdout").open("wb") as out,
            (self.folder / "stderr").open("wb") as err,
        ):
            command = [program, *_OPTIONS, *arguments]
            try:
                self._process = subprocess.Popen(command, stdin=given, stdout=out, stderr=err, cwd=self.folder)
            except OSError as error:
                self._folder.cleanup()
                raise UserError(f"{name} cannot run: {program} does not start ({error.strerror}).") from error
        self._limit = threading.Timer(seconds, self._process.kill)
        self._limit.daemon = True
        self._limit.start()

    def wait(self) -> str:
        """Its standard output, when it has finished; to be asked for once.

        Raises:
            UserError: The time ran out, or the tool failed; the message has the last line it wrote.
        """
        try:
            code = self._process.wait(max(0.0, self._until - time.monotonic()))
            if code and time.monotonic() >= self._until:
                raise subprocess.TimeoutExpired(self.name, self.seconds)
            said = self._read("stderr").strip().splitlines() or ["nothing"]
            if code:
                raise UserError(f"{self.name} failed (Java's exit code {code}); it said: {said[-1][:300]}.")
            self.outputs = {
                file.name: self._read(file.name) for file in self.folder.iterdir() if file.name.endswith(".out")
            }
            return self._read("stdout")
        except subprocess.TimeoutExpired:
            raise UserError(f"{self.name} did not finish within {self.seconds:g} s: allow it more time.") from None
        finally:
            self.stop()

    def stop(self) -> None:
        """End it, finished or not, and remove its files."""
        self._limit.cancel()
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self._folder.cleanup()

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8", errors="replace")
