"""Translations of a user's own sentences: from the command line, from files, from standard input."""

from __future__ import annotations

import codecs
import io
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import torch
from torch import nn

from vlp_translation.ensemble import members_of, n_best
from vlp_translation.lines import read_lines
from vlp_translation.models import Translation, Translator
from vlp_translation.task import DecodeSettings
from vlp_translation.texts import Texts
from vlp_translation.texts.placeholders import notes_of
from vlplatform import settings
from vlplatform.engine.progress import Display
from vlplatform.errors import UserError

BATCH = 64
"""Sentences that are translated together; sorted by length among so many times ``BATCH``."""

Line = tuple[str, str]
"""A line, and where it stands, for messages."""


def predict_texts(model: nn.Module, inputs: Sequence[str | Path], out: Path | None, device: torch.device) -> list[Path]:
    """Translate sentences, files of them and standard input, a line each; the order is kept.

    Translations of sentences and of standard input (``-``) are printed, a line each and nothing else; those of a file
    go to ``OUT/NAME.LANGUAGE``. An empty line's translation is an empty line, as is that of a sentence for which none
    is found; this is said. With ``task.decode.returned`` or ``task.decode.samples`` above 1 the lines are n-best lists,
    ``NUMBER ||| TRANSLATION ||| SCORE``: sentences are numbered from 0, the best of each comes first, and ``|||`` in a
    translation is escaped as Moses escapes it (whose own lists have the scores of their features before the last).

    Args:
        model: The translator, or an ensemble.
        inputs: Sentences; paths of files; ``-``. None: standard input.
        out: Folder for the translations of files.
        device: Where to translate.

    Returns:
        The files written.

    Raises:
        UserError: A file that cannot be read, is not UTF-8, or whose translation cannot be written; a line that is too
            long. Files are looked through for such lines before the first is translated. A word that ends as files of
            the model's languages do (``newstest.en``) and is none.
    """
    models, decode = members_of(model.to(device).eval()), as_decoded(model)
    for note in notes_of(models[0].texts):
        print(f"note: {note}.", file=sys.stderr)
    for each in inputs:
        _refuse_absent(each, models[0].texts)
    files = [each for each in inputs if isinstance(each, Path)]
    targets = _targets(files, out or Path("predictions"), models[0].texts.target.language)
    total = 0
    for path in targets:
        for where, line in _lines(path):
            decode.check_length(len(line.split()), where, _positions(models))
            total += 1
    with Display(beside=True) as display:
        if total:
            display.start(total, 0)
        return _predicted(models, inputs, targets, decode, display)


def _predicted(
    models: Sequence[Translator],
    inputs: Sequence[str | Path],
    targets: Mapping[Path, Path],
    decode: DecodeSettings,
    display: Display,
) -> list[Path]:
    done, written = itertools.count(1), list[Path]()

    def watched(path: Path) -> Iterator[list[Translation]]:
        return translated(models, _lines(path), decode, lambda: display.update(next(done), path.name))

    for kind, group in itertools.groupby(
        inputs or ["-"], lambda each: "file" if isinstance(each, Path) else each == "-"
    ):
        if kind == "file":
            for path in group:
                written.append(_file(watched(Path(path)), targets[Path(path)], decode))
        elif kind:
            _print((each for lines in _arriving() for each in translated(models, lines, decode)), decode)
        else:
            _print(translated(models, [(f"'{str(text)[:20]} …'", str(text)) for text in group], decode), decode)
    return written


def translated(
    models: Sequence[Translator],
    lines: Iterable[Line],
    decode: DecodeSettings,
    watch: Callable[[], None] = lambda: None,
) -> Iterator[list[Translation]]:
    """The best translations of each line, in the order of the lines, some batches at a time.

    Args:
        models: The translator, or the members of an ensemble.
        lines: As many as there are; they are not held. Lines of like lengths share a batch.
        decode: How.
        watch: Called whenever one more line has been translated, in whatever order.

    Raises:
        UserError: A line that is too long; those before it are translated first.
    """
    stream, source = iter(lines), models[0].texts.source
    while chunk := list(itertools.islice(stream, BATCH * BATCH)):
        lengths = [len(source.encode(line)) for _, line in chunk]
        fault: UserError | None = None
        for place, (length, (where, _)) in enumerate(zip(lengths, chunk)):
            try:
                decode.check_length(length, where, _positions(models))
            except UserError as error:
                fault, chunk, lengths = error, chunk[:place], lengths[:place]
                break
        order = sorted(range(len(chunk)), key=lengths.__getitem__)
        found: list[list[Translation]] = [[]] * len(chunk)
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            for place, best in zip(places, n_best(models, [chunk[i][1] for i in places], decode)):
                found[place] = best
                watch()
        for (where, _), best in zip(chunk, found):
            if best[0].score == -math.inf:
                reason = "has no translation that ends within the lengths and rules of task.decode"
                print(f"note: {where} {reason}: its line is empty.", file=sys.stderr)
            yield best
        if fault:
            raise fault


def _positions(models: Sequence[Translator]) -> float:
    """Positions that every model has for a source and its end."""
    return min(model.model_settings.places[0] for model in models)


def as_decoded(model: nn.Module) -> DecodeSettings:
    """How the model's run decoded in evaluation, or as ``vlp predict`` was told; the defaults without a run."""
    task = getattr(model, "loaded_config", {}).get("sections", {}).get("task", {})
    return settings.parse(DecodeSettings, task["decode"], "task.decode") if "decode" in task else DecodeSettings()


def _written(translations: Iterable[list[Translation]], decode: DecodeSettings) -> Iterator[str]:
    """Lines of the sentences' translations."""
    for number, found in enumerate(translations):
        for each in found:
            text = " ".join(each.text.split("\n"))
            if decode.written > 1:
                text = f"{number} ||| {text.replace('|||', 3 * '&#124;')} ||| {each.score:.6f}"
            yield text


def _print(translations: Iterable[list[Translation]], decode: DecodeSettings) -> None:
    for line in _written(translations, decode):
        print(line, flush=True)


def _refuse_absent(given: str | Path, texts: Texts) -> None:
    """See that a word is not the name of a file that is not there."""
    languages = (texts.source.language, texts.target.language)
    if isinstance(given, str) and re.search(rf"^\S+\.({'|'.join(map(re.escape, languages))})$", given):
        raise UserError(f"the input {given} is not a file; a text that looks like one goes through standard input.")


def _targets(files: Sequence[Path], out: Path, language: str) -> dict[Path, Path]:
    """File → the file of its translation."""
    targets = {path: out / f"{path.name}.{language}" for path in files}
    for path, target in targets.items():
        if other := next((each for each in targets if each != path and targets[each] == target), None):
            raise UserError(f"{path} and {other} would both be translated into {target}: predict one after the other.")
    return targets


def _file(translations: Iterable[list[Translation]], target: Path, decode: DecodeSettings) -> Path:
    """Write a file's translations into ``target``, which is there only when it is whole."""
    part = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in _written(translations, decode))
        part.replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror or error}): choose another --out.") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return target


def _lines(path: Path) -> Iterator[Line]:
    return ((f"{path}, line {number},", line) for number, line in read_lines(path))


def _arriving() -> Iterator[list[Line]]:
    """Lines of standard input, together those that have come together."""
    number, rest = 0, b""
    stream = cast(io.BufferedReader, sys.stdin.buffer)
    while block := stream.read1(1 << 16):  # what there is, without waiting for more
        *whole, rest = (rest + block).split(b"\n")
        lines, fault = _decoded(whole, number)
        number += len(whole)
        yield lines
        if fault:
            raise fault
    if rest:
        lines, fault = _decoded([rest], number)
        yield lines
        if fault:
            raise fault


def _decoded(raws: Sequence[bytes], before: int) -> tuple[list[Line], UserError | None]:
    """The lines up to the first that is not UTF-8, and what to say of that one."""
    lines: list[Line] = []
    for number, raw in enumerate(raws, before + 1):
        raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        where = f"standard input, line {number},"
        try:
            lines.append((where, raw.removesuffix(b"\r").decode("utf-8")))
        except UnicodeDecodeError:
            return lines, UserError(f"{where} is not UTF-8: convert it (iconv -t utf-8).")
    return lines, None
