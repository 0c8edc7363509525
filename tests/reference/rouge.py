"""ROUGE-L as in the COCO evaluation, with the table of the textbook."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def common(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Length of the longest common subsequence."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def rouge_l(caption: Sequence[Hashable], references: Sequence[Sequence[Hashable]], beta: float = 1.2) -> float:
    """F of the best precision and the best recall; no token counts as one empty token."""
    mine, all_theirs = list(caption) or [None], [list(r) or [None] for r in references]
    precision = max(common(mine, theirs) / len(mine) for theirs in all_theirs)
    recall = max(common(mine, theirs) / len(theirs) for theirs in all_theirs)
    if not precision * recall:
        return 0.0
    return (1 + beta**2) * precision * recall / (recall + beta**2 * precision)
