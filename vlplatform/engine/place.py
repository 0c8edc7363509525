"""Where a run stands: all that a checkpoint knows besides tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from vlplatform.data.sampler import advance


@dataclass
class Place:
    """The place in a run; plain numbers, so that it is JSON.

    Attributes:
        step: Updates done in all stages.
        stage: Number of the current stage.
        stage_step: Updates done in it.
        epoch: Passes over the training records.
        position: Samples taken of the current pass.
        samples: Samples seen in all.
        best: Best score so far, the higher the better; None before the first.
        best_step: After which update it was reached last.
        best_sha256: SHA-256 of the weights in ``best/`` then.
        scores: The scores then: ``values``, ``per_class`` and ``notes``.
        late: Whether some of these came after the model was exported, whose card lacks them therefore.
        waits: Evaluations since the last that was better than all before it, in this stage.
    """

    step: int = 0
    stage: int = 0
    stage_step: int = 0
    epoch: int = 0
    position: int = 0
    samples: int = 0
    best: float | None = None
    best_step: int | None = None
    best_sha256: str | None = None
    scores: dict[str, Any] = field(default_factory=dict)
    late: bool = False
    waits: int = 0

    def update_done(self, samples: int, size: int) -> None:
        """Count one update over ``samples`` of the ``size`` training records."""
        self.step += 1
        self.stage_step += 1
        self.samples += samples
        self.epoch, self.position = advance(self.epoch, self.position, samples, size)

    def next_stage(self) -> None:
        """Enter the next stage, which begins with a new pass over its records."""
        self.stage += 1
        self.epoch += 1
        self.stage_step = self.position = self.waits = 0

    def scored(self, value: float) -> bool:
        """Note a score (the higher the better; NaN is never good); whether none before it was better.

        Of equal scores the last counts, as its model has learnt for longer; but it is no progress: ``waits`` goes on.
        """
        progress = not math.isnan(value) and (self.best is None or value > self.best)
        self.waits = 0 if progress else self.waits + 1
        best = progress or value == self.best
        if best:
            self.best, self.best_step, self.late = value, self.step, False
        return best

    def forget_best(self) -> None:
        """Begin the search for the best anew, as its model is lost."""
        self.best = self.best_step = self.best_sha256 = None
        self.scores, self.late = {}, False

    def budget(self) -> dict[str, int]:
        """What has been spent."""
        return {"updates": self.step, "samples": self.samples, "epochs": self.epoch}
