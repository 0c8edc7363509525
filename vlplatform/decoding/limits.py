"""What every search can be told about lengths and words."""

from __future__ import annotations

from dataclasses import dataclass

from vlplatform.decoding.protocol import Symbols


@dataclass(frozen=True)
class Limits:
    """Lengths and words that a search keeps to.

    Attributes:
        max_length: Most tokens T of a hypothesis, the end symbol counted (fairseq's ``max_len`` + 1).
        min_length: Fewest words before the end symbol may come; fairseq's default is 1.
        forbid: Numbers of words that are never chosen; unless given, padding and begin, where they are not the end
            symbol too. ``()``: nothing, as in MD-SAN's code; fairseq forbids padding alone.
        unk_penalty: Taken off the log-probability of the unknown word, at least 0 (what fairseq also takes, a negative
            one that makes it come more often, is refused: the searches look among the best words before penalties);
            infinity forbids it.

    Raises:
        ValueError: A number out of range.
    """

    max_length: int = 20
    min_length: int = 0
    forbid: tuple[int, ...] | None = None
    unk_penalty: float = 0.0

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f"max_length={self.max_length} must be at least 1")
        if not 0 <= self.min_length < self.max_length:
            raise ValueError(f"min_length={self.min_length} must be from 0 to max_length − 1 = {self.max_length - 1}")
        if self.forbid is not None and min(self.forbid, default=0) < 0:
            raise ValueError(f"forbid={self.forbid} must be numbers of words, 0 or more")
        if not self.unk_penalty >= 0:
            raise ValueError(f"unk_penalty={self.unk_penalty} must be at least 0")

    def forbidden(self, symbols: Symbols, made: int) -> tuple[int, ...]:
        """Numbers of the words that may not follow ``made`` tokens."""
        never = {symbols.pad, symbols.bos} - {symbols.eos} if self.forbid is None else set(self.forbid)
        if symbols.unk is not None and self.unk_penalty == float("inf"):
            never.add(symbols.unk)
        return tuple(sorted(never | {symbols.eos} if made < self.min_length else never))

    def penalty(self, symbols: Symbols) -> float:
        """What is taken off the unknown word, if it may be chosen at all."""
        finite = symbols.unk is not None and self.unk_penalty != float("inf")
        return self.unk_penalty if finite else 0.0
