"""``vlp predict``: apply a checkpoint to files."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from vlplatform import registry
from vlplatform.cli import checkpoint
from vlplatform.errors import UserError

HELP = """Apply a checkpoint to files.

Segmentation: the coloured label map, and an overlay with a legend. Captioning: the best captions, printed and as
OUT/captions.json, of pictures or of features (.npz, .npy)."""
EPILOG = """examples:
  vlp predict runs/NAME street.jpg
  vlp predict org/name photos/*.jpg --out predictions"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, inputs, output folder, device."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=checkpoint.SOURCE_HELP)
    parser.add_argument("inputs", nargs="+", metavar="INPUT", type=Path, help="files")
    parser.add_argument("--out", type=Path, default=Path("predictions"), help="folder (default: predictions)")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda:0 …")


def run(args: argparse.Namespace) -> int:
    """Predict and print the paths written; exit code 0."""
    for path in args.inputs:
        if not path.is_file():
            raise UserError(f"the input {path} is not a file: give existing files.")
    model, config = checkpoint.load(args.checkpoint, args.device)
    device = torch.device(checkpoint.pick_device(args.device))
    written = registry.task(config["task"]).predict_files(model, args.inputs, args.out, device)
    for path in written:
        print(path)
    return 0
