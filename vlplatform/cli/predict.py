"""``vlp predict``: apply a checkpoint to files."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vlplatform import registry
from vlplatform.cli import checkpoint
from vlplatform.errors import UserError
from vlplatform.hub.export import CONFIG, read_config
from vlplatform.hub.loading import locate

HELP = """Apply a checkpoint to files.

Segmentation: the coloured label map, and an overlay with a legend. Captioning: the best captions, printed and as
OUT/captions.json, of pictures or of features (.npz, .npy). Translation: of sentences, of files of them, or of standard
input (- or no INPUT), a line each and in their order."""
EPILOG = """examples:
  vlp predict runs/NAME street.jpg
  vlp predict org/name photos/*.jpg --out predictions
  vlp predict runs/NAME street.jpg task.test.flip=true                  (segmentation: as in vlp eval)
captions:
  vlp predict runs/NAME photo.jpg task.decode.beam=5 task.decode.min_length=8
  vlp predict runs/NAME photo.jpg 'task.decode.required=[dog,ball]' task.decode.beam=8
  vlp predict runs/NAME photo.jpg task.decode.samples=3 task.decode.top_k=20 task.decode.seed=1
  vlp predict runs/ONE features.npz --with runs/TWO runs/THREE          (an ensemble)
translations:
  vlp predict runs/NAME "ein Satz" "und noch einer"
  vlp predict runs/NAME task.decode.beam=8 < german.txt > english.txt
  vlp predict runs/NAME "ein Satz" task.decode.samples=3 task.decode.top_k=20 task.decode.seed=1"""

_PATH = re.compile(r"^(\.{0,2}/|~/?)\S*$|^\S+/[^\s/]+\.[A-Za-z]\w+$|^\S+\.(txt|tsv|csv|jsonl?|gz|bpe|tok|src|tgt)$")
"""What is hardly a sentence."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, inputs, output folder, device."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=checkpoint.SOURCE_HELP)
    parser.add_argument(
        "inputs", nargs="*", default=[], metavar="INPUT", help="files or texts; task.KEY=VALUE changes a setting"
    )
    parser.add_argument("--with", dest="others", nargs="+", default=[], metavar="CHECKPOINT", help=checkpoint.WITH_HELP)
    parser.add_argument("--out", type=Path, default=Path("predictions"), help="folder (default: predictions)")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda:0 …")


def run(args: argparse.Namespace) -> int:
    """Predict and print the paths written; exit code 0.

    Raises:
        UserError: No input, one that is no file, or a checkpoint or setting that does not fit.
    """
    folder = locate(args.checkpoint)
    plugin = registry.task(read_config(folder / CONFIG)["task"])
    others = [word for word in checkpoint.sorted_out(args.others)[0] if not Path(word).is_file()]
    given = [*args.inputs, *(word for word in args.others if word not in others)]  # inputs may stand behind the others
    if getattr(plugin, "reads_text", False):
        inputs, overrides = _texts(given)
        predict: Any = getattr(plugin, "predict_texts")  # noqa: B009 - what ``reads_text`` promises
        if not inputs and sys.stdin.isatty():
            print("write sentences, a line each; Ctrl-D ends", file=sys.stderr)
    else:
        inputs, overrides = _files(given, args.checkpoint)
        predict = plugin.predict_files
    model, config = checkpoint.load(str(folder), args.device, others)
    checkpoint.set_for_prediction(config, overrides)
    for path in predict(model, inputs, args.out, torch.device(checkpoint.pick_device(args.device))):
        print(path)
    return 0


def _files(given: Sequence[str], source: str) -> tuple[list[Path], list[str]]:
    """The files, and the settings."""
    words, overrides = checkpoint.sorted_out(given)
    if not words:
        raise UserError(f"vlp predict {source} needs files to predict: name some behind the checkpoint.")
    for word in words:
        if not Path(word).is_file():
            raise UserError(f"the input {word} is not a file: give existing files.")
    return [Path(word) for word in words], overrides


def _texts(given: Sequence[str]) -> tuple[list[str | Path], list[str]]:
    """Texts, ``-`` for standard input, and files that exist; and the settings: of words with ``=`` only SECTION.KEY."""
    overrides = [word for word in checkpoint.sorted_out(given)[1] if "." in word.partition("=")[0]]
    words = [word for word in given if word not in overrides]
    for word in words:
        if _PATH.search(word) and not _is_file(word):
            raise UserError(f"the input {word} is not a file; a text that looks like one goes through standard input.")
    return [Path(word) if _is_file(word) else word for word in words], overrides


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:  # a text longer than any name may be
        return False
