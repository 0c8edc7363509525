"""Merges of byte-pair encoding that others learnt: files of subword-nmt and of fastBPE."""

from __future__ import annotations

from pathlib import Path

from vlp_translation.lines import read_lines
from vlp_translation.texts.bpe import Bpe
from vlplatform.errors import UserError

_END_APART = {"0.1": True, "0.2": False}


def read_codes(path: Path) -> Bpe:
    """The merges of a file: ``left right`` on each line, with a count behind them in fastBPE's.

    A file of subword-nmt without the line ``#version: …`` is of version 0.1.

    Raises:
        UserError: No such file, another version, or a line that is no pair of symbols.
    """
    merges: list[str] = []
    end_apart = True
    for number, line in read_lines(path):
        if number == 1 and line.startswith("#version:"):
            version = line.partition(":")[2].strip()
            if version not in _END_APART:
                raise UserError(f"{path} is of version {version}: give merges of {' or '.join(_END_APART)}.")
            end_apart = _END_APART[version]
            continue
        symbols = line.rstrip(" ").split(" ")
        if len(symbols) == 3 and symbols[2].isdecimal():
            end_apart = False
        elif len(symbols) != 2:
            raise UserError(f"{path}, line {number}, is '{line:.60}': two symbols with a blank between are expected.")
        merges.append(" ".join(symbols[:2]))
    if not merges:
        raise UserError(f"{path} has no merges: give the file that subword-nmt or fastBPE wrote.")
    return Bpe(merges, end_apart=end_apart)
