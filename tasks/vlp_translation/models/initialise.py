"""How the maps of a translator begin: as those of fairseq's first Transformer."""

from __future__ import annotations

from torch import nn

from vlplatform.attention import MultiHeadAttention
from vlplatform.attention.dynamic_conv import DynamicConvolution


def initialise(model: nn.Module) -> None:
    """Xavier's uniform initialisation for linear maps and zero biases; queries, keys and values with a gain of 1/√2.

    So fairseq's first releases begin. Its last ones leave the maps of the feed-forward networks and the biases of
    queries, keys and values as PyTorch makes them, uniform within ±1/√fan_in.
    Left alone are the filters of dynamic convolutions, whose Xavier initialisation in fairseq is overwritten by
    PyTorch's own, and embeddings, which begin as :class:`~vlp_translation.models.embedding.Embedding` says.
    """
    filters = {id(part.filter) for part in model.modules() if isinstance(part, DynamicConvolution)}
    for part in model.modules():
        if isinstance(part, nn.Linear) and id(part) not in filters:
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    for part in model.modules():
        if isinstance(part, MultiHeadAttention):
            for projection in (part.query, part.key, part.value):
                nn.init.xavier_uniform_(projection.weight, gain=2**-0.5)
