"""``vlp eval``: score a checkpoint on a split of a data set."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from vlplatform import registry
from vlplatform.cli import checkpoint, table
from vlplatform.cli.arguments import whole_number
from vlplatform.errors import UserError

HELP = "Score a checkpoint on a data set (by default the one it was trained on, its validation split)."
EPILOG = """examples:
  vlp eval runs/NAME
  vlp eval runs/NAME data=camvid data.root=CamVid --split test
  vlp eval org/name@v1 data=folder data.root=mine task.test.scales=[0.75,1,1.25] task.test.flip=true
captions:
  vlp eval runs/NAME 'task.scores=[bleu,meteor,rouge_l,cider_d,spice]' --out scores.json
  vlp eval runs/NAME task.decode.beam=5 task.decode.length_penalty=1 task.decode.no_repeat=3
  vlp eval runs/NAME task.decode.beam=6 task.decode.groups=3        (diverse beams)
  vlp eval runs/NAME task.decode.samples=5 task.decode.top_p=0.9    (the likeliest of five drawn from the nucleus)
  vlp eval runs/ONE --with runs/TWO runs/THREE                      (an ensemble, by the mean of probabilities)
  vlp eval runs/NAME task.submission=results/mine --split test      (a result file for the COCO server)
translations:
  vlp eval runs/NAME --split test_2016_flickr task.decode.length_penalty=0.6 --out scores.json
  vlp eval translator data=text data.source=en data.target=de data.test=mine --split test    (mine.en, mine.de)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, overrides of data and testing, split, and output."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=checkpoint.SOURCE_HELP)
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="data=…, data.KEY=…, task.KEY=…")
    parser.add_argument("--with", dest="others", nargs="+", default=[], metavar="CHECKPOINT", help=checkpoint.WITH_HELP)
    parser.add_argument("--split", default="val", help="train, val (default), test, or another of the data set's")
    at_a_time, readers = whole_number("--batch-size", 1), whole_number("--workers", 0)
    parser.add_argument("--batch-size", type=at_a_time, default=4, metavar="N", help="records at a time (default 4)")
    parser.add_argument("--workers", type=readers, default=0, metavar="N", help="processes that read (default 0)")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda:0 …")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="NAME.json",
        help="also write the scores as JSON to this file, and beside it what was predicted, in the order of the data: "
        "NAME.captions.json, NAME.translations.json",
    )


def run(args: argparse.Namespace) -> int:
    """Evaluate and print; exit code 0.

    Raises:
        UserError: The checkpoint, the overrides or ``--out`` do not allow it; nothing has been evaluated then.
    """
    from vlplatform.engine import evaluate
    from vlplatform.engine.files import json_bytes, write_whole
    from vlplatform.engine.progress import Display
    from vlplatform.engine.trackers import plain

    out = writable(args.out) if args.out else None
    others, overrides = checkpoint.sorted_out(args.others)  # settings may stand behind the checkpoints, too
    overrides = [*args.overrides, *overrides]
    model, config = checkpoint.load(args.checkpoint, args.device, others)
    task = registry.task(config["task"]).build(checkpoint.sections_with(config, overrides))
    if use := getattr(task, "use", None):
        use(model)
    with Display(beside=True) as display:
        score = evaluate(task, model, args.split, batch_size=args.batch_size, workers=args.workers, display=display)
    result = {
        "checkpoint": args.checkpoint,
        **({"with": others} if others else {}),
        "split": args.split,
        "data": task.describe(),
        "settings": {group: task.sections[group] for group in ("task", "data")},
        "values": score.values,
        "per_class": score.per_class,
        "notes": score.notes,
    }
    written: list[Path] = []
    if out:
        write_whole(out, json_bytes(plain(result)))
        for name, value in score.files.items():
            written.append(out.with_name(f"{out.stem}.{name}.json"))
            write_whole(written[-1], json_bytes(plain(value)))
    if args.json:
        print(json.dumps(plain(result)))
    else:
        whose = f"{' with '.join([args.checkpoint, *others])} on {args.split}"
        table.print_scores(score.values, score.per_class, score.notes, whose)
        for path in written:
            print(path)
    return 0


def writable(path: Path) -> Path:
    """The path of a file that can be written, ``~`` replaced; nothing is made or changed.

    Raises:
        UserError: A folder, a file in a folder that does not exist, or one that may not be written.
    """
    path = Path(os.path.expanduser(path))
    if path.is_dir():
        raise UserError(f"--out {path} is a folder: name a file.")
    if not path.parent.is_dir():
        raise UserError(f"--out {path} cannot be written, there is no folder {path.parent}: make it, or name another.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--out {path} may not be written: mend the permissions, or name another file.")
    return path
