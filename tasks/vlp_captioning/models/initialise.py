"""How the maps of Transformer captioners begin."""

from __future__ import annotations

from torch import nn


def initialise(model: nn.Module, output: nn.Linear) -> None:
    """Xavier's uniform initialisation for all linear maps, as in the original Transformer's code, and zero biases.

    Left alone is the backbone of a model that sees pixels. The output map begins like word vectors, with the deviation
    D^−½, so that the first logits are of order 1.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not name.startswith("vision."):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    nn.init.normal_(output.weight, std=output.in_features**-0.5)
