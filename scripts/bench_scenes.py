"""Scenes per second on one core: pictures with labels alone, and with every annotation; and the cost of a read.

python scripts/bench_scenes.py [count]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from vlplatform.data.scenes import Pictures, ScenesSettings, load, picture, scene


def rate(make: Callable[[int], object], count: int) -> float:
    """Calls per second of processor time, after one unmeasured round that fills the tables."""
    for index in range(count):
        make(index)
    start = time.process_time()
    for index in range(count):
        make(index)
    return count / (time.process_time() - start)


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    settings = ScenesSettings(train=count)
    print(f"picture, labels, instances  {rate(lambda i: picture(0, i, settings), count):8.0f} scenes/s")
    print(f"with every annotation       {rate(lambda i: scene(0, i, settings), count):8.0f} scenes/s")
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        data = load("train", settings, Path(cache))
        print(f"made and written to disk    {count / (time.perf_counter() - start):8.0f} scenes/s (wall time)")
        print(f"read picture and labels     {rate(Pictures(data, settings).__getitem__, count):8.0f} scenes/s")


if __name__ == "__main__":
    main()
