"""Learning-rate schedules: pure functions from the number of updates done to a factor of the base rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vlplatform.engine.settings import TrainerSettings


def factor(settings: TrainerSettings, step: int) -> float:
    """The factor for the update after ``step`` updates: a linear warm-up, then the schedule over what remains."""
    s = settings
    if step < s.warmup:
        return warmup(step, s.warmup, s.warmup_start)
    floor = s.min_lr / s.learning_rate
    done, total = step - s.warmup, s.steps - s.warmup
    if s.schedule == "poly":
        return poly(done, total - 1 if s.poly_reaches_min else total, s.power, floor)
    if s.schedule == "cosine":
        return cosine(done, total, floor)
    if s.schedule == "step":
        return max(multistep(step, s.milestones, s.gamma), floor)
    if s.schedule == "inverse_sqrt":
        return max(inverse_sqrt(step, s.warmup), floor)
    return 1.0


def warmup(step: int, length: int, start: float) -> float:
    """From ``start`` at step 0 linearly to 1 at step ``length``."""
    return start + (1 - start) * step / length


def poly(step: int, end: int, power: float, floor: float = 0.0) -> float:
    """``(1 - step/end)^power``, from 1 to ``floor`` at ``end`` and constant from there (DeepLab: power 0.9).

    With n updates the textbook has ``end = n``; mmengine has ``end = n - 1``, so that the last update uses the floor.
    """
    return floor + (1 - floor) * (1 - min(step / max(end, 1), 1.0)) ** power


def cosine(step: int, end: int, floor: float = 0.0) -> float:
    """Half a cosine from 1 at step 0 to ``floor`` at ``end`` (SGDR, Loshchilov & Hutter 2017, one cycle)."""
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(step / max(end, 1), 1.0)))


def multistep(step: int, milestones: Sequence[int], gamma: float) -> float:
    """``gamma`` to the number of milestones (in updates) that have been reached."""
    return gamma ** sum(step >= milestone for milestone in milestones)


def inverse_sqrt(step: int, warmup: int) -> float:
    """``sqrt(warmup / step)`` after the warm-up (Vaswani et al. 2017; fairseq's form, 1 at the end of warm-up)."""
    warmup = max(warmup, 1)
    return math.sqrt(warmup / max(step, warmup))
