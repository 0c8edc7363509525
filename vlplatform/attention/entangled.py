"""Entangled attention to two memories, and the gated bilateral controller that joins its two ways.

The ETA-Transformer of the attention thesis, chapter 2 (Li et al., "Entangled Transformer for Image Captioning", ICCV
2019); equation and table numbers are the thesis'. Shapes: B batch, N queries, M tokens of a memory, D model width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vlplatform.attention.cache import Cache
from vlplatform.attention.mechanism import Mechanism
from vlplatform.attention.multi_head import MultiHeadAttention
from vlplatform.attention.score_term import Depth
from vlplatform.errors import UserError
from vlplatform.geometry import Geometry

Activation = Literal["identity", "relu", "tanh", "sigmoid"]
Variant = Literal["eta", "parallel", "stacked_v", "stacked_s", "visual", "semantic"]
_ACTIVATIONS = {"identity": nn.Identity, "relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
_MEMORIES = ("visual", "semantic")
_VISUAL, _SEMANTIC = 0, 1


class GatedBilateral(nn.Module):
    """``e = f(v) ⊙ c + f(s) ⊙ (1 − c)`` with ``c = σ(W_c [g_s, g_v, a])`` (eq. 2.11–2.12).

    Args:
        dim: Model width D.
        activation: The function f (table 2.6).

    Raises:
        ValueError: Unknown activation.
    """

    def __init__(self, dim: int, *, activation: Activation = "identity") -> None:
        super().__init__()
        if activation not in get_args(Activation):
            raise ValueError(f"activation={activation} is not one of {', '.join(get_args(Activation))}")
        self.activation = _ACTIVATIONS[activation]()
        self.gate = nn.Linear(3 * dim, dim)

    def forward(self, visual: Tensor, semantic: Tensor, context: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """(B, N, D) from v, s and the three tensors that the gate reads, each (B, N, D)."""
        opened = torch.sigmoid(self.gate(torch.cat(context, -1)))
        return self.activation(visual) * opened + self.activation(semantic) * (1 - opened)


class Guided(nn.Module):
    """``norm(x + MHA(x, M, M))``: an attention to one memory with its residual and layer normalisation.

    Args:
        dim: Model width D.
        heads: Heads.
        dropout: Rate at which attention weights and the attention's output are dropped.
        memory_dim: Width of the memory, D unless given.
    """

    def __init__(self, dim: int, *, heads: int = 8, dropout: float = 0.0, memory_dim: int | None = None) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim, heads=heads, dropout=dropout, memory_dim=memory_dim)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        """(B, N, D) from (B, N, D) and a memory (B, M, width), masked by (B, M)."""
        return self.norm(x + self.dropout(self.attention(x, memory, mask=mask, cache=cache)))


class _Fusion(nn.Module, ABC):
    """What all ways to read two memories share: the call, its checks, and the steps by name."""

    reads: tuple[int, ...] = (_VISUAL, _SEMANTIC)
    has_residual = True  # a layer around it adds none

    def __init__(self, dim: int, heads: int, dropout: float, memory_dims: tuple[int, int] | None) -> None:
        super().__init__()
        if memory_dims is not None and (len(memory_dims) != 2 or min(memory_dims) < 1):
            raise ValueError(f"memory_dims={memory_dims} must be two widths of at least 1, visual and semantic")
        self.dim, self.heads, self.dropout = dim, heads, dropout
        self.widths = (dim, dim) if memory_dims is None else tuple(memory_dims)

    def forward(
        self,
        query: Tensor,
        memories: Sequence[Tensor],
        *,
        mask: Sequence[Tensor | None] | None = None,
        geometry: Geometry | tuple[Geometry, Geometry] | None = None,
        cache: Cache | None = None,
        depth: Depth | None = None,
    ) -> Tensor:
        """The queries with what they found in both memories (B, N, D).

        Residuals and normalisations are inside: what follows is the feed-forward layer. A memory without a real token
        adds nothing to the residual.

        Args:
            query: (B, N, D), the output a of the self-attention.
            memories: Visual (B, M_v, width) and semantic (B, M_s, width) tokens. Their batches may divide that of the
                queries, as with several captions or beams per image.
            mask: Booleans (B, M_v) and (B, M_s), true where a token is real, either none.
            geometry: Not used.
            cache: Keeps the memories' keys and values between the steps of a decoder.
            depth: Not used.

        Raises:
            UserError: A width, shape, type or number that does not fit.
        """
        masks = self._check(query, memories, mask)
        return self._fuse(query, memories, masks, cache)

    def macs(self, queries: int, keys: tuple[int, int]) -> int:
        """Multiply–adds for one item with N queries and (M_v, M_s) tokens in the memories."""
        total = 0
        for name, part in self.named_children():
            if isinstance(part, Guided):
                total += part.attention.macs(queries, keys[self._memory_of(name)])
            elif isinstance(part, GatedBilateral):
                total += queries * part.gate.weight.numel()
        return total

    @abstractmethod
    def _fuse(
        self, query: Tensor, memories: Sequence[Tensor], masks: Sequence[Tensor | None], cache: Cache | None
    ) -> Tensor:
        """The attended queries (B, N, D)."""

    def _memory_of(self, name: str) -> int:
        """The memory that a step reads: the one in its name."""
        return _SEMANTIC if "semantic" in name else _VISUAL

    def _step(self, memory: int) -> Guided:
        return Guided(self.dim, heads=self.heads, dropout=self.dropout, memory_dim=self.widths[memory])

    def _take(
        self,
        name: str,
        x: Tensor,
        memories: Sequence[Tensor],
        masks: Sequence[Tensor | None],
        cache: Cache | None,
    ) -> Tensor:
        """The output of the step ``name`` for ``x``."""
        memory = self._memory_of(name)
        step = self.get_submodule(name)
        return step(x, memories[memory], masks[memory], None if cache is None else cache.child(name))

    def _check(
        self, query: Tensor, memories: Sequence[Tensor], masks: Sequence[Tensor | None] | None
    ) -> Sequence[Tensor | None]:
        if query.ndim != 3 or query.shape[-1] != self.dim:
            raise UserError(f"query has shape {tuple(query.shape)}; expected (batch, tokens, {self.dim}).")
        for name, given in (("memories", memories), ("mask", (None, None) if masks is None else masks)):
            if not isinstance(given, (list, tuple)) or len(given) != 2:
                came = f"{len(given)} entries" if isinstance(given, (list, tuple)) else f"a {type(given).__name__}"
                raise UserError(f"{name} came as {came}; expected a list or tuple of two, visual and semantic.")
        masks = (None, None) if masks is None else masks
        for i in self.reads:
            memory, mask, name = memories[i], masks[i], f"memories[{i}] ({_MEMORIES[i]})"
            if memory.ndim != 3 or memory.shape[-1] != self.widths[i]:
                raise UserError(f"{name} has shape {tuple(memory.shape)}; expected (batch, tokens, {self.widths[i]}).")
            if not len(memory) or len(query) % len(memory):
                raise UserError(
                    f"query has a batch of {len(query)}, {name} of {len(memory)}; expected a divisor of it."
                )
            if mask is not None and (mask.dtype != torch.bool or mask.shape != memory.shape[:2]):
                raise UserError(
                    f"mask[{i}] ({_MEMORIES[i]}) has shape {tuple(mask.shape)} and type {mask.dtype}; expected "
                    f"booleans of shape {tuple(memory.shape[:2])}, true where a token is real."
                )
        return masks


class Entangled(_Fusion):
    """Each modality guides the attention to the other, and a gate joins the two ways (eq. 2.8–2.12, figure 2.3).

    ======================  =================================================
    ``guide_semantic``      ``g_s = norm(a + MHA(a, S, S))`` (eq. 2.9)
    ``visual``              ``v = norm(g_s + MHA(g_s, V, V))`` (eq. 2.10)
    ``guide_visual``        ``g_v = norm(a + MHA(a, V, V))``
    ``semantic``            ``s = norm(g_v + MHA(g_v, S, S))``
    ``join``                ``e = f(v) ⊙ c + f(s) ⊙ (1 − c)`` (eq. 2.11–2.12)
    ======================  =================================================

    Where we differ: nothing known; there is no public code. The text leaves out residual, normalisation and biases
    "for concise expression"; they stand here after each of the four attentions, and no other surrounds the whole.

    Args:
        dim: Model width D.
        heads: Heads of each attention.
        activation: The function f of the gated bilateral controller.
        dropout: Rate at which attention weights and the attentions' outputs are dropped.
        memory_dims: Widths of the visual and the semantic memory, D unless given.

    Raises:
        ValueError: Unknown activation, or sizes that do not fit.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        activation: Activation = "identity",
        dropout: float = 0.0,
        memory_dims: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(dim, heads, dropout, memory_dims)
        self.guide_semantic, self.visual = self._step(_SEMANTIC), self._step(_VISUAL)
        self.guide_visual, self.semantic = self._step(_VISUAL), self._step(_SEMANTIC)
        self.join = GatedBilateral(dim, activation=activation)

    def _fuse(
        self, query: Tensor, memories: Sequence[Tensor], masks: Sequence[Tensor | None], cache: Cache | None
    ) -> Tensor:
        guide_semantic = self._take("guide_semantic", query, memories, masks, cache)
        guide_visual = self._take("guide_visual", query, memories, masks, cache)
        visual = self._take("visual", guide_semantic, memories, masks, cache)
        semantic = self._take("semantic", guide_visual, memories, masks, cache)
        return self.join(visual, semantic, (guide_semantic, guide_visual, query))


class Parallel(_Fusion):
    """The gate alone: both memories are attended to from a, without preliminary injection (table 2.5, "Parallel").

    ``v = norm(a + MHA(a, V, V))``, ``s = norm(a + MHA(a, S, S))``, joined as in :class:`Entangled`. The text does not
    say what the gate reads without guidance; here ``[s, v, a]``, what stands in the place of ``[g_s, g_v, a]``.

    Args:
        dim: Model width D.
        heads: Heads of each attention.
        activation: The function f of the gated bilateral controller.
        dropout: Rate at which attention weights and the attentions' outputs are dropped.
        memory_dims: Widths of the visual and the semantic memory, D unless given.

    Raises:
        ValueError: Unknown activation, or sizes that do not fit.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        activation: Activation = "identity",
        dropout: float = 0.0,
        memory_dims: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(dim, heads, dropout, memory_dims)
        self.visual, self.semantic = self._step(_VISUAL), self._step(_SEMANTIC)
        self.join = GatedBilateral(dim, activation=activation)

    def _fuse(
        self, query: Tensor, memories: Sequence[Tensor], masks: Sequence[Tensor | None], cache: Cache | None
    ) -> Tensor:
        visual = self._take("visual", query, memories, masks, cache)
        semantic = self._take("semantic", query, memories, masks, cache)
        return self.join(visual, semantic, (semantic, visual, query))


class Stacked(_Fusion):
    """One way of :class:`Entangled`, without gate: two stacked attentions (table 2.5, "Stacked").

    Args:
        dim: Model width D.
        heads: Heads of each attention.
        dropout: Rate at which attention weights and the attentions' outputs are dropped.
        memory_dims: Widths of the visual and the semantic memory, D unless given.
        target: The memory attended to last: ``visual`` is Stacked_v (S, then V), ``semantic`` Stacked_s (V, then S).

    Raises:
        ValueError: Unknown target, or sizes that do not fit.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        dropout: float = 0.0,
        memory_dims: tuple[int, int] | None = None,
        target: Literal["visual", "semantic"] = "visual",
    ) -> None:
        super().__init__(dim, heads, dropout, memory_dims)
        _check_modality("target", target)
        self.order = ("guide_semantic", "visual") if target == "visual" else ("guide_visual", "semantic")
        for name in self.order:
            self.add_module(name, self._step(self._memory_of(name)))

    def _fuse(
        self, query: Tensor, memories: Sequence[Tensor], masks: Sequence[Tensor | None], cache: Cache | None
    ) -> Tensor:
        for name in self.order:
            query = self._take(name, query, memories, masks, cache)
        return query


class Single(_Fusion):
    """One memory is attended to, the other left alone (table 2.5, "Transformer_v" and "Transformer_s").

    Args:
        dim: Model width D.
        heads: Heads of the attention.
        dropout: Rate at which attention weights and the attention's output are dropped.
        memory_dims: Widths of the visual and the semantic memory, D unless given.
        modality: The memory attended to.

    Raises:
        ValueError: Unknown modality, or sizes that do not fit.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        dropout: float = 0.0,
        memory_dims: tuple[int, int] | None = None,
        modality: Literal["visual", "semantic"] = "visual",
    ) -> None:
        super().__init__(dim, heads, dropout, memory_dims)
        _check_modality("modality", modality)
        self.modality = modality
        self.reads = (_MEMORIES.index(modality),)
        self.add_module(modality, self._step(self.reads[0]))

    def _fuse(
        self, query: Tensor, memories: Sequence[Tensor], masks: Sequence[Tensor | None], cache: Cache | None
    ) -> Tensor:
        return self._take(self.modality, query, memories, masks, cache)


def _check_modality(setting: str, given: str) -> None:
    if given not in _MEMORIES:
        raise ValueError(f"{setting}={given} is not one of {', '.join(_MEMORIES)}")


def _entangled(
    dim: int,
    *,
    heads: int = 8,
    activation: Activation = "identity",
    dropout: float = 0.0,
    variant: Variant = "eta",
    memory_dims: tuple[int, int] | None = None,
) -> nn.Module:
    """Entangled attention (eq. 2.8–2.12), or an ablation of it.

    With a the queries, V and S the memories, and A the norm of the residual sum around multi-head attention:
    ``g_s = A(a, S)``, ``v = A(g_s, V)``, ``g_v = A(a, V)``, ``s = A(g_v, S)``, ``c = σ(W_c [g_s, g_v, a])``,
    ``e = f(v) ∘ c + f(s) ∘ (1 − c)``.

    Args:
        dim: Model width D.
        heads: Heads of each attention.
        activation: The function f of the gated bilateral controller, where there is one: eta and parallel.
        dropout: Rate at which attention weights and the attentions' outputs are dropped.
        variant: Entangled attention, or one of the simpler models of table 2.5.
        memory_dims: Widths of the visual and the semantic memory, D unless given.
    """
    if variant not in get_args(Variant):
        raise ValueError(f"variant={variant} is not one of {', '.join(get_args(Variant))}")
    if variant == "eta":
        return Entangled(dim, heads=heads, activation=activation, dropout=dropout, memory_dims=memory_dims)
    if variant == "parallel":
        return Parallel(dim, heads=heads, activation=activation, dropout=dropout, memory_dims=memory_dims)
    if activation != "identity":
        raise ValueError(f"activation={activation} belongs to a gate, and variant={variant} has none: leave it out")
    if variant in ("stacked_v", "stacked_s"):
        target = "visual" if variant == "stacked_v" else "semantic"
        return Stacked(dim, heads=heads, dropout=dropout, memory_dims=memory_dims, target=target)
    modality = "visual" if variant == "visual" else "semantic"
    return Single(dim, heads=heads, dropout=dropout, memory_dims=memory_dims, modality=modality)


MECHANISMS = (
    Mechanism(
        name="eta",
        build=_entangled,
        sockets=("fusion",),
        summary="semantic-guided visual and visual-guided semantic attention, joined by a gate",
        paper="Attention thesis, chapter 2",
        equations="2.8–2.12",
    ),
    Mechanism(
        name="gbc",
        build=Parallel,
        sockets=("fusion",),
        summary="attention to two memories side by side, joined by a gate",
        paper="Attention thesis, chapter 2",
        equations="2.11–2.12, table 2.5",
    ),
)
