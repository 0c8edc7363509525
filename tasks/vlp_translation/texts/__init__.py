"""Lines as numbers: tokenisation, case, pieces of words and dictionaries, as settings or a saved model say."""

from vlp_translation.texts.pipeline import Texts
from vlp_translation.texts.settings import TextSettings
from vlp_translation.texts.side import Side

__all__ = ["Side", "TextSettings", "Texts"]
