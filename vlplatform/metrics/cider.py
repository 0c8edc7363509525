"""CIDEr and CIDEr-D over integer tokens, with the references' vectors computed once.

CIDEr: https://arxiv.org/abs/1411.5726. What the literature reports as "CIDEr" is CIDEr-D: pycocoevalcap's class `Cider`
clips and has the length penalty. :class:`Cider` here is the plain one (vrama91/cider). Both equal those tools to 1e-9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vlplatform.metrics.ngrams import Ints, NgramTable, check_images, check_references

Floats = NDArray[np.float64]
Tokens = Sequence[int]


@dataclass(frozen=True)
class Frequencies:
    """Document frequencies from elsewhere.

    Attributes:
        counts: N-gram (a tuple of tokens) → number of documents it occurs in.
        documents: Number of documents.
    """

    counts: Mapping[tuple[int, ...], float]
    documents: float


Source = Literal["image", "caption"] | Frequencies


@dataclass(frozen=True)
class _Matches:
    """N-grams that captions share with the references of their images. P pairs (caption, reference), M matches."""

    caption: Ints  # (P,)
    references: Ints  # (captions,) how many each has
    lengths: tuple[Ints, Ints]  # (P,) tokens of the caption, of the reference
    norms: Floats  # (P, n) product of the two norms
    pair: Ints  # (M,)
    order: Ints  # (M,)
    weights: tuple[Floats, Floats]  # (M,) tf-idf in the caption, in the reference


class _References:
    """Tf-idf vectors of the references: for every image its n-grams in order of their numbers."""

    def __init__(
        self, references: Sequence[Sequence[Tokens]], df: Source, n: int, end: int | None, count_end: bool
    ) -> None:
        check_references(references)
        self.n, self._end, self._count_end = n, end, count_end
        captions = [self._reference(caption) for caption in chain.from_iterable(references)]
        given = df if isinstance(df, Frequencies) else None
        if given and (odd := [gram for gram in given.counts if not 1 <= len(gram) <= n]):
            raise ValueError(f"the document frequencies have {odd[0]}, which is no n-gram of 1 … {n} tokens")
        self._table = NgramTable([*captions, *given.counts] if given else captions, n)
        found = self._table.count(captions)
        self._lengths = found.lengths
        self._first = np.cumsum([0, *map(len, references)])  # of each image's references
        image = np.repeat(np.arange(len(references)), np.diff(self._first))[found.sequence]
        keys = image * self._table.size + found.gram
        by_image = np.argsort(keys, kind="stable")  # per image by n-gram, per n-gram by reference
        self._idf = self._inverse_frequencies(df, keys[by_image], len(references), len(captions))
        self._gram = found.gram[by_image].astype(np.int32)
        self._reference_of = found.sequence[by_image].astype(np.int32)
        self._times = found.times[by_image].astype(np.int32)
        self._begin = np.searchsorted(image, np.arange(len(references) + 1))
        weights = found.times * self._idf[found.gram]
        self._norms = _norms(weights, found.sequence, found.order, len(captions), n)

    def _reference(self, caption: Tokens) -> Tokens:
        cut = self._cut(caption)
        whole = self._end is not None and self._count_end and (not len(cut) or cut[-1] != self._end)
        return [*cut, self._end] if whole and self._end is not None else cut

    def _cut(self, caption: Tokens) -> Tokens:
        if self._end is None or self._end not in caption:
            return caption
        return caption[: list(caption).index(self._end) + self._count_end]

    def _inverse_frequencies(self, df: Source, keys: Ints, images: int, captions: int) -> Floats:
        """(size + 1,) idf by the n-gram's number; the last for those that occur nowhere.

        ``keys``: image · size + n-gram for each n-gram of each reference, in ascending order.
        """
        size = self._table.size
        if isinstance(df, Frequencies):
            counts, documents = np.zeros(size), df.documents
            grams = self._table.count(list(df.counts))
            last = np.cumsum(np.bincount(grams.sequence, minlength=len(df.counts))) - 1
            # Of the n-grams within an n-gram itself is the only one of its order, and its number the highest.
            counts[grams.gram[last]] = np.fromiter(df.counts.values(), np.float64, len(df.counts))
        elif df == "caption":
            counts, documents = np.bincount(keys % max(size, 1), minlength=size), captions
        else:
            distinct = keys[np.diff(keys, prepend=-1) != 0]
            counts, documents = np.bincount(distinct % max(size, 1), minlength=size), images
        return np.log(max(documents, 1)) - np.log(np.maximum(1.0, np.append(counts, 0.0)))

    def matches(self, given: Sequence[int], captions: Sequence[Tokens]) -> _Matches:
        """What the captions share with the references of the images ``given`` (one for each caption)."""
        check_images(given, captions, len(self._first) - 1)
        images = np.asarray(given, np.int64)
        found = self._table.count([self._cut(caption) for caption in captions])
        weights = found.times * self._idf[np.minimum(found.gram, self._table.size)]
        norms = _norms(weights, found.sequence, found.order, len(captions), self.n)

        references = np.diff(self._first)[images]
        caption = np.repeat(np.arange(len(images)), references)
        first_pair = np.cumsum(references) - references
        reference = _ranges(self._first[images], references)

        # The n-grams of the images in question, each image once, in one sorted row of keys (image, n-gram).
        distinct, place = np.unique(images, return_inverse=True)
        entries = _ranges(self._begin[distinct], np.diff(self._begin)[distinct])
        base = self._table.size + len(found.gram) + 1
        keys = np.repeat(np.arange(len(distinct)), np.diff(self._begin)[distinct]) * base + self._gram[entries]
        wanted = place[found.sequence] * base + np.minimum(found.gram, self._table.size)
        low = np.searchsorted(keys, wanted)
        shared = np.searchsorted(keys, wanted, "right") - low
        mine = np.repeat(np.arange(len(wanted)), shared)
        theirs = entries[_ranges(low, shared)]
        owner, gram = found.sequence[mine], found.gram[mine]
        return _Matches(
            caption=caption,
            references=references,
            lengths=(found.lengths[caption], self._lengths[reference]),
            norms=norms[caption] * self._norms[reference],
            pair=first_pair[owner] + self._reference_of[theirs].astype(np.int64) - self._first[images[owner]],
            order=found.order[mine],
            weights=(weights[mine], self._times[theirs] * self._idf[gram]),
        )


class CiderD:
    """CIDEr-D of captions against the references of their images, ×10.

    Per n-gram order the cosine of the tf-idf vectors with the caption's weights clipped to the reference's, times
    exp(−Δ² / 2σ²), Δ the difference of the numbers of *bigrams*; mean over the orders and the image's references.
    N-grams that occur in no reference have the highest idf. With a single image every idf, so every score, is 0.

    Args:
        references: Per image its reference captions as integers, one at least.
        df: Where document frequencies are counted: per ``"image"`` (the evaluation; X-LAN); per ``"caption"``
            (MD-SAN's and M²'s reward, where every reference is a document of its own); or :class:`Frequencies`.
        sigma: Width of the length penalty, in tokens.
        n: The longest n-grams.
        end: The end symbol: captions are cut there. None: they are taken as they come.
        count_end: Whether the end symbol counts as a token of its sentence, as in X-LAN's reward. References
            without it get it; captions without it are unfinished and do not.

    Raises:
        ValueError: An image without references, negative tokens, or frequencies of longer n-grams.
    """

    def __init__(
        self,
        references: Sequence[Sequence[Tokens]],
        *,
        df: Source = "image",
        sigma: float = 6.0,
        n: int = 4,
        end: int | None = None,
        count_end: bool = False,
    ) -> None:
        self.sigma = sigma
        self._references = _References(references, df, n, end, count_end)

    def scores(self, images: Sequence[int], captions: Sequence[Tokens]) -> Floats:
        """CIDEr-D of each caption, (len(captions),) float64.

        Args:
            images: For each caption the place of its image in the references; images may repeat.
            captions: Tokens.

        Raises:
            ValueError: An image that does not exist, not one image per caption, or negative tokens.
        """
        m = self._references.matches(images, captions)
        mine, theirs = m.weights
        mine_long, theirs_long = (np.maximum(length - 1, 0) for length in m.lengths)
        penalty = np.exp(-((mine_long - theirs_long) ** 2) / (2 * self.sigma**2))
        return _means(m, np.minimum(mine, theirs) * theirs, penalty)


class Cider:
    """Plain CIDEr: as :class:`CiderD` without clipping and length penalty, ×10; rarely what a paper means by CIDEr.

    Args:
        references: Per image its reference captions as integers, one at least.
        df: As in :class:`CiderD`.
        n: The longest n-grams.

    Raises:
        ValueError: An image without references, negative tokens, or frequencies of longer n-grams.
    """

    def __init__(self, references: Sequence[Sequence[Tokens]], *, df: Source = "image", n: int = 4) -> None:
        self._references = _References(references, df, n, None, False)

    def scores(self, images: Sequence[int], captions: Sequence[Tokens]) -> Floats:
        """CIDEr of each caption, (len(captions),) float64; arguments as in :meth:`CiderD.scores`."""
        m = self._references.matches(images, captions)
        return _means(m, m.weights[0] * m.weights[1], np.ones(len(m.caption)))


def _means(m: _Matches, products: Floats, penalty: Floats) -> Floats:
    """10 × the mean over orders and references of the cosines, (captions,)."""
    pairs, n = m.norms.shape
    dots = _sums(m.pair * n + m.order, products, pairs * n).reshape(pairs, n)
    cosines = np.divide(dots, m.norms, out=np.zeros_like(dots), where=m.norms != 0)
    return 10 * _sums(m.caption, cosines.mean(1) * penalty, len(m.references)) / m.references


def _norms(weights: Floats, sequence: Ints, order: Ints, sequences: int, n: int) -> Floats:
    """(sequences, n) Euclidean norms."""
    return np.sqrt(_sums(sequence * n + order, weights**2, sequences * n)).reshape(sequences, n)


def _sums(group: Ints, values: Floats, groups: int) -> Floats:
    """(groups,) sums of the values of each group."""
    return np.bincount(group, values, groups).astype(np.float64)  # without any value it would be of integers


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """start, start + 1, … (length many) for each start, in one row."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def numbered(texts: Sequence[Sequence[Sequence[str]]]) -> list[list[list[int]]]:
    """Words as integers in the order of their appearance, over nested lists [[[word, …], …], …]."""
    numbers: dict[str, int] = {}
    return [[[numbers.setdefault(word, len(numbers)) for word in text] for text in group] for group in texts]
