"""Projections, window attention and output product of a local attention layer, over strips that stay in cache.

A chain of modules writes each of its maps to memory and reads it back in every pass; here a strip of pixels goes
through all steps before the next one is touched. Maps are (channels, pixels): a neighbour is then a constant number of
columns away, so a tap is a slice. A step off the image's side lands on some other pixel or on the zero margin,
where the border mask has made the weight exactly 0. Kept for the backward pass: the input, query, key and value, the
weights of the windows, and the attended map; gradients of query, key and value live one strip long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlplatform.attention.kernels import window
from vlplatform.attention.kernels.fold import affine

_LANES = 16  # floats in a vector register: rows that start on one are stored faster


@dataclass(frozen=True)
class Window:
    """What a layer does between its products; neighbours outside the image take no part.

    Attributes:
        kernel: Side of the window, odd.
        heads: Number of heads.
        shared: One projection is query, key and value; else, with content, there are three; without it, the value.
        content: The logits have a content part.
        geometric: The logits have a position part.
        scale: Factor of the content dot products.
        iterations: Softmax passes.
        strip_bytes: A thread's part of one projection of a strip; a few of them fit its second-level cache.
    """

    kernel: int
    heads: int
    shared: bool = False
    content: bool = True
    geometric: bool = True
    scale: float = 1.0
    iterations: int = 1
    strip_bytes: int = 1 << 20


def _up(size: int) -> int:
    return -(-size // _LANES) * _LANES


class _Plan:
    """Where everything lies: strips of an image's pixels, the margin around them, rows of query, key and value."""

    def __init__(self, x: Tensor, width: int, settings: Window) -> None:
        _, _, height, columns = x.shape
        self.settings, self.width, self.row = settings, width, columns
        self.pixels, border = height * columns, settings.kernel // 2
        room = max(_LANES, settings.strip_bytes * torch.get_num_threads() // (width * x.element_size()))
        self.length = _up(-(-self.pixels // -(-self.pixels // room)))  # nearly equal strips
        self.margin = _up(border * columns + border)
        starts = range(0, self.pixels, self.length)
        self.strips = [slice(start, min(start + self.length, self.pixels)) for start in starts]
        firsts = (0, 0, 0) if settings.shared else (0, width, 2 * width) if settings.content else (0, 0, 0)
        self.query, self.key, self.value = (slice(first, first + width) for first in firsts)
        self.position = slice(self.value.stop, None)
        self.mask = window.border_mask(height, columns, settings.kernel, x).flatten(3).unsqueeze(3)

    def heads(self, rows: Tensor) -> Tensor:
        """(width, n) as (1, heads, head width, 1, n)."""
        return rows.unflatten(0, (self.settings.heads, -1))[None, :, :, None]

    def places(self, logits: Tensor) -> Tensor:
        """(k²·heads, n) as (k², 1, heads, 1, n)."""
        return logits.unflatten(0, (self.settings.kernel**2, -1))[:, None, :, None]

    def taps(self, maps: Tensor, rows: slice, start: int, count: int) -> Tensor:
        """The neighbours (k, k, 1, heads, head width, 1, n) of the ``count`` columns from ``start``, as a view."""
        kernel, heads, step = self.settings.kernel, self.settings.heads, maps.stride(0)
        size = (kernel, kernel, 1, heads, self.width // heads, 1, count)
        stride = (self.row, 1, 0, self.width // heads * step, step, 0, 1)
        first = maps.storage_offset() + rows.start * step + start - kernel // 2 * (self.row + 1)
        return maps.as_strided(size, stride, first)


class _LocalAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        settings: Window,
        x: Tensor,
        w_project: Tensor,
        b_project: Tensor,
        w_output: Tensor,
        b_output: Tensor,
    ) -> Tensor:
        plan = _Plan(x, w_output.shape[1], settings)
        margin = plan.margin
        channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        form = torch.channels_last if channels_last else torch.contiguous_format
        shape = (x.shape[0], len(w_output), *x.shape[2:])
        out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=form)
        maps: list[Tensor] = []
        kept: list[Tensor] = []
        for pixels, target in zip(x.flatten(2), out.flatten(2)):
            projected = x.new_empty(len(w_project), _up(2 * margin + plan.pixels))
            projected[:, :margin] = 0
            projected[:, margin + plan.pixels :] = 0
            for strip in plan.strips:
                affine(w_project, b_project, pixels[:, strip], projected[:, margin + strip.start : margin + strip.stop])
            for strip in plan.strips:
                start, count = margin + strip.start, strip.stop - strip.start
                here = projected[:, start : start + count]
                attended, passes = window.attend(
                    plan.heads(here[plan.query]) if settings.content else None,
                    plan.taps(projected, plan.key, start, count),
                    plan.taps(projected, plan.value, start, count),
                    plan.places(here[plan.position]) if settings.geometric else None,
                    plan.mask[..., strip],
                    settings.scale,
                    settings.iterations,
                )
                attended = attended.view(plan.width, count)
                affine(w_output, b_output, attended, target[:, strip])
                kept += [attended, *passes]
            maps.append(projected)
        ctx.plan = plan
        ctx.save_for_backward(x, w_project, w_output, *maps, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        plan, settings = ctx.plan, ctx.plan.settings
        x, w_project, w_output, *saved = ctx.saved_tensors
        maps, kept, pixels = saved[: len(x)], iter(saved[len(x) :]), x.flatten(2)
        margin, scale = plan.margin, settings.scale

        at_x = torch.empty_like(x) if ctx.needs_input_grad[1] else None
        at_project, at_output = torch.zeros_like(w_project), torch.zeros_like(w_output)
        at_project_bias, at_output_bias = w_project.new_zeros(len(w_project)), w_output.new_zeros(len(w_output))
        room = x.new_empty(plan.width, plan.length)
        at_maps = x.new_empty(len(w_project), plan.length + 2 * margin)
        for image, (projected, gradient) in enumerate(zip(maps, grad_outputs[0].flatten(2))):
            at_maps.zero_()
            for strip in plan.strips:
                start, count = margin + strip.start, strip.stop - strip.start
                attended = next(kept)
                *rounds, weights = (next(kept) for _ in range(settings.iterations))
                at_output.addmm_(gradient[:, strip], attended.t())
                at_output_bias += gradient[:, strip].sum(1)
                at_attended = plan.heads(torch.mm(w_output.t(), gradient[:, strip], out=room[:, :count]))
                values = plan.taps(projected, plan.value, start, count)
                window.scatter(weights, at_attended, plan.taps(at_maps, plan.value, margin, count))
                at_logits = window.softmax_backward(window.score(at_attended, values), weights)
                at_here = at_maps[:, margin : margin + count]
                if settings.geometric:
                    at_here[plan.position] = at_logits.view(-1, count)
                if settings.content:
                    keys, into = (plan.taps(m, plan.key, s, count) for m, s in ((projected, start), (at_maps, margin)))
                    at_logits = window.refine_backward(at_logits, keys, into, rounds, scale)
                    at_logits = at_logits if scale == 1.0 else at_logits * scale
                    window.scatter(at_logits, plan.heads(projected[plan.query, start : start + count]), into)
                    window.gather(at_logits, keys, plan.heads(room[:, :count]))
                    at_here[plan.query] += room[:, :count]

                # Pixels at least a margin before the strip's end have met all windows that hold them.
                done = slice(
                    max(0, strip.start - margin), plan.pixels if strip.stop == plan.pixels else strip.stop - margin
                )
                if done.stop > done.start:
                    shift = margin - strip.start
                    finished = at_maps[:, done.start + shift : done.stop + shift]
                    at_project.addmm_(finished, pixels[image, :, done].t())
                    at_project_bias += finished.sum(1)
                    if at_x is not None:
                        affine(w_project.t(), None, finished, at_x.flatten(2)[image, :, done])
                at_maps[:, : 2 * margin] = at_maps[:, count : count + 2 * margin].clone()
                at_maps[:, 2 * margin :] = 0
        return None, at_x, at_project, at_project_bias, at_output, at_output_bias


def local_attention(
    x: Tensor,
    project: tuple[Tensor, Tensor],
    output: tuple[Tensor, Tensor],
    settings: Window,
) -> Tensor:
    """A layer's output (B, N, H, W) for ``x`` (B, C, H, W), in its memory format.

    Args:
        x: The input, contiguous or channels last.
        project: Weight and bias of query, key and value (what there is of them), a width each, and below them of
            the k²·heads position logits, place by place.
        output: Those of the product of the attended map.
        settings: The window's.
    """
    return _LocalAttention.apply(settings, x, *project, *output)
