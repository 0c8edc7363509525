"""What the searches ask of a decoder, and what they give back: one step protocol for every model and task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor


class State(Protocol):
    """What a decoder keeps between steps.

    Its rows are hypotheses; those of one item (an image, a sentence) stand side by side, equally many per item, and the
    items keep their order. Methods change the state itself.
    """

    def reorder(self, index: Tensor) -> None:
        """Row i becomes the old row ``index[i]``; ``index`` is (R',) long.

        Rows move within their item only, and whole items may leave: R' < R. With R' = R the items are the same.
        """
        ...

    def expand(self, times: int) -> None:
        """Every row becomes ``times`` rows side by side; what the rows of an item share is not copied."""
        ...


S = TypeVar("S", bound=State)
Step = Callable[[Tensor, S], Tensor]
"""``step(tokens, state)``: from the rows' last tokens (R,) long to log-probabilities (R, V) of the next ones."""

Rule = Callable[[Tensor, Tensor], Tensor]
"""``rule(log_probs, tokens)``: log-probabilities (R, V), changed for the tokens (R, t) chosen so far.

The first argument is the search's own copy, so that a rule may change it in place (where no gradient is wanted).
"""


class Decodable(Protocol):
    """A model that can be searched."""

    def start(self, memory: Any) -> State:
        """The state before the first step, one row per item of the memory."""
        ...

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Log-probabilities (R, V) of the next tokens after the last ones (R,) long; the state moves on.

        They are the model's: the searches do not change them in place.
        """
        ...


@dataclass(frozen=True)
class Symbols:
    """Numbers of the special symbols in a vocabulary; they may coincide, as X-LAN's 0 is padding, begin and end.

    Attributes:
        pad: Filler behind the end.
        bos: What the decoder starts from (fairseq's starts from the end symbol).
        eos: The end.
        unk: Stands for unknown words, if there is one.
    """

    pad: int
    bos: int
    eos: int
    unk: int | None = None


@dataclass(frozen=True)
class Hypothesis:
    """One sentence found.

    Attributes:
        tokens: Up to the end symbol, included if it came.
        log_probs: Of each token, penalties of the search included.
        score: What the search ranked by.
    """

    tokens: list[int]
    log_probs: list[float]
    score: float
