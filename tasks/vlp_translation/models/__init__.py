"""The translator and its parts."""

from vlp_translation.models.memory import Memory
from vlp_translation.models.presets import PRESETS, Preset
from vlp_translation.models.settings import TransformerSettings
from vlp_translation.models.transformer import Translator
from vlp_translation.models.translate import Translation, drawn, translate

MODELS = {Translator.name: Translator}
"""Model name → class."""

__all__ = [
    "MODELS",
    "PRESETS",
    "Memory",
    "Preset",
    "TransformerSettings",
    "Translation",
    "Translator",
    "drawn",
    "translate",
]
