"""Rows of content, position and bilateral attention side by side, as figure 3.4 of the thesis shows them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from vlplatform.errors import UserError
from vlplatform.interpret.capture import capture, evaluating
from vlplatform.interpret.draw import heat_overlay, mark
from vlplatform.task import Exhibit

CAPTION = (
    "Each map shows the weights with which the operator mixes the other pixels into one query pixel (the red dot), "
    "averaged over heads, enlarged to the image, scaled to its own maximum, and hidden below 2 % of it. Where "
    "content and position are shown apart, each is what that half alone would attend to; the model uses their "
    "combination. A map says where this one layer reads, not why the model decides as it does: every pixel of a "
    "deep feature map has already seen much of the image, layers that follow may undo what was read, and different "
    "maps can lead to the same prediction. Brightness cannot be compared between maps: one that is bright all over "
    "attends to everything alike."
)
"""What such a map is and is not; to be shown beside it."""
SMALLEST = 256
"""Images whose shorter side is well below this are enlarged by a whole number, so that smooth maps look smooth."""


def attention_rows(
    model: nn.Module,
    image: Tensor,
    points: Sequence[tuple[float, float]],
    *,
    names: Sequence[str] | None = None,
    id: str = "attention",
) -> list[Exhibit]:
    """One row of pictures per operator and query point: the image, then each of the operator's maps over it.

    Maps are averaged over heads (thesis, §3.4.5, figure 3.4). Weights that are no probabilities and may be
    negative are shown by their magnitude, and the caption says so.

    Args:
        model: Any model called as ``model(batch)`` with (1, 3, H, W) in [0, 1]; it runs in evaluation mode.
        image: (3, H, W), values in [0, 1]: what the model is given and what is drawn upon.
        points: Query points, (row, column) as fractions of the image.
        names: Operators by their dotted path; by default the one nearest the output.
        id: The exhibits' id, usually the record's.

    Returns:
        The rows, operator by operator; empty where the model has no attention that can be shown.

    Raises:
        UserError: A name in ``names`` is not among the operators that ran, or a point lies outside the image.
    """
    if image.ndim != 3 or image.shape[0] != 3:
        raise UserError(f"attention is drawn on one image (3, H, W), not on a tensor {tuple(image.shape)}.")
    parameter = next(model.parameters(), None)
    with evaluating(model), capture(model) as captured:
        model(image[None] if parameter is None else image[None].to(parameter.device))
    picture = (image.detach().cpu().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    times = max(1, round(SMALLEST / min(picture.shape[:2])))
    picture = picture.repeat(times, axis=0).repeat(times, axis=1)
    rows = []
    for name in captured.names("map")[-1:] if names is None else names:
        for row, col in points:
            images = {"query": mark(picture, (row, col))}
            for key, weights in captured.maps(name, row, col).items():
                heat = weights[0].mean(0)
                caption = f"{key} (magnitude)" if bool((heat < 0).any()) else key
                images[caption] = heat_overlay(picture, heat.abs(), (row, col))
            rows.append(Exhibit(id, images, f"{name}, query at {row:.0%} of the height and {col:.0%} of the width"))
    return rows
