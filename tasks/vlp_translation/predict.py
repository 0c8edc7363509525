"""Translations of a user's own sentences: from the command line, from files, from standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import torch

from vlp_translation.lines import read_lines
from vlp_translation.models import Translator
from vlp_translation.task import DecodeSettings, best_translations
from vlplatform import settings
from vlplatform.errors import UserError

BATCH = 64
"""Sentences that are translated together; sorted by length among so many times ``BATCH``."""


def predict_texts(
    model: Translator, inputs: Sequence[str | Path], out: Path | None, device: torch.device
) -> list[Path]:
    """Translate sentences, files of them and standard input, a line each; the order is kept.

    Translations of sentences and of standard input (``-``) are printed, a line each and nothing else; those of a file
    go to ``OUT/NAME.LANGUAGE``. An empty line's translation is an empty line.

    Args:
        model: The translator.
        inputs: Sentences; paths of files; ``-``. None: standard input.
        out: Folder for the translations of files.
        device: Where to translate.

    Returns:
        The files written.

    Raises:
        UserError: A file that cannot be read, is not UTF-8, or whose translation cannot be written.
    """
    model = model.to(device).eval()
    decode = as_decoded(model)
    written: list[Path] = []
    for each in inputs or ["-"]:
        if isinstance(each, Path):
            written.append(_file(model, each, out or Path("predictions"), decode))
        else:
            lines = _standard_input() if each == "-" else [each]
            for translation in translated(model, lines, decode, ahead=1 if each == "-" else BATCH):
                print(translation, flush=True)
    return written


def translated(model: Translator, lines: Iterable[str], decode: DecodeSettings, ahead: int = BATCH) -> Iterator[str]:
    """The translations of lines, in their order, a few batches at a time.

    Args:
        model: The translator.
        lines: As many as there are; they are not held.
        decode: How.
        ahead: Batches read before the first is translated; lines of like lengths share a batch.
    """
    stream = iter(lines)
    while chunk := list(islice(stream, BATCH * ahead if ahead > 1 else 1)):
        order = sorted(range(len(chunk)), key=lambda i: len(chunk[i]))
        found = [""] * len(chunk)
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            for place, translation in zip(places, best_translations(model, [chunk[i] for i in places], decode)):
                found[place] = " ".join(translation.text.split("\n"))
        yield from found


def as_decoded(model: Translator) -> DecodeSettings:
    """How the model's run decoded in evaluation; the defaults without a run."""
    task = getattr(model, "loaded_config", {}).get("sections", {}).get("task", {})
    return settings.parse(DecodeSettings, task["decode"], "task.decode") if "decode" in task else DecodeSettings()


def _file(model: Translator, path: Path, out: Path, decode: DecodeSettings) -> Path:
    """Translate a file into ``OUT/NAME.LANGUAGE``, which is there only when it is whole."""
    target = out / f"{path.name}.{model.texts.target.language}"
    part = target.with_name(f".{target.name}.part")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            file = stack.enter_context(part.open("w", encoding="utf-8", newline="\n"))
            for translation in translated(model, (line for _, line in read_lines(path)), decode):
                file.write(f"{translation}\n")
        part.replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror or error}): choose another --out.") from error
    finally:
        part.unlink(missing_ok=True)
    return target


def _standard_input() -> Iterator[str]:
    """Lines of standard input as they come."""
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            yield raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UserError(f"standard input, line {number} is not UTF-8: convert it (iconv -t utf-8).") from error
