"""METEOR 1.5 by its Java program, from the statistics it counts.

METEOR: https://aclanthology.org/W14-3348. The program matches captions with references (word forms, stems, synonyms,
paraphrases) and gives 23 counts per image; the score is computed here from them. The corpus score comes from the
summed counts and is not the mean of the images' scores. Equal to pycocoevalcap's `Meteor` to 1e-6.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vlplatform.errors import UserError
from vlplatform.metrics import java

# The English task's parameters, and the modules' weights: exact, stem, synonym, paraphrase.
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])

_FILES = ("meteor/meteor-1.5.jar", "meteor/data/paraphrase-en.gz")


def missing() -> str | None:
    """Why METEOR cannot run here; None if it can."""
    return java.missing(*_FILES)


class Meteor:
    """METEOR at work in a process of its own.

    Args:
        captions: One tokenised caption per image.
        references: Per image its tokenised references, one at least.
        seconds: The time limit, from now on.

    Raises:
        UserError: It cannot run here (see :func:`missing`).
    """

    def __init__(self, captions: Sequence[str], references: Sequence[Sequence[str]], *, seconds: float = 600) -> None:
        if reason := missing():
            raise UserError(f"METEOR cannot run: {reason}.")
        lines = [
            " ||| ".join(("SCORE", *map(_clean, texts), _clean(caption)))
            for caption, texts in zip(captions, references, strict=True)
        ]
        arguments = ("-Xmx2G", "-jar", str(java.tool(_FILES[0])), "-", "-", "-stdio", "-l", "en", "-norm")
        self._images = len(lines)
        self._job = java.Job("METEOR", arguments, text="".join(f"{line}\n" for line in lines), seconds=seconds)

    def wait(self) -> tuple[float, NDArray[np.float64]]:
        """The corpus score and each image's, (images,).

        Raises:
            UserError: It failed, took too long, or answered with something else than its statistics.
        """
        lines = self._job.wait().splitlines()
        try:
            statistics = np.array([line.split() for line in lines], np.float64).reshape(self._images, 23)
        except ValueError:
            said = f"{len(lines)} lines for {self._images} images, the last: {lines[-1][:200] if lines else ''}"
            raise UserError(f"METEOR did not answer with its statistics ({said}).") from None
        return scores(statistics)

    def stop(self) -> None:
        """End it without a score."""
        self._job.stop()


def scores(statistics: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """The corpus score and each image's from the program's counts.

    Args:
        statistics: (images, 23): words of caption and reference; function words of both; for each of the four modules
            matched content words of both and function words of both; chunks; matched words of both.
    """
    whole = statistics.copy()
    perfect = (whole[:, 20] == 1) & (whole[:, 0] == whole[:, 21]) & (whole[:, 1] == whole[:, 22])
    whole[perfect, 20] = 0  # one chunk that is all of both costs nothing, in the sums neither
    return float(_score(whole.sum(0, keepdims=True))[0]), _score(whole)


def _score(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    words, functions = counts[:, :2], counts[:, 2:4]
    content, function = counts[:, 4:20].reshape(-1, 4, 2, 2).transpose(2, 0, 3, 1) @ WEIGHTS  # (images, 2) each
    size = DELTA * (words - functions) + (1 - DELTA) * functions
    found = DELTA * content + (1 - DELTA) * function
    precision, recall = np.divide(found, size, out=np.zeros_like(found), where=size > 0).T
    both, weighted = precision * recall, ALPHA * precision + (1 - ALPHA) * recall
    mean = np.divide(both, weighted, out=np.zeros_like(both), where=weighted > 0)
    chunks, matches = counts[:, 20], counts[:, 21:].mean(1)
    broken = np.divide(chunks, matches, out=np.zeros_like(matches), where=matches > 0)
    return mean * (1 - GAMMA * broken**BETA)


def _clean(text: str) -> str:
    """Without what separates the fields and lines of a request."""
    return " ".join(text.replace("|||", "").split())
