"""Projections, window attention and output product of a local attention layer, strip by strip.

A chain of modules writes each of its maps to memory and reads it back in every pass; here a strip of pixels goes
through all steps before the next one is touched; backwards with the pixels around it that its windows reach. Maps are
(channels, pixels): a neighbour is then a constant number of columns away, so a tap is a slice. A step off the image's
side lands on some other pixel or on the margin around the image, where the border mask has made the weight exactly 0.
Kept for the backward pass: the input, query, key and value, the weights of the windows, and the attended map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlplatform.attention.kernels import window
from vlplatform.attention.kernels.product import affine, product

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
        strip_bytes: A thread's part of one projection of a strip.
    """

    kernel: int
    heads: int
    shared: bool = False
    content: bool = True
    geometric: bool = True
    scale: float = 1.0
    iterations: int = 1
    strip_bytes: int = 1 << 21


def _up(size: int) -> int:
    return -(-size // _LANES) * _LANES


class _Plan:
    """Where everything lies: strips of an image's pixels, the margin around each, rows of query, key and value."""

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
        self.summed = slice(self.key.start, self.value.stop)  # their gradients come from several windows
        self.mask = window.border_mask(height, columns, settings.kernel, x).flatten(3).unsqueeze(3)

    def reach(self, strip: slice) -> tuple[slice, slice]:
        """The pixels of the image that a strip and its margins cover, and the columns where they lie there."""
        first, last = max(0, strip.start - self.margin), min(self.pixels, strip.stop + self.margin)
        shift = self.margin - strip.start
        return slice(first, last), slice(first + shift, last + shift)

    def read(self, pixels: Tensor, strip: slice) -> Tensor:
        """The strip of ``pixels`` (C, H·W) with its margins, zeros outside the image: (C, n + 2·margin)."""
        inside, columns = self.reach(strip)
        around = (columns.start, strip.stop - strip.start + 2 * self.margin - columns.stop)
        if pixels.stride(0) == 1:
            return F.pad(pixels.t()[inside], (0, 0, *around)).t()
        return F.pad(pixels[:, inside], around)

    def add(self, part: Tensor, whole: Tensor, strip: slice) -> None:
        """Add a strip's ``part`` (C, n + 2·margin) to ``whole`` (C, H·W), written up to the reach of the last one."""
        inside, columns = self.reach(strip)
        written = min(strip.start + self.margin, self.pixels) if strip.start else 0
        split = columns.start + written - inside.start
        whole[:, inside.start : written].add_(part[:, columns.start : split])
        whole[:, written : inside.stop].copy_(part[:, split : columns.stop])

    def core(self, maps: Tensor) -> Tensor:
        """A strip's ``maps`` (rows, n + 2·margin) without the margins."""
        return maps[:, self.margin : maps.shape[1] - self.margin]

    def part(self, maps: Tensor, strip: slice) -> Tensor:
        """A strip of the image's ``maps`` (rows, H·W + 2·margin), with its margins."""
        return maps[:, strip.start : strip.stop + 2 * self.margin]

    def heads(self, rows: Tensor) -> Tensor:
        """(width, n) as (1, heads, head width, 1, n)."""
        return rows.unflatten(0, (self.settings.heads, -1))[None, :, :, None]

    def places(self, logits: Tensor) -> Tensor:
        """(k²·heads, n) as (k², 1, heads, 1, n)."""
        return logits.unflatten(0, (self.settings.kernel**2, -1))[:, None, :, None]

    def taps(self, maps: Tensor, rows: slice) -> Tensor:
        """The neighbours (k, k, 1, heads, head width, 1, n) of a strip's pixels in its ``maps``, as a view."""
        kernel, heads, step = self.settings.kernel, self.settings.heads, maps.stride(0)
        size = (kernel, kernel, 1, heads, self.width // heads, 1, maps.shape[1] - 2 * self.margin)
        stride = (self.row, 1, 0, self.width // heads * step, step, 0, 1)
        first = maps.storage_offset() + rows.start * step + self.margin - kernel // 2 * (self.row + 1)
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
        channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        form = torch.channels_last if channels_last else torch.contiguous_format
        shape = (x.shape[0], len(w_output), *x.shape[2:])
        out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=form)
        kept: list[Tensor] = []
        for pixels, target in zip(x.flatten(2), out.flatten(2)):
            maps = product(w_project, plan.read(pixels, slice(0, plan.pixels))).add_(b_project[:, None])
            kept.append(maps)
            for strip in plan.strips:
                here = plan.part(maps, strip)
                attended, passes = window.attend(
                    plan.heads(plan.core(here)[plan.query]) if settings.content else None,
                    plan.taps(here, plan.key),
                    plan.taps(here, plan.value),
                    plan.places(plan.core(here)[plan.position]) if settings.geometric else None,
                    plan.mask[..., strip],
                    settings.scale,
                    settings.iterations,
                )
                attended = attended.view(plan.width, -1)
                affine(w_output, b_output, attended, target[:, strip])
                kept += [attended, *passes]
        ctx.plan = plan
        ctx.save_for_backward(x, w_project, w_output, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        plan, settings = ctx.plan, ctx.plan.settings
        x, w_project, w_output, *saved = ctx.saved_tensors
        kept, scale = iter(saved), settings.scale

        at_x = torch.empty_like(x) if ctx.needs_input_grad[1] else None
        at_project, at_output = torch.zeros_like(w_project), torch.zeros_like(w_output)
        at_project_bias, at_output_bias = w_project.new_zeros(len(w_project)), w_output.new_zeros(len(w_output))
        from_maps, from_output = w_project.t().contiguous(), w_output.t().contiguous()
        room = x.new_empty(len(w_project) * (plan.length + 2 * plan.margin))
        for image, (pixels, gradient) in enumerate(zip(x.flatten(2), grad_outputs[0].flatten(2))):
            whole = next(kept)
            for strip in plan.strips:
                maps, attended = plan.part(whole, strip), next(kept)
                *rounds, weights = (next(kept) for _ in range(settings.iterations))
                given = gradient[:, strip].contiguous()
                at_output += product(given, attended.t())
                at_output_bias += given.sum(1)
                at_attended = plan.heads(product(from_output, given))

                at_maps = room[: maps.numel()].view(maps.shape)  # its rows lie end to end, as products want them
                at_maps[plan.summed].zero_()
                at_maps[:, : plan.margin] = at_maps[:, at_maps.shape[1] - plan.margin :] = 0
                at_here = plan.core(at_maps)
                window.scatter(weights, at_attended, plan.taps(at_maps, plan.value))
                at_logits = window.score(at_attended, plan.taps(maps, plan.value))
                at_logits = window.softmax_backward(at_logits, weights)
                del at_attended
                if settings.geometric:
                    at_here[plan.position] = at_logits.view(-1, given.shape[1])
                if settings.content:
                    keys, into = plan.taps(maps, plan.key), plan.taps(at_maps, plan.key)
                    at_logits = window.refine_backward(at_logits, keys, into, rounds, scale)
                    at_logits = at_logits if scale == 1.0 else at_logits * scale
                    window.scatter(at_logits, plan.heads(plan.core(maps)[plan.query]), into)
                    at_query = plan.heads(at_here[plan.query])
                    if settings.shared:
                        at_query += window.gather(at_logits, keys)
                    else:
                        window.gather(at_logits, keys, out=at_query)

                at_project += product(at_maps, plan.read(pixels, strip).t())
                at_project_bias += at_maps.sum(1)
                if at_x is not None:
                    plan.add(product(from_maps, at_maps), at_x[image].flatten(1), strip)
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
