"""Train a task: ``accelerate launch run.py task=segmentation attn=bilateral`` (the same as ``vlp train …``)."""

import sys

from vlplatform.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
