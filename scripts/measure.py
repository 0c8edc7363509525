"""Time and peak memory of a piece of work; what the benchmarks share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Wall time of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def in_turns(works: Sequence[Callable[[], Any]], repeats: int, device: torch.device) -> list[float]:
    """Median seconds of each, run in turns after one run to warm up, so that all see the same machine."""
    times: list[list[float]] = [[] for _ in works]
    for i in range(repeats + 1):
        for own, work in zip(times, works):
            taken = seconds(work, device)
            if i:
                own.append(taken)
    return [statistics.median(own) for own in times]


def peak_bytes(work: Callable[[], None], device: torch.device) -> int:
    """The most memory that stood at one time during a call, above what stood before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    standing = highest = 0
    profiler: Any = seen.profiler
    events = profiler.kineto_results.events()
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            standing += event.nbytes()
            highest = max(highest, standing)
    return highest
