"""The segments of evaluation files: ``<seg id="1"> a sentence </seg>`` in the XML of IWSLT and the SGML of WMT."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from vlp_translation.lines import read_lines
from vlplatform.errors import UserError

_BEGIN, _END = re.compile(r'.*<seg id="[^"]*">\s*'), re.compile(r"\s*</seg>.*")


def read_segments(path: Path) -> Iterator[tuple[int, str]]:
    """Pairs (line number, sentence); typographic apostrophes become plain ones, as in fairseq's scripts.

    Raises:
        UserError: The file cannot be read, is not UTF-8, or has no segment.
    """
    some = False
    for number, line in read_lines(path):
        if (begin := _BEGIN.match(line)) is None:
            continue
        some = True
        yield number, _END.sub("", line[begin.end() :]).replace("’", "'")
    if not some:
        raise UserError(f'{path} has no line with <seg id="…">: give the published file.')
