"""Time the CIDEr-D reward of self-critical training against pycocoevalcap's scorer, in one run.

    python scripts/bench_reward.py [--images 50] [--hypotheses 6] [--references 5] [--train 5000] [--repeats 20]

One step scores every hypothesis of every image against the image's references; both get the same made-up captions
(words by Zipf's law, 8 to 14 of them) and must give the same scores. Ours keeps the vectors of all training references;
pycocoevalcap's is timed as it is used: a fresh scorer, its captions added one by one, `compute_score`. That counts
document frequencies over the captions it is given, so the scores are compared on a `CiderD` with those frequencies.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pycocoevalcap.cider.cider_scorer import CiderScorer

from vlplatform.metrics.cider import CiderD

Captions = list[list[int]]


def made_up(count: int, random: np.random.Generator, words: int = 9500) -> Captions:
    """Captions of 8 to 14 words of which the k-th most frequent has probability ∝ 1/k."""
    chance = 1 / np.arange(1, words + 1)
    tokens = random.choice(words, size=(count, 14), p=chance / chance.sum())
    return [row[: random.integers(8, 15)].tolist() for row in tokens]


def official(hypotheses: list[str], references: list[list[str]]) -> np.ndarray:
    """The scores of one step by pycocoevalcap; row i of the references belongs to hypothesis i."""
    scorer = CiderScorer(n=4, sigma=6.0)
    for hypothesis, texts in zip(hypotheses, references):
        scorer += (hypothesis, texts)
    return scorer.compute_score()[1]


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """Median time of a call, the first not counted."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[1:])


def main(arguments: list[str] | None = None) -> None:
    """Measure, check that the scores agree, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"images": 50, "hypotheses": 6, "references": 5, "train": 5000, "repeats": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    random = np.random.default_rng(0)
    texts = made_up(given.train * given.references, random)
    training = [texts[i : i + given.references] for i in range(0, len(texts), given.references)]
    images = random.choice(given.train, given.images, replace=False).repeat(given.hypotheses).tolist()
    # Hypotheses like a model's: a reference of the image with every third word replaced.
    hypotheses = [list(training[i][random.integers(given.references)]) for i in images]
    for caption, other in zip(hypotheses, made_up(len(hypotheses), random)):
        caption[::3] = other[: len(caption[::3])]
    as_text = [" ".join(map(str, caption)) for caption in hypotheses]
    references = [[" ".join(map(str, caption)) for caption in training[i]] for i in images]

    start = time.perf_counter()
    reward = CiderD(training)
    built = time.perf_counter() - start
    same = CiderD([training[i] for i in images]).scores(range(len(images)), hypotheses)
    difference = float(np.abs(same - official(as_text, references)).max())
    ours = milliseconds(lambda: reward.scores(images, hypotheses), given.repeats)
    theirs = milliseconds(lambda: official(as_text, references), max(3, given.repeats // 4))
    found = {
        "date": f"{datetime.date.today()}",
        "machine": f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}",
        "samples": len(images),
        "ours_ms": round(ours, 2),
        "pycocoevalcap_ms": round(theirs, 1),
        "ratio": round(theirs / ours, 1),
        "largest_difference": difference,
        "references_built_s": round(built, 2),
    }
    for name, value in found.items():
        print(f"{name:20} {value}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    if difference > 1e-9:
        sys.exit("the scores differ")


if __name__ == "__main__":
    main()
