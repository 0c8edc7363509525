"""A whole local attention layer, projections and batch norms included, over strips of pixels that stay in cache.

A chain of modules writes each of its fifteen maps to memory and reads it back; here a strip goes through as many steps
as the batch statistics allow before the next one is touched. Three things keep it short:

* Maps are (channels, pixels) with all images in a row. A neighbour is then a constant step away, so a tap is a
  slice; a step off the image's side lands on some other pixel, whose weight the border mask has made exactly 0.
* A norm is a scale and a shift per channel. Those of the keys go into the query (the shift is the same for all taps
  and a softmax is blind to it), those of the values into the output's weights, those of the query into the predictor's.
  So norms cost their statistics and no pass of their own, and stay exact.
* Kept for the backward pass: the input, the projections before their norm, the predictor's output, the attended map, the
  output before its norm, and the weights of the windows. No strip is computed twice but for the scaled query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlplatform.attention.kernels import window
from vlplatform.attention.kernels.norm import Linear, Norm, NormGradient

_LANES = 16  # floats in a vector register; rows that start on one are faster to store


@dataclass(frozen=True)
class Window:
    """What a layer does between its projections; neighbours outside the image take no part.

    Attributes:
        kernel: Side of the window, odd.
        heads: Number of heads.
        shared: One projection is query, key and value; else there are query, key (with content) and value.
        content: The logits have a content part.
        scale: Factor of the content dot products.
        iterations: Softmax passes.
        strip_bytes: Size of one projection of a strip; some of them fit a second-level cache together.
    """

    kernel: int
    heads: int
    shared: bool = False
    content: bool = True
    scale: float = 1.0
    iterations: int = 1
    strip_bytes: int = 640 * 1024


def _up(size: int) -> int:
    return -(-size // _LANES) * _LANES


class _Plan:
    """Where everything lies: the strips, the taps' steps, the channels of query, key and value."""

    def __init__(self, x: Tensor, width: int, settings: Window) -> None:
        batch, _, height, columns = x.shape
        pixels, border = height * columns, settings.kernel // 2
        self.settings, self.width = settings, width
        self.length = min(_up(pixels), max(_LANES, settings.strip_bytes // (width * x.element_size()) // _LANES * _LANES))
        self.margin = _up(border * columns + border)
        self.columns = _up(2 * self.margin + batch * pixels)
        self.end = self.margin + batch * pixels
        reach = range(-border, border + 1)
        self.steps = [row * columns + column for row in reach for column in reach]
        #: (image, slice of its pixels, slice of the long rows)
        self.strips = [
            (image, slice(start, stop), slice(first + start, first + stop))
            for image, first in enumerate(range(self.margin, self.end, pixels))
            for start in range(0, pixels, self.length)
            for stop in (min(start + self.length, pixels),)
        ]
        starts = (0, 0, 0) if settings.shared else (0, width, 2 * width) if settings.content else (0, 0, width)
        self.query, self.key, self.value = (slice(start, start + width) for start in starts)
        self.mask = window.border_mask(height, columns, settings.kernel, x).flatten(3).unsqueeze(3)

    def heads(self, channels: Tensor) -> Tensor:
        """(width, n) as (1, heads, head width, 1, n)."""
        return channels.unflatten(0, (self.settings.heads, -1))[None, :, :, None]

    def taps(self, maps: Tensor, channels: slice, where: slice) -> list[Tensor]:
        """The neighbours of a strip in the long rows."""
        heads = self.heads(maps[channels])
        return [heads[..., where.start + step : where.stop + step] for step in self.steps]

    def places(self, logits: Tensor) -> Tensor:
        """(k²·heads, n) as (k², 1, heads, 1, n)."""
        return logits.unflatten(0, (len(self.steps), -1))[:, None, :, None]

    def maps(self, like: Tensor, channels: int, *, zero: bool = False) -> Tensor:
        """Long rows (channels, columns) whose margins are zero."""
        if zero:
            return like.new_zeros(channels, self.columns)
        maps = like.new_empty(channels, self.columns)
        maps[:, : self.margin] = 0
        maps[:, self.end :] = 0
        return maps

    def scratch(self, like: Tensor) -> Tensor:
        """Room for one projection of a strip."""
        return like.new_empty(self.width, self.length)


def _product(weight: Tensor, strip: Tensor, out: Tensor | None = None, *, channels_last: bool = False) -> Tensor:
    """``weight @ strip``, stored pixel by pixel where that is how it will be used."""
    if not channels_last:
        return torch.mm(weight, strip, out=out)
    return torch.mm(strip.t(), weight.t(), out=None if out is None else out.t()).t()


class _LocalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, settings: Window, eps: tuple[float, ...], x: Tensor, *tensors: Tensor | None) -> Any:
        project, position, output = (
            Linear(*tensors[4 * i : 4 * i + 4], eps=eps[i])  # pyright: ignore[reportArgumentType]
            for i in range(3)
        )
        channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        plan = _Plan(x, output.weight.shape[1], settings)
        pixels = x.flatten(2)

        raw = plan.maps(x, project.weight.shape[0])
        projected = Norm(project)
        for image, inside, where in plan.strips:
            projected.measure(_product(project.weight, pixels[image, :, inside], raw[:, where]))
        projected.settle()

        source, scale, shift = raw, projected.scale, projected.shift
        if settings.iterations > 1:  # refinement is not linear in the keys: it reads finished ones
            source = plan.maps(x, len(raw))
            projected.apply(raw[:, plan.margin : plan.end], source[:, plan.margin : plan.end])
            scale, shift = torch.ones_like(scale), torch.zeros_like(shift)

        logits: list[Tensor] = []
        positioned = Norm(position, _constant(position, shift[plan.query]))
        if len(position.weight):
            weight = position.weight * scale[plan.query]
            for _, _, where in plan.strips:
                logits.append(weight @ source[plan.query, where])
                positioned.measure(logits[-1])
            positioned.settle()

        attended: list[Tensor] = []
        passes: list[Tensor] = []
        results: list[Tensor] = []
        finished = Norm(output, _constant(output, shift[plan.value]))
        weight = output.weight * scale[plan.value]
        product, room = plan.scratch(x), plan.scratch(x)
        key_scale = scale[plan.key, None]
        for index, (_, inside, where) in enumerate(plan.strips):
            count = where.stop - where.start
            query = None
            if settings.content:
                query = torch.mul(source[plan.query, where], scale[plan.query, None] * key_scale, out=room[:, :count])
                query = plan.heads(query.add_(shift[plan.query, None] * key_scale))
            mapped, weights = window.attend(
                query,
                plan.taps(source, plan.key, where),
                plan.taps(source, plan.value, where),
                plan.places(positioned.apply(logits[index])) if logits else None,
                plan.mask[..., inside],
                settings.scale,
                settings.iterations,
                plan.heads(product[:, :count]),
            )
            passes += weights
            attended.append(mapped.view(plan.width, count))
            results.append(_product(weight, attended[-1], channels_last=channels_last))
            finished.measure(results[-1])
        finished.settle()

        form = torch.channels_last if channels_last else torch.contiguous_format
        shape = (x.shape[0], len(output.weight), *x.shape[2:])
        out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=form)
        target = out.flatten(2)
        for (image, inside, _), result in zip(plan.strips, results):
            finished.apply(result, target[image, :, inside])

        ctx.plan, ctx.channels_last, ctx.norms = plan, channels_last, (projected, positioned, finished)
        ctx.save_for_backward(x, raw, source, scale, shift, *logits, *passes, *attended, *results)
        statistics = projected.statistics + positioned.statistics + finished.statistics
        ctx.mark_non_differentiable(*statistics)
        return out, *statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        plan, settings, channels_last = ctx.plan, ctx.plan.settings, ctx.channels_last
        projected, positioned, finished = ctx.norms
        project, position, output = (norm.linear for norm in ctx.norms)
        x, raw, source, scale, shift, *saved = ctx.saved_tensors
        count, rounds = len(plan.strips), settings.iterations
        logits = saved[: count if len(position.weight) else 0]
        saved = saved[len(logits) :]
        passes, attended, results = saved[: count * rounds], saved[-2 * count : -count], saved[-count:]
        pixels, gradient = x.flatten(2), gradients[0].flatten(2)

        at_finished = NormGradient(finished)
        for (image, inside, _), result in zip(plan.strips, results):
            at_finished.collect(gradient[image, :, inside], result)
        at_finished.settle()

        at_output = torch.zeros_like(output.weight)
        at_raw = plan.maps(x, len(raw), zero=True)
        at_logits: list[Tensor] = []
        at_positioned = NormGradient(positioned)
        product, room = plan.scratch(x), plan.scratch(x)
        for index, (image, inside, where) in enumerate(plan.strips):
            part = slice(where.stop - where.start)
            at_result = at_finished.turn(gradient[image, :, inside], results[index])
            at_output.addmm_(at_result, attended[index].t())
            at_mapped = torch.mm(output.weight.t(), at_result, out=room[:, part])
            *refinements, weights = passes[index * rounds : (index + 1) * rounds]
            window.scatter(weights, plan.heads(at_mapped), plan.taps(at_raw, plan.value, where))
            at_mapped.mul_(scale[plan.value, None])
            scratch = plan.heads(product[:, part])
            at_weights = window.score(plan.heads(at_mapped), plan.taps(source, plan.value, where), scratch)
            at_logit = window.softmax_backward(at_weights, weights)
            if logits:
                at_logits.append(at_logit.view(logits[index].shape))
                at_positioned.collect(at_logits[-1], logits[index])
            if settings.content:
                keys, into = plan.taps(source, plan.key, where), plan.taps(at_raw, plan.key, where)
                at_logit = window.refine_backward(at_logit, keys, into, refinements, settings.scale)
                at_logit = at_logit * settings.scale if settings.scale != 1.0 else at_logit
                query = torch.mul(source[plan.query, where], scale[plan.query, None], out=room[:, part])
                window.scatter(at_logit, plan.heads(query.add_(shift[plan.query, None])), into)
                at_query = window.gather(at_logit, keys).view(plan.width, -1)
                at_raw[plan.query, where].addcmul_(at_query, scale[plan.key, None])
        at_positioned.settle()

        at_position = torch.zeros_like(position.weight)
        at_projected = NormGradient(projected)
        for index, (_, _, where) in enumerate(plan.strips):
            if logits:
                at_logit = at_positioned.turn(at_logits[index], logits[index])
                at_position.addmm_(at_logit, source[plan.query, where].t())
                at_raw[plan.query, where].addmm_(position.weight.t(), at_logit)
            at_projected.collect(at_raw[:, where], raw[:, where])
        at_projected.settle()

        at_project = torch.zeros_like(project.weight)
        at_x = torch.empty_like(x) if ctx.needs_input_grad[2] else None
        for image, inside, where in plan.strips:
            at_strip = at_projected.turn(at_raw[:, where], raw[:, where], at_raw[:, where])
            at_project.addmm_(at_strip, pixels[image, :, inside].t())
            if at_x is not None:
                target = at_x.flatten(2)[image, :, inside]
                _product(project.weight.t(), at_strip, target, channels_last=channels_last)

        at_output = _folded(at_output, scale[plan.value], shift[plan.value], at_finished)
        at_position = _folded(at_position, scale[plan.query], shift[plan.query], at_positioned)
        return (
            *(None, None, at_x),
            *(at_project, *at_projected.parameters()),
            *(at_position, *at_positioned.parameters()),
            *(at_output, *at_finished.parameters()),
        )


def _constant(linear: Linear, shift: Tensor) -> Tensor:
    """What the shift of a product's input adds to it."""
    return linear.weight @ shift if len(linear.weight) else linear.weight.new_zeros(0)


def _folded(at_weight: Tensor, scale: Tensor, shift: Tensor, norm: NormGradient) -> Tensor:
    """The gradient of a weight whose input was scaled and shifted, from that for the bare input."""
    if not len(at_weight):
        return at_weight
    return at_weight.mul_(scale).addr_(norm.at_constant, shift)


def local_attention(
    x: Tensor, project: Linear, position: Linear | None, output: Linear, settings: Window
) -> tuple[Tensor, list[Tensor]]:
    """A layer's output (B, N, H, W) for ``x`` (B, C, H, W), and what its norms measured.

    Args:
        x: Input in any memory format; the output has the same.
        project: Query, key and value in one: C → 2 or 3 widths, one width where shared.
        position: From the finished query to k²·heads position logits, place by place; or None.
        output: From the attended map to the output.
        settings: The window's.

    Returns:
        The output; and for each norm in the order of the arguments its mean and its biased variance.
    """
    linears = (project, position or Linear(x.new_empty(0, 0)), output)
    tensors = [getattr(linear, name) for linear in linears for name in Linear.TENSORS]
    out, *statistics = _LocalAttention.apply(settings, tuple(linear.eps for linear in linears), x, *tensors)
    return out, statistics
