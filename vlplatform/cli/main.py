"""``vlp``: reads the command's name, runs it, and turns a user's mistake into one line and exit code 2."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence

from vlplatform import __version__
from vlplatform.cli.arguments import Parser
from vlplatform.errors import UserError

COMMANDS = {
    "train": "train a task and write its report",
    "eval": "score a checkpoint on a data set",
    "predict": "apply a checkpoint to your own files",
    "list": "what there is: attn, tasks, models, data, metrics, recipes",
    "prepare": "compute the features of pictures once, for data.features=…",
    "doctor": "check the installation, the devices, and a data set",
    "convert": "turn a checkpoint of the authors' own code into a model of this library",
    "pull": "download published weights",
    "push": "publish a model folder",
}

EXAMPLES = """examples:
  vlp train task=segmentation attn=bilateral
  vlp eval runs/NAME data=camvid data.root=CamVid
  vlp predict runs/NAME street.jpg
  vlp list attn --socket local --cost 256x96x96
"""


def parser_of(command: str) -> Parser:
    """The argument parser of one command; only that command's file is imported."""
    module = importlib.import_module(f"vlplatform.cli.{command}")
    parser = Parser(
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
    if isinstance(sys.stdout, io.TextIOWrapper):  # where the system says ASCII or Latin-1, words of any language come
        sys.stdout.reconfigure(encoding="utf-8", errors=sys.stdout.errors)
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
        parsed = parser_of(command).read(rest)
        return importlib.import_module(f"vlplatform.cli.{command}").run(parsed)
    except UserError as error:
        return _fail(str(error), 2, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", 130, debug)
    except BrokenPipeError:  # the reader of our output (head, less) has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(_refusal(error), 2, debug)
    except Exception as error:  # the last guard: one line for the user, the traceback with --debug
        if debug:
            raise
        return _fail(f"{type(error).__name__}: {error} (a fault of vlplatform; --debug shows where)", 1, debug)


def _fail(message: str, code: int, debug: bool) -> int:
    """Print one line on stderr, with the rank in front in all processes of a launch but the first; the exit code."""
    if debug:
        traceback.print_exc()
    rank = os.environ.get("RANK", "0")
    print(f"{'' if rank == '0' else f'[rank {rank}] '}error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


def _refusal(error: OSError) -> str:
    """What the operating system refused, where, and what to do."""
    where = f" for {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the device{where}: free some, then run again."
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename:
        return f"{error.filename} cannot be used ({reason}): check the path and who may read and write there."
    return f"the system refused ({reason}): check disk, network and permissions (--debug shows where)."
