"""How captions are decoded, in evaluation and for a user's own pictures: the settings ``task.decode``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vlp_captioning.models import Caption, Captioner, Images
from vlplatform.decoding import DiverseSettings, SamplingSettings, merged


@dataclass(frozen=True)
class DecodeSettings:
    """How captions are decoded.

    Attributes:
        beam: Hypotheses kept; 1 is greedy.
        max_length: Words at most, the end symbol counted.
        min_length: Words at least.
        length_penalty: Exponent of the length by which a score is divided.
        no_repeat: Forbid n-grams of so many words to come twice; 0: allow.
        finish: What becomes of hypotheses that end: they compete in the ``beam`` at no further cost (the authors'
            codes), or are put ``aside`` until there are as many as the beam holds (fairseq's early stop).
        groups: Beams in so many groups that avoid each other's words (diverse beam search); 1: one beam.
        diversity: What a word costs in a group for each time that an earlier group chose it in the same step.
        required: Words that every caption must hold; puts finished hypotheses aside.
        samples: Draw so many captions at random and take the likeliest, in place of a beam search, whose settings
            have no part then; 0: search.
        temperature: Of drawing; log-probabilities are divided by it.
        top_k: Draw among so many best words; 0: among all.
        top_p: Draw among the best words that have this probability together (nucleus).
        seed: Of drawing; what is drawn for an image follows from it and the image's id alone.
        merge_repeats: Equal words in a row become one in the finished text, as MD-SAN's code does before scoring.
    """

    beam: int = 3
    max_length: int = 20
    min_length: int = 0
    length_penalty: float = 0.0
    no_repeat: int = 0
    finish: Literal["beam", "aside"] = "beam"
    groups: int = 1
    diversity: float = 0.5
    required: list[str] = field(default_factory=list)
    samples: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    merge_repeats: bool = False

    def __post_init__(self) -> None:
        lengths = self.max_length, self.min_length
        DiverseSettings(
            *lengths, beam=self.beam, length_penalty=self.length_penalty, groups=self.groups, diversity=self.diversity
        )  # checks them
        for name in ("no_repeat", "samples"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        SamplingSettings(*lengths, samples=max(1, self.samples), **self._drawing())
        if not self.samples and self._drawing() != {"temperature": 1.0, "top_k": 0, "top_p": 1.0}:
            raise ValueError("temperature, top_k and top_p are about drawing words: say how often with samples=N")
        if self.samples and (self.required or self.groups > 1):
            raise ValueError(f"required words and groups are about a beam search: leave out samples={self.samples}")
        if self.required and self.groups > 1:
            raise ValueError(f"required words and groups={self.groups} do not go together: use one group")

    @property
    def most(self) -> int:
        """So many captions an image can have."""
        return self.samples or self.beam

    def _drawing(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}

    def captions(
        self, model: Captioner, images: Images, ids: Sequence[str], *, returned: int = 1
    ) -> list[list[Caption]]:
        """Per image its captions, the best first.

        Args:
            model: Which writes them.
            images: B of them.
            ids: Theirs; what is drawn at random depends on them and not on the batch.
            returned: Captions per image, at most :attr:`most`.

        Raises:
            UserError: Settings or words that do not fit the model.
        """
        lengths: dict[str, Any] = {"max_length": self.max_length, "min_length": self.min_length}
        lengths["no_repeat"] = self.no_repeat
        if self.samples:
            drawn = self._draws(ids)
            found = model.sample(images, self.samples, draws=drawn, **lengths, **self._drawing())
            found = [each[:returned] for each in found]
        else:
            given: dict[str, Any] = {"diversity": self.diversity} if self.groups > 1 else {}
            given |= {"finish": self.finish} if self.finish != "beam" else {}
            given |= {"required": [self.required] * len(ids)} if self.required else {}
            ranked = {"returned": returned, "groups": self.groups, "length_penalty": self.length_penalty}
            found = model.generate(images, self.beam, **lengths, **ranked, **given)
        return [[self._merged(caption) for caption in each] for each in found] if self.merge_repeats else found

    def _draws(self, ids: Sequence[str]) -> Tensor:
        """Numbers in [0, 1), (B, samples, max_length)."""
        drawn = []
        for id in ids:
            digest = hashlib.sha256(f"{self.seed}:{id}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            drawn.append(torch.rand(self.samples, self.max_length, generator=generator, dtype=torch.float64))
        return torch.stack(drawn)

    def _merged(self, caption: Caption) -> Caption:
        return replace(caption, text=" ".join(merged(caption.text.split())))
