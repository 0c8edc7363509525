"""The attribute detector: which words a picture's captions will have, learnt from captions alone; a task of its own."""

from vlp_captioning.attributes.noisy_or import Absence, NoisyOr, noisy_or_loss
from vlp_captioning.attributes.words import detected, frequent_words, labels

__all__ = ["Absence", "NoisyOr", "detected", "frequent_words", "labels", "noisy_or_loss"]
