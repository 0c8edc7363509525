"""Statements about places: read from captions, judged by the facts, tried on models that know and that guess."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from tiny_models import images, make
from torch import Tensor

from vlp_captioning import spatial
from vlp_captioning.models import Captioner, Images
from vlp_captioning.spatial import FORMS, Statements, choices, judge, judge_all, variants
from vlplatform.data.scenes import ScenesSettings, scene, split_seed
from vlplatform.data.scenes.relations import PLACES, Facts
from vlplatform.data.scenes.world import Thing
from vlplatform.text import Vocabulary

WORLD = ScenesSettings()


def thing(shape: str, colour: str, size: str = "small", texture: str = "plain") -> Thing:
    return Thing(shape, colour, texture, size, 0, 0, 0, 0, 0)


FACTS = Facts(
    [thing("square", "red"), thing("circle", "blue", "large"), thing("circle", "red")],
    [(0, 40, 10, 50), (80, 38, 95, 53), (2, 2, 12, 12)],
    96,
)
"""A red square on the left, a large blue circle on the right, a red circle in the corner above the square."""


@pytest.mark.parametrize(
    ("caption", "right", "wrong", "unknown"),
    [
        ("a red square left of a blue circle", 1, 0, 0),
        ("a red square to the left of a large blue circle on grass", 1, 0, 0),
        ("there is a square to the right of a blue circle", 0, 1, 0),
        ("a blue circle right of a red square", 1, 0, 0),
        ("a red circle above a square", 1, 0, 0),
        ("a red circle over a square", 1, 0, 0),
        ("a square under a circle", 1, 0, 0),  # one of the circles
        ("a red square below a blue circle", 0, 1, 0),
        ("a green square left of a circle", 0, 0, 1),
        ("a square left of a square", 0, 0, 1),  # there is but one
        ("a red square left of a blue circle right of a square", 2, 0, 0),  # the circle ends one and begins the next
        ("a circle above a square left of a blue circle", 2, 0, 0),
        ("two shapes on grass", 0, 0, 0),
        ("a square near a circle", 0, 0, 0),
        ("left of a circle", 0, 0, 0),
        ("", 0, 0, 0),
    ],
)
def test_statements_are_judged(caption: str, right: int, wrong: int, unknown: int) -> None:
    assert judge(caption, FACTS) == Statements(right, wrong, unknown)


def test_truth_is_a_share() -> None:
    said = {"a": "a red square left of a circle", "b": "a square right of a circle"}
    both = judge_all(said, dict.fromkeys("ab", FACTS))
    assert both == Statements(1, 1, 0)
    assert both.truth == 0.5
    assert math.isnan(Statements(unknown=3).truth)


def scenes(count: int) -> list[Any]:
    return [scene(split_seed(WORLD, "val"), index, WORLD) for index in range(count)]


def test_what_people_say_of_scenes_is_true() -> None:
    total = Statements()
    for each in scenes(60):
        facts = Facts(each.things, each.boxes, WORLD.size)
        for caption in each.captions:
            found = judge(caption, facts)
            said = sum(f" {word} " in caption for word in ("left", "right", "above", "over", "below", "under"))
            assert found.right == said, caption
            total += found
    assert total.right > 60
    assert total.wrong == total.unknown == 0


def test_variants_are_the_caption_with_other_relations() -> None:
    caption = "there is a red square to the left of an orange ring on sand"
    facts = Facts([thing("square", "red"), thing("ring", "orange")], [(0, 40, 10, 50), (80, 40, 90, 50)], 96)
    found = variants(["two shapes", caption, "a square above a circle"], facts)
    assert found is not None
    rows, place = found
    assert PLACES[place] == "left of"
    assert rows == [
        f"there is a red square {form} an orange ring on sand" for relation in PLACES for form in FORMS[relation]
    ]
    assert caption == rows[2 * place + 1]
    assert variants(["two shapes on sand", ""], facts) is None
    assert variants([], facts) is None


def test_what_holds_in_two_ways_is_passed_over() -> None:
    """One circle lies right of the square and the other above it."""
    assert variants(["a square left of a circle", "a square below a circle"], FACTS) is None
    found = variants(["a square left of a circle", "a square below a red circle"], FACTS)
    assert found is not None
    assert PLACES[found[1]] == "below"


@pytest.mark.parametrize("relation", PLACES)
def test_every_relation_has_its_place(relation: str) -> None:
    boxes = {
        "left of": (80, 40, 90, 50),
        "right of": (2, 40, 12, 50),
        "above": (40, 80, 50, 90),
        "below": (40, 2, 50, 12),
    }
    facts = Facts([thing("square", "red"), thing("circle", "red")], [(40, 40, 50, 50), boxes[relation]], 96)
    for form in FORMS[relation]:
        found = variants([f"a square {form} a circle"], facts)
        assert found is not None
        assert PLACES[found[1]] == relation


def test_wrong_variants_are_false() -> None:
    """The scene agrees with one relation of the four."""
    tried = 0
    for each in scenes(60):
        facts = Facts(each.things, each.boxes, WORLD.size)
        if (found := variants(each.captions, facts)) is not None:
            rows, place = found
            assert [judge(row, facts).right for row in rows] == [i // 2 == place for i in range(8)]
            tried += 1
    assert tried > 40


class Oracle:
    """What ``choices`` asks of a captioner: the likelihood of words; ``score`` gives it for a whole sentence."""

    device = torch.device("cpu")

    def __init__(self, captions: list[str], score: Any) -> None:
        words = {word for caption in captions for word in caption.split()}
        words |= {word for forms in FORMS.values() for form in forms for word in form.split()}
        self.vocabulary = Vocabulary.build([sorted(words)])
        self.model_settings = make("transformer").model_settings
        self.score, self.asked = score, 0

    def log_probs(self, images: Images, tokens: Tensor) -> Tensor:
        """All of a sentence's score at its end symbol; other words are certain."""
        out = torch.zeros(*tokens.shape, len(self.vocabulary))
        self.asked += len(tokens)
        for row, words in enumerate(tokens.tolist()):
            real = [word for word in words if word not in (self.vocabulary.pad, self.vocabulary.eos)]
            text = " ".join(self.vocabulary.words[word] for word in real[1:])
            out[row, len(real) - 1 :, self.vocabulary.eos] = 100.0  # behind the end nothing may count
            out[row, len(real) - 1, self.vocabulary.eos] = self.score(row // 8, text)
        return out


def chosen(score: Any, count: int = 60) -> list[bool | None]:
    captions = [list(each.captions) for each in scenes(count)]
    facts = [Facts(each.things, each.boxes, WORLD.size) for each in scenes(count)]
    model: Any = Oracle(list(itertools.chain(*captions)), score)
    found = choices(model, Images(features=torch.zeros(count, 1, 1)), captions, facts)
    assert model.asked == 8 * count
    assert [each is None for each in found] == [variants(*each) is None for each in zip(captions, facts)]
    return found


def test_a_model_that_knows_is_always_right() -> None:
    facts = [Facts(each.things, each.boxes, WORLD.size) for each in scenes(60)]
    told = chosen(lambda image, text: float(judge(text, facts[image]).right))
    found = [right for right in told if right is not None]
    assert len(found) > 40
    assert all(found)
    last = chosen(lambda image, text: -float(judge(text, facts[image]).right))
    assert True not in last


def test_a_model_that_guesses_is_right_one_time_in_four() -> None:
    generator = torch.Generator().manual_seed(0)
    found = [right for right in chosen(lambda *_: torch.randn((), generator=generator), 150) if right is not None]
    assert 0.15 < sum(found) / len(found) < 0.35


def test_a_model_that_always_says_left_is_right_where_it_is() -> None:
    found = chosen(lambda _, text: 5.0 * (" left of " in text))
    places = [variants(each.captions, Facts(each.things, each.boxes, WORLD.size)) for each in scenes(60)]
    assert found == [None if each is None else PLACES[each[1]] == "left of" for each in places]


def test_both_wordings_count() -> None:
    """Half the probability on each of two wordings is more than most of it on one of another relation."""
    weights = {" left of a": 0.3, " to the left of a": 0.3, " above a": 0.4}

    def score(_: int, text: str) -> float:
        said = max((form for form in weights if form in text), key=len, default=None)
        return math.log(weights[said] if said else 1e-6)

    model: Any = Oracle(["a square left of a circle"], score)
    seen = Images(features=torch.zeros(1, 1, 1))
    left = Facts([thing("square", "red"), thing("circle", "red")], [(0, 40, 10, 50), (80, 40, 90, 50)], 96)
    above = Facts([thing("square", "red"), thing("circle", "red")], [(40, 0, 50, 10), (40, 80, 50, 90)], 96)
    assert choices(model, seen, [["a square left of a circle"]], [left]) == [True]
    assert choices(model, seen, [["a square above a circle"]], [above]) == [False]


def test_a_real_model_is_asked_in_one_batch() -> None:
    vocabulary = Vocabulary.build([["a", "square", "circle", "left", "right", "of", "above", "below", "over", "under"]])
    seen = Images.of({key: value for key, value in images(3).items() if not key.startswith("attribute")})
    captions = [["a square left of a blue circle"], ["two circles"], ["a square", "a blue circle right of a square"]]
    for kind in ("transformer", "xlan"):
        model: Captioner = make(kind, vocabulary=vocabulary)
        found = choices(model, seen, captions, [FACTS] * 3)
        assert [type(each) for each in found] == [bool, type(None), bool]
        assert seen.features is not None
        for i in (0, 2):  # by hand, sentence by sentence
            rows, place = variants(captions[i], FACTS) or ([], 0)
            one = Images.of({"features": seen.features[i : i + 1]})
            totals = []
            for row in rows:
                words = [vocabulary.bos, *vocabulary.encode(row.split()), vocabulary.eos]
                told = model.log_probs(one, torch.tensor([words[:-1]]))[0]
                totals.append(sum(told[t, word].exp().log() for t, word in enumerate(words[1:])))
            pairs = torch.stack([torch.as_tensor(t) for t in totals]).view(4, 2).logsumexp(1)
            assert found[i] == (int(pairs.argmax()) == place)


def test_captions_too_long_for_the_model_are_left_out() -> None:
    vocabulary = Vocabulary.build([["a", "square", "left", "of", "circle", "on", "sand"]])
    model = make("transformer", vocabulary=vocabulary, max_length=10)
    seen = Images.of(images(1)["features"])
    short, long = "a square left of a blue circle", "a square left of a blue circle on"
    assert choices(model, seen, [[short]], [FACTS]) in ([True], [False])
    assert choices(model, seen, [[long]], [FACTS]) == [None]
    assert choices(model, seen, [[long, short]], [FACTS]) != [None]
    assert max(len(form.split()) for forms in FORMS.values() for form in forms) - 1 == spatial._LONGER
