"""BLEU of tokenised translations as Moses' multi-bleu.perl prints it, and fairseq's splitting of compounds before it.

BLEU: https://aclanthology.org/P02-1040. Up to 4-grams, no smoothing, the reference length closest to the hypothesis's
and of two the shorter. The n-grams are counted by :class:`vlplatform.metrics.bleu.Bleu`; only the formula is another.

Both scripts see bytes, so this file does: only ASCII blanks end a token (a no-break space is part of one), and only
ASCII letters have a lower case. One difference: a reference length more than 9 999 tokens away from the hypothesis's
counts as it is here, and as 9 999 there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlplatform.errors import UserError
from vlplatform.metrics.bleu import Bleu

_HYPHEN = re.compile(rb"(\S)-(\S)")  # of bytes, where \S is anything but an ASCII blank


@dataclass(frozen=True)
class MultiBleu:
    """BLEU of a set of sentences; as text the line of the script.

    Attributes:
        bleu: In 0 … 100.
        precisions: Of 1- to 4-grams, in 0 … 100.
        brevity_penalty: In 0 … 1.
        ratio: Hypothesis length / reference length.
        hypothesis_length: Tokens of all hypotheses.
        reference_length: Sum of the closest reference lengths.
    """

    bleu: float
    precisions: tuple[float, ...]
    brevity_penalty: float
    ratio: float
    hypothesis_length: int
    reference_length: int

    def __str__(self) -> str:
        if not self.reference_length:
            return "BLEU = 0, 0/0/0/0 (BP=0, ratio=0, hyp_len=0, ref_len=0)"
        precisions = "/".join(f"{p:.1f}" for p in self.precisions)
        return (
            f"BLEU = {self.bleu:.2f}, {precisions} (BP={self.brevity_penalty:.3f}, ratio={self.ratio:.3f}, "
            f"hyp_len={self.hypothesis_length}, ref_len={self.reference_length})"
        )


def multi_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False, split: bool = False
) -> MultiBleu:
    """BLEU of all sentences together; arguments and errors as for :func:`statistics`."""
    return from_statistics(statistics(hypotheses, references, lowercase=lowercase, split=split))


def statistics(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False, split: bool = False
) -> NDArray[np.int64]:
    """What :func:`from_statistics` needs of each sentence, (sentences, 10); resample the rows for a bootstrap.

    Args:
        hypotheses: Tokens with blanks between them.
        references: For each hypothesis its references, one at least, in the same form.
        lowercase: Compare without case, as ``-lc`` of the script: of ASCII letters alone.
        split: Split compounds at their hyphens on both sides first, see :func:`split_compounds`.

    Raises:
        UserError: As :func:`check_sentences`.
    """
    check_sentences(hypotheses, references)
    theirs = [[_tokens(line, lowercase, split) for line in lines] for lines in references]
    mine = [_tokens(line, lowercase, split) for line in hypotheses]
    return Bleu(theirs).statistics(range(len(mine)), mine)


def from_statistics(rows: NDArray[np.int64]) -> MultiBleu:
    """BLEU of the sentences whose statistics, (sentences, 10), these are.

    Without a common n-gram of some order it is 0; so it is where the closest references have no words at all, or the
    hypotheses none, at which the script fails.
    """
    *counts, mine, theirs = map(int, rows.sum(0))
    if not mine or not theirs:
        return MultiBleu(0.0, (0.0,) * 4, 0.0, 0.0, mine, theirs)
    precisions = [right / given if given else 0.0 for right, given in zip(counts[:4], counts[4:])]
    mean = math.exp(sum(map(math.log, precisions)) / 4) if all(precisions) else 0.0
    brevity = math.exp(min(0.0, 1 - theirs / mine))
    return MultiBleu(100 * brevity * mean, tuple(100 * p for p in precisions), brevity, mine / theirs, mine, theirs)


def split_compounds(line: str) -> str:
    """``high-quality`` → ``high ##AT##-##AT## quality``, so that parts of compounds can match.

    As fairseq's script for scores like those of Vaswani et al. 2017: each hyphen between two characters that are no
    blanks, in one pass from left to right; a character right of one split hyphen is not left of another (``a-b-c``).
    """
    return _split(line.encode()).decode()


def check_sentences(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """References for each hypothesis, and words in some of them.

    Raises:
        UserError: Unequal counts, no sentence at all, a sentence without references, or nothing but empty references.
    """
    if len(hypotheses) != len(references):
        raise UserError(
            f"there are {len(hypotheses)} hypotheses but references of {len(references)} sentences: "
            "give a hypothesis and its references for each sentence, in the same order."
        )
    if not len(hypotheses):
        raise UserError("there is no sentence to score: give a hypothesis and its references of one at least.")
    for place, lines in enumerate(references, start=1):
        if isinstance(lines, str) or not len(lines):
            raise UserError(
                f"the references of sentence {place} of {len(references)} must be a list of one line or more, "
                f"not {lines!r}."
            )
    if not any(line.strip() for lines in references for line in lines):
        raise UserError(f"no reference of the {len(references)} sentence(s) has a word: give lines that are not empty.")


def _tokens(line: str, lowercase: bool, split: bool) -> list[bytes]:
    seen = line.encode()
    seen = seen.lower() if lowercase else seen
    return (_split(seen) if split else seen).split()


def _split(line: bytes) -> bytes:
    return _HYPHEN.sub(rb"\1 ##AT##-##AT## \2", line)
