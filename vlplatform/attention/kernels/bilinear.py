"""Bilinear features of all queries and keys, a few heads at a time, so that what is multiplied next is in the cache.

With W_B folded into the queries, ``W_B (Q ⊙ K_i) = (W_B diag(Q)) K_i``, the features of all queries with all keys are
one matrix product per head, and so are their gradients. Shapes: X items times heads, R queries, M keys, d a head's
width, c of W_B. All is laid out for what the products read fastest: the folded queries are (X, d, R · c), the features
(X, M, R · c).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def bilinear(
    q: Tensor, k: Tensor, share: Tensor | None, weight: Tensor, bias: Tensor, spatial: Tensor, room: int
) -> tuple[Tensor, Tensor]:
    """Logits ``w_b · b_i`` (b, h, R, M) and means b̄ (b, h, R, c) of the features ``b_i = ReLU(W_B (Q ⊙ K_i))``.

    They have a first derivative only, for which the features are kept, R · M · c numbers per head.

    Args:
        q: Q (b, h, R, d).
        k: K (b, h, M, d).
        share: What the mean gives each key, (b or 1, h or 1, R or 1, M); none where all get the same.
        weight: W_B (c, d).
        bias: Of W_B, (c,).
        spatial: w_b (1, c).
        room: Bytes of the features that are worked on at a time.
    """
    batch = k.shape[:2]
    if share is not None:
        share = share.expand(*batch, -1, -1).flatten(0, 1)
    keep = torch.is_grad_enabled()  # within the function it never is
    q = q.transpose(2, 3).flatten(0, 1).contiguous()
    logits, pooled = _Bilinear.apply(q, k.flatten(0, 1), share, weight, bias, spatial, room, keep)
    return logits.transpose(1, 2).unflatten(0, batch), pooled.unflatten(0, batch)


class _Bilinear(torch.autograd.Function):
    """Of Q (X, d, R), K (X, M, d) and shares (X, R or 1, M): logits (X, M, R) and means (X, R, c)."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        share: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        spatial: Tensor,
        room: int,
        keep: bool,
    ) -> tuple[Tensor, Tensor]:
        (width, rows), keys, middle = q.shape[1:], k.shape[1], len(weight)
        step = max(1, room // (rows * max(keys, width) * middle * q.element_size()))
        logits, pooled = q.new_empty(len(q), keys, rows), q.new_empty(len(q), rows, middle)
        columns, kept = weight.t().contiguous(), []
        for start in range(0, len(q), step):
            part = slice(start, start + step)
            pairs = torch.bmm(k[part], _folded(q[part], columns).flatten(2))
            pairs = pairs.view(-1, keys, rows, middle).add_(bias).relu_()
            torch.mv(pairs.view(-1, middle), spatial[0], out=logits[part].view(-1))
            pooled[part] = _means(pairs, None if share is None else share[part])
            if keep:
                kept.append(pairs)  # apart: blocks of this size are used again in the next step, one big one is not
        ctx.save_for_backward(q, k, share, columns, spatial, *kept)
        return logits, pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        of_logits, of_pooled = gradients
        q, k, share, columns, spatial, *kept = ctx.saved_tensors
        of_q, of_k, start = torch.empty_like(q), torch.empty_like(k), 0
        of_columns, of_bias, of_spatial = torch.zeros_like(columns), spatial.new_zeros(()), torch.zeros_like(spatial)
        for pairs in kept:
            part = slice(start, start + len(pairs))
            start = part.stop
            logit = of_logits[part, ..., None]  # (x, M, R, 1)
            of_spatial += logit.reshape(1, -1) @ pairs.flatten(0, 2)
            grad = _scattered(of_pooled[part], None if share is None else share[part], logit, spatial[0])
            torch.ops.aten.threshold_backward.grad_input(grad, pairs, 0, grad_input=grad)  # of the ReLU, in place
            of_bias = of_bias + grad.flatten(0, 2).sum(0)
            grad = grad.flatten(2)  # (x, M, R · c)
            folded = _folded(q[part], columns)
            torch.bmm(grad, folded.flatten(2).transpose(1, 2), out=of_k[part])
            torch.bmm(k[part].transpose(1, 2), grad, out=folded.view(*folded.shape[:2], -1))  # the folded's gradient
            by_column = torch.bmm(q[part].flatten(0, 1)[:, None], folded.flatten(0, 1))  # (x · d, 1, c)
            of_columns += by_column.view(-1, *columns.shape).sum(0)
            torch.sum(folded.mul_(columns[:, None]), -1, out=of_q[part])
        return of_q, of_k, None, of_columns.t(), of_bias, of_spatial, None, None


def _folded(q: Tensor, columns: Tensor) -> Tensor:
    """``W_B diag(Q)`` (x, d, R, c) of queries (x, d, R) and W_B's columns (d, c)."""
    return q[..., None] * columns[:, None]


def _means(pairs: Tensor, share: Tensor | None) -> Tensor:
    """Features (x, M, R, c) weighed by shares (x, R or 1, M): (x, R, c)."""
    if share is None:
        return pairs.mean(1)
    if share.shape[1] == 1:  # all rows pool the same keys: one product
        return (share @ pairs.flatten(2)).view(len(pairs), *pairs.shape[2:])
    return (share[:, :, None] @ pairs.transpose(1, 2)).squeeze(2)


def _scattered(of_pooled: Tensor, share: Tensor | None, of_logits: Tensor, spatial: Tensor) -> Tensor:
    """Gradient (x, M, R, c) of the features from those of means (x, R, c) and logits (x, M, R, 1)."""
    if share is None:
        return torch.addcmul((of_pooled / of_logits.shape[1])[:, None], of_logits, spatial)
    return (of_logits * spatial).addcmul_(share.transpose(1, 2)[..., None], of_pooled[:, None])
