"""Sub-word pieces of transformers' tokenisers, and words out of them again without the tokeniser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from vlplatform.errors import UserError

Pieces = Literal["words", "wordpiece", "sentencepiece", "bytes", "bpe"]
"""How pieces join: whole words; ``##`` continues a word; ``▁`` begins one; ``Ġ`` begins one, in byte-level BPE; behind
a piece, ``@@`` says that the word goes on (subword-nmt)."""


def split(captions: Sequence[str], name: str) -> tuple[list[list[str]], Pieces]:
    """The pieces of each caption, and how they join.

    Args:
        captions: Texts.
        name: A tokeniser of transformers: a folder, or a hub id. No code from there runs.

    Raises:
        UserError: transformers is not installed, the tokeniser cannot be had, or its pieces join in another way.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UserError("sub-word tokenisers need transformers: pip install transformers.") from error
    from vlplatform.hub.reach import beyond_reach

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, local_files_only=beyond_reach(name))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"the tokeniser {name} cannot be had ({first}): give a folder or a hub id.") from error
    pieces = [tokenizer.tokenize(caption) for caption in captions]
    # Asked of a probe, not of the captions: short ones may have no continued word.
    probe = "".join(tokenizer.tokenize("an unquestionably extraordinary photograph"))
    for kind, mark in (("bytes", "Ġ"), ("sentencepiece", "▁"), ("wordpiece", "##")):
        if mark in probe:
            return pieces, kind  # type: ignore[return-value]
    raise UserError(f"the tokeniser {name} marks neither begun nor continued words (##, ▁, Ġ): choose another.")


def join(pieces: Iterable[str], kind: Pieces) -> list[str]:
    """The words that pieces make up."""
    if kind == "words":
        return list(pieces)
    if kind == "wordpiece":
        return " ".join(pieces).replace(" ##", "").split()
    if kind == "sentencepiece":
        return "".join(pieces).replace("▁", " ").split()
    if kind == "bpe":
        return f"{' '.join(pieces)} ".replace("@@ ", "").split()
    back = {letter: byte for byte, letter in _letters().items()}
    raw = bytes(back[letter] for piece in pieces for letter in piece if letter in back)
    return raw.decode("utf-8", errors="replace").split()


def _letters() -> dict[int, str]:
    """Byte → the printable letter that stands for it in byte-level BPE (Radford et al. 2019)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
