"""Slow, obvious searches: one item, one hypothesis at a time, in Python lists, straight from the definitions.

``next_words(tokens)`` gives the log-probabilities (a list of V numbers) that follow the tokens chosen so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

NextWords = Callable[[list[int]], list[float]]
NEVER = -math.inf


@dataclass(frozen=True)
class Grown:
    tokens: list[int]
    log_probs: list[float]
    ended: bool = False

    @property
    def total(self) -> float:
        return sum(self.log_probs)

    def score(self, alpha: float) -> float:
        return self.total / max(1, len(self.tokens)) ** alpha


@dataclass(frozen=True)
class Task:
    next_words: NextWords
    beam: int
    length: int
    eos: int
    alpha: float = 0.0
    min_length: int = 0
    forbid: tuple[int, ...] = ()
    unk: int | None = None
    unk_penalty: float = 0.0

    def values(self, tokens: list[int]) -> list[float]:
        values = list(self.next_words(tokens))
        for word in range(len(values)):
            if word in self.forbid or (word == self.eos and len(tokens) < self.min_length):
                values[word] = NEVER
            if word == self.unk:
                values[word] -= self.unk_penalty
        return values


def grown(hypothesis: Grown, word: int, value: float, eos: int) -> Grown:
    return Grown([*hypothesis.tokens, word], [*hypothesis.log_probs, value], word == eos)


def in_beam(task: Task) -> list[Grown]:
    """All steps are made; who has ended stays as it is and competes."""
    beam = [Grown([], [])]
    for _ in range(task.length):
        beam = step_in_beam(task, beam, [])
    return sorted(beam, key=lambda h: -h.score(task.alpha))


def step_in_beam(task: Task, beam: list[Grown], said: list[int], diversity: float = 0.0) -> list[Grown]:
    ranked = []
    for hypothesis in beam:
        if hypothesis.ended:
            ranked.append((hypothesis.score(task.alpha), hypothesis))
            continue
        for word, value in enumerate(task.values(hypothesis.tokens)):
            if value > NEVER:
                new = grown(hypothesis, word, value, task.eos)
                rank = (new.total - diversity * said.count(word)) / len(new.tokens) ** task.alpha
                ranked.append((rank, new))
    return [h for _, h in sorted(ranked, key=lambda pair: -pair[0])[: task.beam]]


def aside(task: Task, *, early: bool = True) -> list[Grown]:
    """fairseq's way; without ``early`` nothing but the end of time stops it."""
    live, done = [Grown([], [])], []
    for made in range(task.length):
        live, done, _ = step_aside(task, live, done, made, [])
        if early and len(done) == task.beam:
            break
    return sorted(done, key=lambda h: -h.score(task.alpha))


def step_aside(
    task: Task, live: list[Grown], done: list[Grown], made: int, said: list[int], diversity: float = 0.0
) -> tuple[list[Grown], list[Grown], list[int]]:
    """Who goes on, who has finished, and the words said in this step."""
    ranked = []
    for hypothesis in live:
        for word, value in enumerate(task.values(hypothesis.tokens)):
            forced = made == task.length - 1 and word != task.eos
            if value > NEVER and not forced:
                new = grown(hypothesis, word, value, task.eos)
                ranked.append((new.total - diversity * said.count(word), new))
    best = [h for _, h in sorted(ranked, key=lambda pair: -pair[0])[: 2 * task.beam]]
    ends = [h for h in best[: task.beam] if h.ended]
    live = [h for h in best if not h.ended][: task.beam]
    return live, (done + ends)[: task.beam], [h.tokens[-1] for h in live + ends]


def diverse(task: Task, groups: int, diversity: float, finish: str) -> list[Grown]:
    """Each group is a beam of its own that avoids the words the groups before it said in the same step."""
    own = replace(task, beam=task.beam // groups)
    live = [[Grown([], [])] for _ in range(groups)]
    done: list[list[Grown]] = [[] for _ in range(groups)]
    for made in range(task.length):
        said: list[int] = []
        for g in range(groups):
            if finish == "beam":
                live[g] = step_in_beam(own, live[g], said, diversity)
            else:
                live[g], done[g], spoken = step_aside(own, live[g], done[g], made, said, diversity)
                said = said + spoken
                continue
            said = said + [h.tokens[-1] for h in live[g] if len(h.tokens) == made + 1]
    found = live if finish == "beam" else done
    return sorted((h for group in found for h in group), key=lambda h: -h.score(task.alpha))


def greedy(task: Task) -> Grown:
    now = Grown([], [])
    while not now.ended and len(now.tokens) < task.length:
        values = task.values(now.tokens)
        word = max(range(len(values)), key=values.__getitem__)
        now = grown(now, word, values[word], task.eos)
    return now


def sampled(task: Task, draws: list[float], temperature: float, top_k: int, top_p: float) -> Grown:
    """Each draw is a place in the cumulated probabilities of the words allowed."""
    now = Grown([], [])
    for draw in draws:
        if now.ended:
            break
        values = task.values(now.tokens)
        order = list(range(len(values)))
        if top_k or top_p < 1:
            order.sort(key=lambda word: -values[word])
            order = order[: top_k or len(order)]
        weights = [math.exp(values[word] / temperature) for word in order]
        total = sum(weights)
        if top_p < 1:
            kept, before = [], 0.0
            for weight in weights:
                kept.append(weight if before < top_p * total else 0.0)
                before += weight
            weights, total = kept, sum(kept)
        at, place, before = draw * total, 0, 0.0
        while before + weights[place] <= at:
            before += weights[place]
            place += 1
        now = grown(now, order[place], values[order[place]], task.eos)
    return now


def every_sentence(task: Task, words: int) -> list[Grown]:
    """All that end within the length, best first."""
    live, done = [Grown([], [])], []
    for _ in range(task.length):
        new = [
            grown(h, word, task.values(h.tokens)[word], task.eos)
            for h in live
            for word in range(words)
            if task.values(h.tokens)[word] > NEVER
        ]
        live, done = [h for h in new if not h.ended], done + [h for h in new if h.ended]
    return sorted(done, key=lambda h: -h.score(task.alpha))
