"""What a captioner with ACF's attention joins: regions into objects, words into phrases (ACF, figure 5).

The paper draws "clusters" and does not say how it makes them of the soft matrices C̃. Here tokens are one cluster where
every pair of them has C̃_ij ≥ ½; neighbours are merged, the likeliest first, as long as that holds. Clusters of a lower
layer that still hold are kept, so that with equation 6, where C̃ never falls, they nest and form a tree.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vlp_captioning.models import Captioner, Images
from vlplatform.attention.acf import Clusters1d, Clusters2d, arrange

LEAST = 0.5
"""C̃ from which on two tokens may be in one cluster: they are then likelier together than apart."""

Labels = NDArray[np.int64]
"""The cluster of each of N tokens (N,), named by its first token."""


@dataclass(frozen=True)
class Clusters:
    """The clusters of one image and one caption of it, layer by layer from the bottom up.

    Attributes:
        image: Of the image's N vectors; empty where the encoder clusters nothing.
        words: Of the caption's words; empty where the decoder clusters nothing.
    """

    image: list[Labels]
    words: list[Labels]


def has_clusters(model: nn.Module) -> bool:
    """Whether any attention in the model clusters its tokens."""
    return any(isinstance(part, Clusters1d | Clusters2d) for part in model.modules())


@torch.no_grad()
def clusters(model: Captioner, images: Images, words: Sequence[int]) -> Clusters:
    """The clusters of one image and of the words of a caption.

    Args:
        model: A captioner; one without clusters gives none.
        images: One image, as ``model.checked`` returns it.
        words: Numbers of the caption's words, without begin and end symbol.
    """
    images = model.seen(images)
    with _watched(model) as over_image:
        memory = model.encode(images)
    with _watched(model) as over_words:
        model.decode(memory, torch.tensor([[model.vocabulary.bos, *words]], device=model.device))
    return Clusters(
        partitions([matrix for _, matrix in over_image], _beside(over_image[0][0], images) if over_image else _NONE),
        partitions([matrix[1:, 1:] for _, matrix in over_words], _in_line(len(words))),
    )


def partitions(matrices: Sequence[NDArray[np.float64]], beside: NDArray[np.bool_]) -> list[Labels]:
    """The clusters of each layer.

    Args:
        matrices: C̃ (N, N) of each layer, from the bottom up.
        beside: (N, N), true for tokens that are neighbours; clusters hang together.
    """
    found: list[Labels] = []
    for matrix in matrices:
        below = found[-1] if found else np.arange(len(matrix))
        groups: list[list[int]] = []
        for label in np.unique(below):
            group = np.flatnonzero(below == label).tolist()
            groups += [group] if matrix[np.ix_(group, group)].min() >= LEAST else [[i] for i in group]
        labels = np.arange(len(matrix))
        for group in _merged(groups, matrix, beside):
            labels[group] = min(group)
        found.append(labels)
    return found


def phrases(words: Sequence[str], labels: Labels) -> str:
    """The words, those of a cluster of several in brackets: ``[a red circle] above [a square]``."""
    return tree(words, [labels])


def tree(words: Sequence[str], layers: Sequence[Labels]) -> str:
    """The words with the clusters of all layers as brackets in each other: ``[[a red] circle] above``.

    The clusters must nest; a bracket stands where a cluster appears first.
    """
    spans = set[tuple[int, int]]()
    for labels in layers:
        ends = {label: place for place, label in enumerate(labels.tolist())}
        spans |= {(first, last) for first, last in ends.items() if last > first}
    opening, closing = ([span[side] for span in spans] for side in (0, 1))
    return " ".join("[" * opening.count(i) + word + "]" * closing.count(i) for i, word in enumerate(words))


def nest(layers: Sequence[Labels]) -> bool:
    """Whether every cluster of a layer lies within one of the layer above."""
    return all(
        len(np.unique(above[below == label])) == 1
        for below, above in itertools.pairwise(layers)
        for label in np.unique(below)
    )


@contextmanager
def _watched(model: nn.Module) -> Iterator[list[tuple[nn.Module, NDArray[np.float64]]]]:
    """The terms that cluster and C̃ (N, N) of the first item, of each call within the block."""
    found: list[tuple[nn.Module, NDArray[np.float64]]] = []

    def keep(term: nn.Module, _: object, matrix: Tensor) -> None:
        found.append((term, matrix[0].detach().double().cpu().numpy()))

    terms = [part for part in model.modules() if isinstance(part, Clusters1d | Clusters2d)]
    handles = [term.register_forward_hook(keep) for term in terms]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _merged(groups: list[list[int]], matrix: NDArray[np.float64], beside: NDArray[np.bool_]) -> list[list[int]]:
    """Groups of tokens after merging; by complete linkage, of neighbours alone."""
    size = len(groups)
    least, touching = np.zeros((size, size)), np.zeros((size, size), dtype=bool)
    for i, own in enumerate(groups):
        for j, other in enumerate(groups[:i]):
            pairs = np.ix_(own, other)
            least[i, j] = least[j, i] = min(matrix[pairs].min(), matrix.T[pairs].min())
            touching[i, j] = touching[j, i] = beside[pairs].any()
    while len(groups) > 1:
        likeliest = np.where(touching, least, -1)
        i, j = sorted(divmod(int(likeliest.argmax()), len(groups)))
        if likeliest[i, j] < LEAST:
            break
        groups[i] = groups[i] + groups.pop(j)
        least[i] = least[:, i] = np.minimum(least[i], least[j])
        touching[i] |= touching[j]
        touching[:, i] = touching[i]
        touching[i, i] = False
        least, touching = (np.delete(np.delete(table, j, 0), j, 1) for table in (least, touching))
    return groups


_NONE = np.zeros((0, 0), dtype=bool)


def _in_line(count: int) -> NDArray[np.bool_]:
    place = np.arange(count)
    return np.abs(place[:, None] - place) == 1


def _beside(term: nn.Module, images: Images) -> NDArray[np.bool_]:
    """Which vectors of the image are neighbours to a term: in the sequence, or on the grid it sees (ACF, §3.1)."""
    assert images.features is not None
    if not isinstance(term, Clusters2d):
        return _in_line(images.features.shape[1])
    assert images.geometry is not None
    if images.geometry.grid is not None:
        width, cell = images.geometry.grid[1], np.arange(images.features.shape[1])
    else:
        cells, _, width = arrange(images.geometry, term.height, images.mask, 1)
        cell = cells[0].cpu().numpy()
    row, column = cell // width, cell % width
    return np.abs(row[:, None] - row) + np.abs(column[:, None] - column) == 1
