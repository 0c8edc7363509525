"""``vlp eval``: score a checkpoint on a split of a data set."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from vlplatform import registry
from vlplatform.cli import checkpoint, table

HELP = "Score a checkpoint on a data set (by default the one it was trained on, its validation split)."
EPILOG = """examples:
  vlp eval runs/NAME
  vlp eval runs/NAME data=camvid data.root=CamVid --split test
  vlp eval org/name@v1 data=folder data.root=mine task.test.scales=[0.75,1,1.25] task.test.flip=true"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, overrides of data and testing, split, and output."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=checkpoint.SOURCE_HELP)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="data=…, data.KEY=…, task.KEY=…")
    parser.add_argument("--split", default="val", help="train, val (default) or test")
    parser.add_argument("--batch-size", type=int, default=4, help="records at a time (default 4)")
    parser.add_argument("--workers", type=int, default=0, help="processes that read records (default 0)")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda:0 …")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--out", type=Path, help="also write the scores as JSON to this file")


def run(args: argparse.Namespace) -> int:
    """Evaluate and print; exit code 0."""
    from vlplatform.engine import evaluate

    model, config = checkpoint.load(args.checkpoint, args.device)
    task = registry.task(config["task"]).build(checkpoint.sections_with(config, args.overrides))
    score = evaluate(task, model, args.split, batch_size=args.batch_size, workers=args.workers)
    result = {
        "checkpoint": args.checkpoint,
        "split": args.split,
        "data": task.describe(),
        "values": score.values,
        "per_class": score.per_class,
    }
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.json:
        print(json.dumps(result))
    else:
        table.print_scores(score.values, score.per_class)
    return 0
