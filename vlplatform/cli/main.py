"""``vlp``: reads the command's name, runs it, and turns a user's mistake into one line and exit code 2."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from vlplatform import __version__
from vlplatform.errors import UserError

COMMANDS = {
    "train": "train a task and write its report",
    "eval": "score a checkpoint on a data set",
    "predict": "apply a checkpoint to your own files",
    "list": "what there is: attn, tasks, models, data, metrics, recipes",
    "doctor": "check the installation, the devices, and a data set",
    "pull": "download published weights",
    "push": "publish a model folder",
}

EXAMPLES = """examples:
  vlp train task=segmentation attn=bilateral
  vlp eval runs/NAME data=camvid data.root=CamVid
  vlp predict runs/NAME street.jpg
  vlp list attn --socket local --cost 256x96x96
"""


def parser_of(command: str) -> argparse.ArgumentParser:
    """The argument parser of one command; only that command's file is imported."""
    module = importlib.import_module(f"vlplatform.cli.{command}")
    parser = argparse.ArgumentParser(
        prog=f"vlp {command}",
        description=module.HELP,
        epilog=getattr(module, "EPILOG", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (0 well, 1 a fault of ours, 2 a user's mistake, 130/143 a signal)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: vlp COMMAND …   (vlp COMMAND --help teaches each)\n\ncommands:")
        print("\n".join(f"  {name:<9}{text}" for name, text in COMMANDS.items()))
        print("\n" + EXAMPLES, end="")
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"vlplatform {__version__}")
        return 0
    command, rest = arguments[0], arguments[1:]
    debug = "--debug" in rest or os.environ.get("VLP_DEBUG") == "1"
    try:
        if command not in COMMANDS:
            from vlplatform.errors import nearest

            raise UserError(f"'{command}' is not a command of vlp: {nearest(command, COMMANDS)}.")
        parsed = parser_of(command).parse_intermixed_args(rest)
        return importlib.import_module(f"vlplatform.cli.{command}").run(parsed)
    except UserError as error:
        return _fail(str(error), 2, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", 130, debug)
    except BrokenPipeError:  # the reader of our output (head, less) has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno == errno.ENOSPC:
            where = f" for {error.filename}" if error.filename else ""
            return _fail(f"no space left on the device{where}: free some, then run again.", 2, debug)
        raise
    except Exception as error:  # the last guard: one line for the user, the traceback with --debug
        if debug:
            raise
        return _fail(f"{type(error).__name__}: {error} (a fault of vlplatform; --debug shows where)", 1, debug)


def _fail(message: str, code: int, debug: bool) -> int:
    """Print one line on stderr (once, from the first process of a launch) and hand back the exit code."""
    if debug:
        traceback.print_exc()
    if os.environ.get("RANK", "0") == "0":
        print("error: " + " ".join(message.split()), file=sys.stderr, flush=True)
    return code
