"""Every sentence about a scene is true: read back word by word and judged by the instance map alone.

The judge below shares no code with the generator. ``clear`` says that a relation holds beyond doubt, ``plausible``
that somebody might say so; an expression must be clear for its target and not plausible for anything else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from vlplatform.data.scenes import CLASSES, GROUNDS, SHAPES, Scene, scene

PLACE = r"(left of|right of|above|below|larger than|smaller than)"
WORDS = {w: k for k, w in enumerate(("no", "one", "two", "three", "four", "five", "six", "seven", "eight"))}
SPOKEN = {
    "to the left of": "left of",
    "to the right of": "right of",
    "over": "above",
    "under": "below",
}


class Judge:
    """What can be seen in a scene."""

    def __init__(self, s: Scene) -> None:
        self.words = [{*t.words, t.texture, "shape"} for t in s.things]
        self.shapes = [t.shape for t in s.things]
        self.colours = [t.colour for t in s.things]
        pixels = [np.argwhere(s.instances == k + 1) for k in range(len(s.things))]
        low = np.array([p.min(axis=0) for p in pixels], float)[:, ::-1]
        high = np.array([p.max(axis=0) + 1 for p in pixels], float)[:, ::-1]
        self.centre, self.area = (low + high) / 2, (high - low).prod(axis=1)
        self.margin = len(s.image) / 16 - 0.5
        self.grounds = {CLASSES[k] for k in np.unique(s.labels)} & set(GROUNDS)
        self.all = range(len(s.things))

    def noun(self, phrase: str) -> list[int]:
        """The things that an adjective–noun phrase fits."""
        said = set(re.sub(r"^(the|an|a) ", "", phrase).split())
        assert said, phrase
        return [k for k in self.all if said <= self.words[k]]

    def one(self, phrase: str) -> int:
        (thing,) = self.noun(phrase)
        return thing

    def clear(self, relation: str, a: int, b: int) -> bool:
        if relation in ("larger than", "smaller than"):
            ratio = self.area[a] / self.area[b]
            return ratio >= 1.29 if relation == "larger than" else ratio <= 1 / 1.29
        ahead, aside = self._offset(relation, a, b)
        return ahead >= self.margin and ahead >= aside

    def plausible(self, relation: str, a: int, b: int) -> bool:
        if relation in ("larger than", "smaller than"):
            ratio = self.area[a] / self.area[b]
            return ratio > 1 / 1.09 if relation == "larger than" else ratio < 1.09
        ahead, aside = self._offset(relation, a, b)
        return ahead > 0 and ahead > aside / 2.9

    def _offset(self, relation: str, a: int, b: int) -> tuple[float, float]:
        dx, dy = self.centre[b] - self.centre[a]
        return {
            "left of": (dx, abs(dy)),
            "right of": (-dx, abs(dy)),
            "above": (dy, abs(dx)),
            "below": (-dy, abs(dx)),
        }[relation]

    def between(self, k: int, a: int, b: int) -> tuple[bool, bool]:
        """Clearly, and plausibly."""
        way, off = self.centre[b] - self.centre[a], self.centre[k] - self.centre[a]
        along = off @ way / (way @ way)
        across = np.linalg.norm(off - along * way) / np.linalg.norm(way)
        return 0.24 < along < 0.76 and across < 0.21, 0.06 < along < 0.94 and across < 0.39

    def nearest(self, anchor: int, among: list[int]) -> int:
        order = sorted((np.linalg.norm(self.centre[k] - self.centre[anchor]), k) for k in among if k != anchor)
        assert len(order) == 1 or order[1][0] >= 1.24 * order[0][0]
        return order[0][1]

    def extreme(self, word: str, among: list[int]) -> int:
        key = {
            "leftmost": self.centre[:, 0],
            "rightmost": -self.centre[:, 0],
            "topmost": self.centre[:, 1],
            "bottommost": -self.centre[:, 1],
            "largest": -np.log(self.area),
            "smallest": np.log(self.area),
        }[word]
        first, second = sorted(key[k] for k in among)[:2]
        assert second - first >= (np.log(1.29) if word in ("largest", "smallest") else self.margin / 2)
        return min(among, key=lambda k: key[k])

    def only(self, among: list[int], clear: Callable[[int], bool], plausible: Callable[[int], bool]) -> int:
        (found,) = [k for k in among if plausible(k)]
        assert clear(found)
        return found

    def point(self, text: str) -> int:
        """The thing that a referring expression means, or an error if it is not beyond doubt."""
        if m := re.fullmatch(r"the (\w+most|largest|smallest) (.+)", text):
            return self.extreme(m[1], self.noun(m[2]))
        if m := re.fullmatch(r"the (.+) nearest to the (.+)", text):
            return self.nearest(self.one(m[2]), self.noun(m[1]))
        if m := re.fullmatch(r"the (.+) between the (.+) and the (.+)", text):
            a, b = self.one(m[2]), self.one(m[3])
            among = [k for k in self.noun(m[1]) if k not in (a, b)]
            return self.only(among, lambda k: self.between(k, a, b)[0], lambda k: self.between(k, a, b)[1])
        if m := re.fullmatch(rf"the (.+?) {PLACE} the (.+)", text):
            anchor, relation = self.one(m[3]), m[2]
            among = [k for k in self.noun(m[1]) if k != anchor]
            return self.only(
                among, lambda k: self.clear(relation, k, anchor), lambda k: self.plausible(relation, k, anchor)
            )
        return self.one(text)

    def count(self, phrase: str) -> int:
        *adjectives, noun = phrase.split()
        return len(self.noun(" ".join([*adjectives, {"crosses": "cross"}.get(noun, noun.removesuffix("s"))])))

    def inventory(self, text: str) -> bool:
        said: Counter[str] = Counter()
        for part in re.split(r", | and ", text):
            number, noun = part.split()
            one = number in ("a", "an")
            said[noun if one else {"crosses": "cross"}.get(noun, noun.removesuffix("s"))] += 1 if one else WORDS[number]
        return said == Counter(self.shapes)

    def caption(self, text: str) -> bool:
        """Whether a caption is true."""
        ground = "|".join(GROUNDS)
        if m := re.fullmatch(rf"(.+) on ({ground})(?: and ({ground}))?", text):
            return {m[2], m[3]} - {None} == self.grounds and self.caption(m[1])
        text = re.sub(r"^(a picture of|there is) ", "", text)
        if m := re.fullmatch(r"there are (\w+) shapes", text):
            return WORDS[m[1]] == len(self.shapes)
        if m := re.fullmatch(r"(.+) among (\w+) shapes", text):
            return WORDS[m[2]] == len(self.shapes) and bool(self.noun(m[1]))
        spoken = "|".join([*SPOKEN, "left of", "right of", "above", "below"])
        if m := re.fullmatch(rf"(.+?) ({spoken}) (.+)", text):
            relation = SPOKEN.get(m[2], m[2])
            return any(self.clear(relation, a, b) for a in self.noun(m[1]) for b in self.noun(m[3]) if a != b)
        if "," in text or " and " in text or text.split()[0] in WORDS:
            return self.inventory(text)
        return bool(self.noun(text))

    def answer(self, text: str) -> str:
        """The right answer to a question."""
        text = text.removesuffix("?")
        if m := re.fullmatch(r"is there (?:(an? .+)|(\w+))", text):
            return _yes(bool(self.noun(m[1])) if m[1] else m[2] in self.grounds)
        if m := re.fullmatch(rf"is the (.+?) {PLACE} the (.+)", text):
            a, b = self.one(m[1]), self.one(m[3])
            clear = self.clear(m[2], a, b)
            assert clear == self.plausible(m[2], a, b)
            return _yes(clear)
        if m := re.fullmatch(r"is the (.+) (plain|striped|dotted)", text):
            return _yes(m[2] in self.words[self.one(m[1])])
        if m := re.fullmatch(rf"how many shapes are {PLACE} the (.+)", text):
            anchor = self.one(m[2])
            others = [k for k in self.all if k != anchor]
            clear = [self.clear(m[1], k, anchor) for k in others]
            assert clear == [self.plausible(m[1], k, anchor) for k in others]
            return str(sum(clear))
        if m := re.fullmatch(r"how many (.+) are there", text):
            return str(self.count(m[1]))
        if m := re.fullmatch(r"what colour is (the .+)", text):
            assert not set(m[1].split()) & set(self.colours)
            return self.colours[self.point(m[1])]
        if m := re.fullmatch(r"what (shape is .+)", text):
            return self.shapes[self.point(f"the {m[1].replace('shape is', 'shape', 1)}")]
        if m := re.fullmatch(r"which is larger, the (.+) or the (.+)", text):
            a, b = self.one(m[1]), self.one(m[2])
            assert self.shapes[a] != self.shapes[b]
            assert max(self.area[a], self.area[b]) >= 1.29 * min(self.area[a], self.area[b])
            return self.shapes[a if self.area[a] > self.area[b] else b]
        if text == "what is the ground made of":
            (ground,) = self.grounds
            return ground
        m = re.fullmatch(r"what lies beside the (\w+)", text)
        assert m, text
        (ground,) = self.grounds - {m[1]}
        return ground


def _yes(truth: bool) -> str:
    return "yes" if truth else "no"


@pytest.fixture(scope="module")
def judged() -> list[tuple[Scene, Judge]]:
    made = [scene(21, index) for index in range(1500)]
    return [(s, Judge(s)) for s in made]


def test_captions_are_five_different_truths(judged: list[tuple[Scene, Judge]]) -> None:
    for s, judge in judged:
        assert len(set(s.captions)) == len(s.captions) == 5
        for caption in s.captions:
            assert judge.caption(caption), (s.id, caption)


def test_the_judge_of_captions_can_say_no(judged: list[tuple[Scene, Judge]]) -> None:
    exchanged = [judge.caption(c) for (_, judge), (s, _) in pairwise(judged) for c in s.captions]
    assert np.mean(exchanged) < 0.1


def test_expressions_fit_their_target_alone(judged: list[tuple[Scene, Judge]]) -> None:
    kinds: Counter[str] = Counter()
    for s, judge in judged:
        assert sorted(e.target for e in s.expressions) == list(judge.all)
        for e in s.expressions:
            assert judge.point(e.text) == e.target, (s.id, e)
            kinds[e.kind] += 1
    assert set(kinds) == {"looks", "relation", "nearest", "between", "extreme"}
    assert kinds["looks"] < 0.5 * kinds.total()
    assert kinds["between"] > 0.02 * kinds.total()


def test_expressions_by_geometry_cannot_be_solved_by_looks(judged: list[tuple[Scene, Judge]]) -> None:
    for s, judge in judged:
        for e in s.expressions:
            if e.kind != "looks":
                own = re.split(rf" (?:nearest|between|{PLACE[1:-1]}) ", e.text)[0]
                own = re.sub(r"^the (\w+most |largest |smallest )?", "", own)
                assert len(judge.noun(own)) > 1, e


def test_questions_have_the_right_answers(judged: list[tuple[Scene, Judge]]) -> None:
    for s, judge in judged:
        assert [q.kind for q in s.questions] == ["yes/no", "number", "colour", "other"]
        for q in s.questions:
            assert judge.answer(q.text) == q.answer, (s.id, q)


def test_annotators_disagree_but_the_majority_is_right(judged: list[tuple[Scene, Judge]]) -> None:
    asked = [q for s, _ in judged for q in s.questions]
    for q in asked:
        assert len(q.answers) == 10
        assert q.answers.count(q.answer) >= 6
    assert 0.4 < np.mean([len(set(q.answers)) > 1 for q in asked]) < 0.9


def test_answers_cannot_be_guessed_from_the_kind(judged: list[tuple[Scene, Judge]]) -> None:
    for kind, most in (("yes/no", 0.55), ("number", 0.4), ("colour", 0.2), ("other", 0.25)):
        answers = Counter(q.answer for s, _ in judged for q in s.questions if q.kind == kind)
        assert answers.most_common(1)[0][1] < most * answers.total(), (kind, answers)
    assert set(SHAPES) < {q.answer for s, _ in judged for q in s.questions}
