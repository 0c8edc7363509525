"""The best and the worst captions of a checkpoint on its validation images, by CIDEr-D, as a Markdown table.

python scripts/show_captions.py runs/NAME --count 5
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vlplatform import hub, registry
from vlplatform.cli import checkpoint
from vlplatform.data.loader import evaluation_batches
from vlplatform.metrics import captions as metrics


def main() -> None:
    """Caption, score each image, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--count", type=int, default=5)
    args = parser.parse_args()
    model = hub.load(args.run)
    task = registry.task("captioning").build(checkpoint.sections_with(model.loaded_config, []))  # type: ignore[arg-type]
    records = task.records(args.split)
    found: dict[str, str] = {}
    for _, batch in evaluation_batches(records, task.collate, range(len(records)), batch_size=25):
        found |= {prediction["id"]: prediction["caption"] for prediction in task.predict(model, batch)}
    items = {item.id: item for item in task.data.items(args.split)}  # type: ignore[attr-defined]
    references = {id: items[id].captions for id in found if items[id].captions}
    scores = metrics.score({id: found[id] for id in references}, references, metrics=("cider_d",))
    ranked = sorted(((score, id) for id, score in scores.per_image["cider_d"].items()), key=lambda pair: -pair[0])
    print(f"mean CIDEr-D {scores.values['cider_d']:.3f} over {len(ranked)} images ({scores.signature})\n")
    print("| CIDEr-D | picture | model | one of the people |\n|---|---|---|---|")
    for score, id in ranked[: args.count] + ranked[-args.count :]:
        print(f"| {score:.2f} | {items[str(id)].source} | {found[str(id)]} | {references[str(id)][0]} |")


if __name__ == "__main__":
    main()
