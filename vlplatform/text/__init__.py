"""Text: tokenisers and vocabularies."""

from vlplatform.text.vocabulary import Vocabulary

__all__ = ["Vocabulary"]
