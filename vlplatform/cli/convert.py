"""``vlp convert``: checkpoints of the authors' own code become models of this library."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlplatform import hub, registry, settings
from vlplatform.errors import UserError, nearest
from vlplatform.hub.export import FILES
from vlplatform.hub.importer import Importer, read_checkpoint

HELP = """Turn a checkpoint of the authors' own code into a model that vlplatform.load, vlp predict and vlp eval take.

Sizes are read from the weights; what these cannot tell is given as key=value. Pickled objects are never loaded: a file
that holds more than tensors and plain values is refused."""


@dataclass(frozen=True)
class ConvertSettings:
    """What every source takes.

    Attributes:
        overwrite: Replace the model that OUT holds.
    """

    overwrite: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, file, output folder, settings."""
    found = importers()
    lines = []
    for name, (_, importer) in found.items():
        lines.append(f"  {name:<19}{importer.summary}")
        lines += [f"  {'':<19}  {line}" for line in _described(importer.Settings)]
    lines += ["of every source:", *(f"  {'':<19}  {line}" for line in _described(ConvertSettings))]
    parser.epilog = "sources, and what their weights cannot tell:\n" + "\n".join(lines)
    parser.add_argument("source", metavar="SOURCE", help="whose checkpoint it is (below)")
    parser.add_argument("file", metavar="FILE", type=Path, help="the checkpoint: .safetensors, .pth, .pt")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder of the converted model")
    parser.add_argument("values", nargs="*", metavar="key=value", help="what the weights cannot tell")


def run(args: argparse.Namespace) -> int:
    """Convert, save, print where; exit code 0.

    Raises:
        UserError: An unknown source or setting, a file that is no such checkpoint, or a model in OUT already.
    """
    found = importers()
    if args.source not in found:
        raise UserError(f"'{args.source}' is no source of checkpoints: {nearest(args.source, found)}.")
    task, importer = found[args.source]
    values = settings.of_words(args.values)
    own = {key: values.pop(key) for key in ("overwrite",) if key in values}
    chosen = settings.parse(importer.Settings, values, args.source)
    if not settings.parse(ConvertSettings, own, "convert").overwrite:
        _refuse_to_overwrite(args.out.expanduser())
    model = importer.convert(read_checkpoint(args.file), chosen)
    card = {"initial_weights": f"converted from {args.file.name}: {importer.summary}"}
    folder = hub.save_model(model, args.out, task=task, card=card)
    count = sum(p.numel() for p in model.parameters())
    print(f"{folder}  ({type(model).__name__}, {count / 1e6:.2f} M parameters)")
    for note in importer.notes(model):
        print(f"note: {note}", file=sys.stderr)
    return 0


def importers() -> dict[str, tuple[str, Importer]]:
    """Source → (task, importer), of all installed tasks that have any."""
    found: dict[str, tuple[str, Importer]] = {}
    for task in registry.task_names():
        for importer in getattr(registry.task(task), "importers", tuple)():
            found[importer.name] = (task, importer)
    return found


def _described(kind: type[Any]) -> list[str]:
    """A line for each setting."""
    found = settings.describe(kind).items()
    return [f"{key}={text.get('default', '…')}  {text.get('help', '')}" for key, text in found]


def _refuse_to_overwrite(out: Path) -> None:
    if there := next((name for name in FILES if (out / name).exists()), None):
        raise UserError(f"{out} already holds {there}: name another folder, or let it be replaced with overwrite=true.")
