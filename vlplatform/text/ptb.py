"""Tokenisation of the official caption evaluation: Stanford PTBTokenizer 3.4.1, lower case, punctuation removed.

With Java and pycocoevalcap the original runs; without them `ptb_rules`, which gave the same tokens for every one of
61,954 human captions (COCO and Flickr8k). The name of the one that ran goes into the signature of the scores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlplatform.errors import UserError
from vlplatform.metrics.java import Job, missing, tool
from vlplatform.text import ptb_rules

JAVA, PYTHON = "ptb-3.4.1 (java)", "ptb (python)"

# Deleted after tokenising. Brackets arrive in lower case (-lrb-) and therefore stay, as in the official evaluation.
REMOVED = frozenset(
    ("''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";")
)

_JAR = "tokenizer/stanford-corenlp-3.4.1.jar"
_LINE_ENDS = re.compile("[\r\n\v\f\x85\u2028\u2029]")  # each would make Java begin a new line


@dataclass(frozen=True)
class Tokenized:
    """Tokenised captions.

    Attributes:
        captions: One per caption given, in their order: lower-case tokens with single blanks between them.
        tokenizer: Who made them, `ptb-3.4.1 (java)` or `ptb (python)`.
    """

    captions: list[str]
    tokenizer: str


def tokenize(captions: Sequence[str], *, java: Literal["auto", "require", "never"] = "auto") -> Tokenized:
    """Tokenise captions for the caption metrics.

    A letter with a full stop at the end of a caption is one token or two depending on how the next caption begins (the
    original reads across lines), so the captions of a data set are to be given together and in its order.

    Args:
        captions: Captions; ends of lines within them count as blanks.
        java: `auto` takes the original where Java and pycocoevalcap are there and our own rules elsewhere;
            `require` insists on the original, `never` on ours.

    Raises:
        UserError: `require` without Java or pycocoevalcap; the Java tool failed or took too long.
    """
    lines = [_LINE_ENDS.sub(" ", caption) for caption in captions]
    absent = None if java == "never" else missing(_JAR)
    if java == "require" and absent:
        raise UserError(f"the official tokeniser cannot run: {absent}, or set the tokeniser to 'never' (our own).")
    if java == "never" or absent:
        found = [ptb_rules.tokens(line, after) for line, after in zip(lines, [*lines[1:], ""])]
        return Tokenized([_kept(words) for words in found], PYTHON)
    return Tokenized([_kept(line.rstrip().split(" ")) for line in _stanford(lines)], JAVA)


def _stanford(lines: list[str]) -> list[str]:
    """The tokens of each line, by the Java tool."""
    arguments = ("-cp", str(tool(_JAR)), "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase")
    job = Job("the PTB tokeniser", arguments, text="\n".join(lines), seconds=120 + len(lines) / 500)
    found = job.wait().split("\n")
    found += [""] * (len(lines) - len(found)) if all(not line.strip() for line in lines[len(found) :]) else []
    if len(found) < len(lines) or any(found[len(lines) :]):
        raise UserError(
            f"the PTB tokeniser returned {len(found)} lines for {len(lines)} captions: "
            "look for control characters in the captions, or set the tokeniser to 'never' (our own)."
        )
    return found[: len(lines)]


def _kept(words: Sequence[str]) -> str:
    return " ".join(word for word in words if word and word not in REMOVED)
