"""Multi-branch attention around any token attention (MD-SAN, Ji et al., eq. 9–11; tables V, VI and XII).

Original repository: Young499/image-captioning-MDSANet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlplatform.attention.cache import Cache
from vlplatform.attention.dsa import Scaling
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.multi_head import Scale
from vlplatform.attention.score_term import Depth
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry, Metric

Form = Literal["code", "paper"]


class MultiBranch(nn.Module):
    """The mean of M branches, each a whole attention with weights of its own; whole branches are dropped in training.

    ``z = (1/M) Σ_j β_j b_j`` with ``β_j = 1[U_j ≥ ρ] / (1 − ρ)`` in training and 1 in evaluation; the U_j are drawn
    once per call, for the whole batch. ``form=code``: ``b_j = LN_j(x + dropout(A_j(x)))``, a residual and norm of its
    own for each branch, as in the authors' code, whose scores are the published ones; what is around the module adds
    another residual and norm. ``form=paper``: ``b_j = A_j(x)`` (eq. 9). With all branches dropped, a chance of ρ^M,
    z is 0.

    Args:
        branches: The attentions; a caller's arguments go to each.
        dim: Model width D.
        drop: ρ, the rate at which branches are dropped in training.
        form: What a branch is.
        dropout: Rate of element dropout inside a branch of the code's form.

    Raises:
        ValueError: No branch, an unknown form, or a rate outside [0, 1).
    """

    def __init__(
        self,
        branches: Sequence[nn.Module],
        dim: int,
        *,
        drop: float = 0.4,
        form: Form = "code",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not branches:
            raise ValueError("branches=0 must be at least 1")
        if form not in get_args(Form):
            raise ValueError(f"form={form} is not one of {', '.join(get_args(Form))}")
        if not (0 <= drop < 1 and 0 <= dropout < 1):
            raise ValueError(f"drop={drop} and dropout={dropout} must be at least 0 and below 1")
        self.branches = nn.ModuleList(branches)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in branches) if form == "code" else None
        self.drop, self.dropout = drop, dropout

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        geometry: Geometry | tuple[Geometry, Geometry] | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        cache: Cache | None = None,
        query_mask: Tensor | None = None,
        depth: Depth | None = None,
        draws: Tensor | None = None,
    ) -> Tensor:
        """Attended tokens (B, N, D); arguments as the branches take them.

        Args:
            query: (B, N, D).
            key: As the branches'.
            value: As the branches'.
            geometry: As the branches'.
            mask: As the branches'.
            causal: As the branches'.
            cache: What earlier steps of a decoder left; each branch has a part of its own.
            query_mask: As the branches'.
            depth: What the layers share; each branch has a part of its own, in all layers the same.
            draws: The U_j (M,) in [0, 1), for a training step that is to be repeated; drawn unless given.
        """
        total: Tensor | None = None
        for j, (branch, share) in enumerate(zip(self.branches, self._shares(query, draws))):
            own = self._own(j, value, cache, depth)
            if query_mask is not None:
                own["query_mask"] = query_mask
            out = branch(query, key, geometry=geometry, mask=mask, causal=causal, **own)
            if self.norms is not None:
                out = self.norms[j](query + F.dropout(out, self.dropout, self.training))
            total = out * share if total is None else torch.addcmul(total, out, share)
        assert total is not None
        return total

    @staticmethod
    def _own(j: int, value: Tensor | None, cache: Cache | None, depth: Depth | None) -> dict[str, Any]:
        """The arguments of branch j that were given."""
        own: dict[str, Any] = {} if value is None else {"value": value}
        if cache is not None:
            own["cache"] = cache.child(str(j))
        return own if depth is None else {**own, "depth": depth.child(str(j))}

    def attention_weights(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        cache: Cache | None = None,
        depth: Depth | None = None,
        draws: Tensor | None = None,
        **rest: Any,
    ) -> Tensor:
        """The probabilities of all branches' heads, side by side: (B, M · h, N, keys); dropped branches too."""
        weights = []
        for j, branch in enumerate(self.branches):
            compute = getattr(branch, "attention_weights", None)
            if compute is None:
                raise UserError(f"{type(branch).__name__} has no weights to show.")
            weights.append(compute(query, key, **self._own(j, value, cache, depth), **rest))
        return torch.cat(weights, 1)

    def _shares(self, like: Tensor, draws: Tensor | None) -> Tensor:
        """β_j / M."""
        count = len(self.branches)
        if not self.training:
            return like.new_full((count,), 1 / count)
        draws = torch.rand(count, device=like.device) if draws is None else draws
        if draws.shape != (count,):
            raise UserError(f"draws has shape {tuple(draws.shape)}; expected ({count},), one number per branch.")
        return (draws >= self.drop).to(like.dtype) / ((1 - self.drop) * count)

    def macs(self, queries: int, keys: int | None = None) -> int:
        """Multiply–adds of all branches, for one item."""
        return sum(getattr(branch, "macs")(queries, keys) for branch in self.branches)  # noqa: B009


def _multi_branch(
    dim: int,
    *,
    of: str = "sa",
    inner: dict[str, Any] | None = None,
    heads: int = 8,
    branches: int = 3,
    drop: float = 0.4,
    form: Form = "code",
    dropout: float = 0.0,
    memory_dim: int | None = None,
) -> nn.Module:
    """``(1/M) Σ_j β_j b_j`` over M branches of one mechanism: see :class:`MultiBranch`.

    With ``form=code`` ``b_j = LN_j(x + dropout(A_j(x)))``, with ``form=paper`` ``b_j = A_j(x)``; in training
    ``β_j = 1[U_j ≥ ρ] / (1 − ρ)``, in evaluation 1.

    Args:
        dim: Model width D.
        of: The mechanism of the branches: any for tokens, also several score terms joined by a plus.
        inner: Further settings of that mechanism.
        heads: Heads of each branch.
        branches: M.
        drop: ρ, the rate at which branches are dropped in training.
        form: ``code``: a residual and norm for each branch; ``paper``: the bare outputs.
        dropout: Of attention weights, and of each branch's output.
        memory_dim: Width of the keys' tokens.
    """
    from vlplatform.attention import build

    settings = {"heads": heads, "dropout": dropout, **(inner or {})}
    made = [build(of, dim=dim, socket="token", memory_dim=memory_dim, **settings) for _ in range(branches)]
    return MultiBranch(made, dim, drop=drop, form=form, dropout=dropout)


def _distance_sensitive(
    dim: int,
    *,
    distance: Metric = "manhattan",
    scaling: Scaling = "dynamic_sigmoid",
    heads: int = 8,
    head_dim: int | None = None,
    key_dim: int | None = None,
    bias: bool = True,
    scale: Scale = "head",
    branches: int = 3,
    drop: float = 0.4,
    form: Form = "code",
    dropout: float = 0.0,
    memory_dim: int | None = None,
) -> nn.Module:
    """MD-SAN's attention: branches of distance-sensitive attention.

    ``(1/M) Σ_j β_j LN_j(x + dropout(A_j(x)))`` with ``E_i = ReLU(q_i k_iᵀ / √d) ∘ R_i`` in A_j: see ``msa``, ``dsa``.

    Args:
        dim: Model width D.
        distance: Of the branches.
        scaling: Of the branches.
        heads: Heads of each branch.
        head_dim: Width of one head's query, key and value; D / h unless given.
        key_dim: Width of one head's query and key, where it differs.
        bias: The four projections of each branch have biases.
        scale: Logits are divided by the root of the head's width or of the model's.
        branches: M.
        drop: ρ, the rate at which branches are dropped in training.
        form: ``code``: a residual and norm for each branch; ``paper``: the bare outputs.
        dropout: Of attention weights, and of each branch's output.
        memory_dim: Width of the keys' tokens.
    """
    inner = {"head_dim": head_dim, "key_dim": key_dim, "bias": bias, "scale": scale}
    return _multi_branch(
        dim,
        of="dsa",
        inner={"distance": distance, "scaling": scaling, **inner},
        heads=heads,
        branches=branches,
        drop=drop,
        form=form,
        dropout=dropout,
        memory_dim=memory_dim,
    )


MECHANISMS = (
    Mechanism(
        name="msa",
        build=_multi_branch,
        sockets=("token",),
        summary="mean of several whole attentions, dropped at random in training",
        paper="MD-SAN",
        equations="9–11",
    ),
    Mechanism(
        name="mdsa",
        build=_distance_sensitive,
        sockets=("token",),
        summary="three branches of distance-sensitive attention",
        paper="MD-SAN",
        equations="6–11",
    ),
)
