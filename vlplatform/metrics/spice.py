"""SPICE by its Java program: F1 of the scene graphs' tuples, with WordNet's synonyms.

SPICE: https://arxiv.org/abs/1607.08822. The program needs Stanford CoreNLP 3.6.0 and its models (some 400 MB) beside
it, which pycocoevalcap does not bring along.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vlplatform.errors import UserError
from vlplatform.metrics import java

_JAR = "spice/spice-1.0.jar"
_MODELS = ("spice/lib/stanford-corenlp-3.6.0.jar", "spice/lib/stanford-corenlp-3.6.0-models.jar")
_GET = "`python -c 'from pycocoevalcap.spice.get_stanford_models import *; get_stanford_models()'` downloads it"


def missing() -> str | None:
    """Why SPICE cannot run here; None if it can."""
    if reason := java.missing(_JAR):
        return reason
    return f"{reason}, a part of Stanford CoreNLP 3.6.0: {_GET}" if (reason := java.missing(*_MODELS)) else None


class Spice:
    """SPICE at work in a process of its own.

    Args:
        captions: One tokenised caption per image.
        references: Per image its tokenised references, one at least.
        seconds: The time limit, from now on.

    Raises:
        UserError: It cannot run here (see :func:`missing`).
    """

    def __init__(self, captions: Sequence[str], references: Sequence[Sequence[str]], *, seconds: float = 1800) -> None:
        if reason := missing():
            raise UserError(f"SPICE cannot run: {reason}.")
        pairs = enumerate(zip(captions, references, strict=True))
        records = [{"image_id": i, "test": caption, "refs": list(texts)} for i, (caption, texts) in pairs]
        # Java 9 and later forbid the reflection its serialiser lives by; Java 8 does not know the option.
        opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "math", "net", "text", "util")]
        arguments = ("-Xmx8G", "-XX:+IgnoreUnrecognizedVMOptions", *opened, "-jar", str(java.tool(_JAR)))
        options = ("captions.json", "-out", "scores.out", "-subset", "-silent")
        files = {"captions.json": json.dumps(records)}
        self._images = len(records)
        self._job = java.Job("SPICE", (*arguments, *options), files=files, seconds=seconds)

    def wait(self) -> tuple[float, NDArray[np.float64]]:
        """The mean of the images' F and each image's, (images,).

        Raises:
            UserError: It failed, took too long, or left no readable scores.
        """
        self._job.wait()
        try:
            records = json.loads(self._job.outputs["scores.out"])
            found = {int(record["image_id"]): float(record["scores"]["All"]["f"]) for record in records}
            each = np.array([found[i] for i in range(self._images)], np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"SPICE left no readable scores ({error!r}): run it again or leave it out.") from None
        return float(each.mean()), each

    def stop(self) -> None:
        """End it without a score."""
        self._job.stop()
