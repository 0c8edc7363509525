"""The best next words of each hypothesis: all that a search needs of (R, V) log-probabilities.

Forbidding words and taking penalties off only lowers values; hence the best ``count`` afterwards are among the best
``count`` + (number of words lowered) before, and the whole array is neither copied nor written.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vlplatform.decoding.limits import Limits
from vlplatform.decoding.protocol import Rule, Symbols
from vlplatform.errors import UserError

_FEW = 16  # so many words are passed over among the best; more are struck out beforehand
_CHUNK = 64


def best_words(
    log_probs: Tensor, count: int, limits: Limits, symbols: Symbols, made: int, *, spare: int = 0
) -> tuple[Tensor, Tensor]:
    """Log-probabilities (R, k ≥ count) and numbers of the best words that may follow ``made`` tokens.

    Where fewer words may follow, the rest has −∞.

    Args:
        log_probs: (R, V).
        count: How many are wanted.
        limits: What is forbidden or penalised.
        symbols: The vocabulary's special symbols.
        made: Tokens chosen so far.
        spare: How many words the caller is going to lower.
    """
    banned, penalty = limits.forbidden(symbols, made), limits.penalty(symbols)
    if len(banned) > _FEW:
        log_probs, banned = struck(log_probs, banned), ()
    values, words = top(log_probs, count + len(banned) + (penalty > 0) + spare)
    values = values if values.dtype in (torch.float32, torch.float64) else values.float()
    for word in banned:
        values = values.masked_fill(words == word, -torch.inf)
    if penalty:
        values = values - penalty * (words == symbols.unk).to(values.dtype)
    if (short := count - values.shape[1]) > 0:
        values, words = F.pad(values, (0, short), value=-torch.inf), F.pad(words, (0, short), value=symbols.pad)
    return values, words


def only(log_probs: Tensor, word: int, count: int) -> tuple[Tensor, Tensor]:
    """As :func:`best_words` where ``word`` alone may follow."""
    values = F.pad(log_probs[:, word : word + 1], (0, count - 1), value=-torch.inf)
    values = values if values.dtype in (torch.float32, torch.float64) else values.float()
    return values, torch.full(values.shape, word, device=values.device)


def struck(log_probs: Tensor, words: Sequence[int]) -> Tensor:
    """A copy with −∞ for these words."""
    return log_probs.index_fill(1, torch.tensor(list(words), dtype=torch.long, device=log_probs.device), -torch.inf)


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """``values.topk(count)`` of (R, V), at most V of them; which of equal values come is left open, as there.

    On a CPU the maxima of chunks are compared first: the best ``count`` values lie in ``count`` chunks.
    """
    rows, size = values.shape
    chunks, count = size // _CHUNK, min(count, size)
    if values.device.type != "cpu" or rows < 16 or chunks < 4 * count:
        return values.topk(count)
    head = values[:, : chunks * _CHUNK].unflatten(1, (chunks, _CHUNK))
    which = head.detach().amax(-1).topk(count, sorted=False)[1]
    inside = head.gather(1, which[..., None].expand(-1, -1, _CHUNK)).flatten(1)
    numbers = (which[..., None] * _CHUNK + torch.arange(_CHUNK)).flatten(1)
    if chunks * _CHUNK < size:
        inside = torch.cat((inside, values[:, chunks * _CHUNK :]), 1)
        rest = torch.arange(chunks * _CHUNK, size).expand(rows, -1)
        numbers = torch.cat((numbers, rest), 1)
    best, place = inside.topk(count)
    return best, numbers.gather(1, place)


def checked(log_probs: Tensor, rows: int, limits: Limits, symbols: Symbols) -> Tensor:
    """What a step gave, if it is (R, V) with all the words spoken of.

    Raises:
        UserError: It is not.
    """
    if log_probs.ndim != 2 or log_probs.shape[0] != rows:
        raise UserError(f"the decoder's step gave shape {tuple(log_probs.shape)}; expected ({rows}, words).")
    size = log_probs.shape[1]
    highest = max(symbols.pad, symbols.bos, symbols.eos, symbols.unk or 0, *(limits.forbid or ()))
    if highest >= size:
        raise UserError(
            f"the decoder's step gives {size} words, numbered from 0, but symbols or forbid=… speak of number "
            f"{highest}: give the vocabulary that belongs to the model."
        )
    return log_probs


def ruled(log_probs: Tensor, tokens: Tensor, rules: Sequence[Rule]) -> Tensor:
    """(R, V) after all rules, which see the tokens so far (R, t); without rules nothing is copied."""
    if rules:
        log_probs = log_probs.clone()
    for rule in rules:
        log_probs = rule(log_probs, tokens)
    return log_probs
