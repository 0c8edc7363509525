"""Distance-sensitive attention (MD-SAN, Ji et al., eq. 6–8; scaling functions of eq. 17–18 and table VIII).

Original repository: Young499/image-captioning-MDSANet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vlplatform import geometry
from vlplatform.attention.kernels.flex import Pairwise
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.score_term import Block, Call, Operand, ScoreTerm, Sizes
from vlplatform.geometry import Metric

Scaling = Literal["dynamic_sigmoid", "linear", "quadratic", "scalar"]


class DistanceSensitive(ScoreTerm):
    """``E_i = ReLU(q_i k_iᵀ / √d) ∘ R_i`` with R_i a monotonic function of the distance D of query and key.

    ============================  ==================================================================
    ``dynamic_sigmoid`` (eq. 7)   ``R_i = (1 + e^{v_i}) / (1 + e^{v_i − w_i D})``; 1 at distance 0
    ``linear`` (eq. 17)           ``w_i D`` held between 0 and 2
    ``quadratic`` (eq. 18)        ``w_i D²`` held between 0 and 2
    ``scalar`` (table VIII)       ``w_i D``
    ============================  ==================================================================

    w and v are one pair per head. Where we differ from the text: nothing is shared between branches and layers, as in
    the authors' code, and w starts uniform in ±√(6 / (h + 1)), v likewise, which is what the code's Xavier
    sweep over all parameters comes to: heads start with either sign. The code knows only a 7 × 7 grid; boxes (by their
    centres), points and any grid work here.

    Args:
        sizes: Of the attention.
        distance: Manhattan, Euclidean or Chebyshev (table VII).
        scaling: The function of the distance.

    Raises:
        ValueError: Unknown distance or scaling.
    """

    name = "dsa"

    def __init__(self, sizes: Sizes, *, distance: Metric = "manhattan", scaling: Scaling = "dynamic_sigmoid") -> None:
        super().__init__()
        if distance not in get_args(Metric):
            raise ValueError(f"distance={distance} is not one of {', '.join(get_args(Metric))}")
        if scaling not in get_args(Scaling):
            raise ValueError(f"scaling={scaling} is not one of {', '.join(get_args(Scaling))}")
        self.distance: Metric = distance
        self.scaling: Scaling = scaling
        self.w = nn.Parameter(torch.empty(sizes.heads, 1, 1))
        self.v = nn.Parameter(torch.empty(sizes.heads, 1, 1)) if scaling == "dynamic_sigmoid" else None
        bound = (6 / (sizes.heads + 1)) ** 0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def prepare(self, call: Call, query: Tensor, key: Tensor) -> Mapping[str, Operand]:
        """The distances (B or 1, 1, N, M), once for all layers."""
        of_query, of_key = call.needs_geometry(self.title)

        def compute() -> Tensor:
            return geometry.distances(of_query.points, of_key.points, self.distance)[:, None]

        return {"distance": Operand(call.once(("distances", self.distance), compute), rows=2)}

    def modulate(self, logits: Tensor, block: Block) -> Tensor:
        """ReLU of the logits times R."""
        return logits.relu() * _rescale(block.operands["distance"], self.w, self.v, self.scaling)

    def pairwise(self, call: Call) -> Pairwise:
        """ReLU of the logit times R, the distance being computed of the two points."""
        at, to = (g.points.expand(call.query.shape[0], -1, -1) for g in call.needs_geometry(self.title))
        w = self.w.flatten().to(at.dtype)  # gradients are summed in full precision
        v = None if self.v is None else self.v.flatten().to(at.dtype)
        metric, scaling = self.distance, self.scaling

        def modulate(logit: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            apart = geometry.length(at[b, i, 0] - to[b, j, 0], at[b, i, 1] - to[b, j, 1], metric)
            return logit.relu() * _rescale(apart, w[h], None if v is None else v[h], scaling)

        return Pairwise(modulate=modulate)

    def rescale(self, distance: Tensor) -> Tensor:
        """R (…, h, N, M) of distances (…, 1, N, M)."""
        return _rescale(distance, self.w, self.v, self.scaling)


def _rescale(distance: Tensor, w: Tensor, v: Tensor | None, scaling: Scaling) -> Tensor:
    """R of distances, with w and v that broadcast to them."""
    if v is not None:
        return (1 + v.exp()) * torch.sigmoid(w * distance - v)
    if scaling == "quadratic":
        distance = distance * distance
    scaled = w * distance
    return scaled if scaling == "scalar" else scaled.clamp(0, 2)


MECHANISMS = (
    Mechanism(
        name="dsa",
        build=DistanceSensitive,
        term=True,
        sockets=("token",),
        summary="logits rescaled by a learnt function of distance",
        paper="MD-SAN",
        equations="6–8, 17–18",
    ),
)
