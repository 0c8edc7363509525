"""Clusters of ACF: what may be one, that they nest, brackets of words, pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import TINY, images, make

from vlp_captioning.cluster_pictures import described, over_boxes, over_cells
from vlp_captioning.clusters import LEAST, clusters, has_clusters, nest, partitions, phrases, tree
from vlp_captioning.models import Captioner


def line(count: int) -> np.ndarray:
    place = np.arange(count)
    return np.abs(place[:, None] - place) == 1


def symmetric(upper: list[list[float]]) -> np.ndarray:
    """C̃ with 1 on the diagonal from the rows above it."""
    matrix = np.eye(len(upper) + 1)
    for i, row in enumerate(upper):
        matrix[i, i + 1 :] = matrix[i + 1 :, i] = row
    return matrix


def test_clusters_hold_for_every_pair() -> None:
    """1 and 2 belong together, 2 and 3 more so, 1 and 3 do not: the likelier two become one."""
    matrix = symmetric([[0.8, 0.4, 0.1], [0.9, 0.2], [0.6]])
    assert partitions([matrix], line(4))[0].tolist() == [0, 1, 1, 3]
    assert partitions([np.ones((4, 4))], line(4))[0].tolist() == [0, 0, 0, 0]
    assert partitions([np.eye(4)], line(4))[0].tolist() == [0, 1, 2, 3]
    assert partitions([np.full((4, 4), LEAST)], line(4))[0].tolist() == [0, 0, 0, 0]
    assert partitions([np.ones((3, 3))], np.zeros((3, 3), dtype=bool))[0].tolist() == [0, 1, 2]  # no neighbours
    assert partitions([np.ones((1, 1))], line(1))[0].tolist() == [0]
    assert partitions([np.ones((0, 0))], line(0))[0].tolist() == []
    assert partitions([], line(4)) == []


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**16), st.booleans())
def test_clusters_of_any_matrices(count: int, layers: int, seed: int, grows: bool) -> None:
    chance = np.random.default_rng(seed)
    matrices, total = [], np.zeros((count, count))
    for _ in range(layers):
        new = chance.random((count, count))
        new = np.maximum(new, new.T)
        np.fill_diagonal(new, 1)
        total = total + new * (1 - total) if grows else new
        matrices.append(total)
    beside = line(count) | line(count)[:, ::-1] if count % 2 else line(count)
    beside |= beside.T
    np.fill_diagonal(beside, False)
    found = partitions(matrices, beside)
    for matrix, labels in zip(matrices, found):
        groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        assert [group.min() for group in groups] == np.unique(labels).tolist()
        for a, own in enumerate(groups):
            assert matrix[np.ix_(own, own)].min() >= LEAST
            reached = {int(own[0])}
            for _ in own:
                reached |= {int(i) for i in own if beside[i, list(reached)].any()}
            assert reached == set(own.tolist())  # it hangs together
            for other in groups[:a]:  # and no two neighbours could still be one
                both = np.concatenate((own, other))
                assert not beside[np.ix_(own, other)].any() or matrix[np.ix_(both, both)].min() < LEAST
    assert nest(found) or not grows


def test_brackets() -> None:
    words = ["a", "red", "circle", "above", "a", "square"]
    first, second = np.array([0, 0, 2, 3, 4, 4]), np.array([0, 0, 0, 3, 4, 4])
    assert phrases(words, first) == "[a red] circle above [a square]"
    assert phrases(words, np.arange(6)) == "a red circle above a square"
    assert tree(words, [first, second]) == "[[a red] circle] above [a square]"
    assert tree(words, [first, np.zeros(6, dtype=np.int64)]) == "[[a red] circle above [a square]]"
    assert nest([first, second])
    assert not nest([second, first])


def words_of(model: Captioner) -> list[int]:
    return model.vocabulary.encode(["a", "red", "circle", "above", "the", "square"])


@pytest.mark.parametrize(
    ("kind", "attn", "model", "where"),
    [
        ("acf", None, {}, (True, True)),
        ("acf", {"name": "acf1d"}, {}, (True, True)),
        ("acf", {"name": "acf2d", "grows": False}, {"decoder_attn": "sa"}, (True, False)),
        ("acf", {"name": "acf2d", "window": 2}, {"decoder_attn": {"name": "acf1d", "window": 2}}, (True, True)),
        ("transformer", {"name": "acf2d"}, {}, (True, False)),
        ("transformer", None, {"decoder_attn": "acf1d"}, (False, True)),
        ("transformer", None, {}, (False, False)),
        ("xlan", None, {}, (False, False)),
    ],
)
@pytest.mark.parametrize("grid", [True, False])
def test_clusters_of_models(
    kind: str, attn: dict[str, Any] | None, model: dict[str, Any], where: tuple[bool, bool], grid: bool
) -> None:
    built = make(kind, attn=attn, **model)
    seen: dict[str, Any] = images(1, 12)
    if grid:
        seen = {"features": seen["features"], "grid": (3, 4)}
    assert has_clusters(built) == any(where)
    found = clusters(built, built.checked(seen), words_of(built))
    for layers, there, count in zip((found.image, found.words), where, (12, 6)):
        assert [len(labels) for labels in layers] == ([count] * 2 if there else [])
    if not (isinstance(attn, dict) and attn.get("grows") is False):
        assert nest(found.image)
    assert not any(part._forward_hooks for part in built.modules())


def test_clusters_are_those_of_the_matrices() -> None:
    """A model whose maps are 0 and biases large joins all; with small biases nothing; columns alone, in between."""
    model = make("acf")
    seen = model.checked({"features": images(1, 12)["features"], "grid": (3, 4)})

    def bias(across: float, down: float, along: float) -> None:
        for name, parameter in model.named_parameters():
            if ".merge." in name or ".across." in name or ".down." in name:
                value = across if ".across." in name else down if ".down." in name else along
                parameter.data.fill_(value if name.endswith("bias") else 0.0)

    bias(30.0, 30.0, 30.0)
    assert clusters(model, seen, words_of(model)).image[0].tolist() == [0] * 12
    assert clusters(model, seen, words_of(model)).words[0].tolist() == [0] * 6
    bias(-30.0, -30.0, -30.0)
    assert clusters(model, seen, words_of(model)).image[1].tolist() == list(range(12))
    bias(-30.0, 30.0, -30.0)
    found = clusters(model, seen, words_of(model))
    assert found.image[0].reshape(3, 4).tolist() == [[0, 1, 2, 3]] * 3
    assert found.words[0].tolist() == list(range(6))
    assert clusters(model, seen, []).words[0].tolist() == []  # a caption without words


def test_regions_are_neighbours_on_their_grid() -> None:
    """Two columns of two regions each (height 2): those far to the left and those far to the right."""
    model = make("acf", attn={"name": "acf2d", "height": 2})
    for name, parameter in model.named_parameters():
        if ".across." in name or ".down." in name:
            parameter.data.fill_((-30.0 if ".across." in name else 30.0) if name.endswith("bias") else 0.0)
    boxes = torch.tensor([[[0.0, 0, 10, 10], [80, 0, 90, 10], [0, 50, 10, 60], [80, 50, 90, 60]]]).double()
    seen = model.checked({"features": images(1, 4)["features"], "boxes": boxes, "size": torch.tensor([[100.0, 90.0]])})
    assert clusters(model, seen, words_of(model)).image[0].tolist() == [0, 1, 0, 1]


def test_only_acf_clusters() -> None:
    assert [kind for kind in TINY if has_clusters(make(kind))] == ["acf"]


def test_pictures() -> None:
    picture = np.full((40, 60, 3), 100, dtype=np.uint8)
    labels = np.array([[0, 0, 2], [3, 0, 2]])
    drawn = over_cells(picture, labels)
    assert drawn.shape == picture.shape
    assert drawn.dtype == np.uint8
    assert (drawn[30, 10] == 100).all()  # alone: no colour
    assert (drawn[10, 10] == drawn[30, 30]).all()  # one cluster, one colour
    assert len({tuple(drawn[y, x]) for y, x in ((10, 10), (10, 50), (30, 10))}) == 3
    assert (drawn[10, 39:41] == 255).all()  # a border between clusters, and none within
    assert (drawn[10, 19:21] == drawn[10, 10]).all()
    assert described(labels.ravel()) == "2 clusters, 1 alone"
    boxes = [(5, 5, 20, 20), (30, 5, 45, 20), (50, 30, 70, 60), (20, 20, 20, 20)]  # the last two odd
    framed = over_boxes(picture, np.array([0, 0, 2, 3]), boxes)
    assert (framed[5, 5] == framed[5, 44]).all()
    assert (framed[30, 50] == 255).all()
    assert (framed[10, 10] == 100).all()
