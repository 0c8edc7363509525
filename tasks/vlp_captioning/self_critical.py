"""Self-critical sequence training: captions are sampled, rewarded, and made likelier by their advantage.

Rennie et al., "Self-Critical Sequence Training for Image Captioning" (CVPR 2017); beam samples with their mean as the
baseline as in M² and MD-SAN (eq. 13–16), multinomial samples against the greedy caption as in X-LAN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F

from vlp_captioning.loss import advantages, policy_gradient
from vlp_captioning.models import Captioner
from vlp_captioning.records import images_of
from vlplatform.decoding import BeamSettings, Limits, SamplingSettings, Sequences, beam_search, greedy, packed, sample
from vlplatform.errors import nearest
from vlplatform.losses import real_words
from vlplatform.metrics import rewards
from vlplatform.task import Loss
from vlplatform.text import Vocabulary


@dataclass(frozen=True)
class SelfCriticalSettings:
    """How self-critical training samples and rewards.

    Attributes:
        samples: Captions per image.
        sampling: ``beam``: the hypotheses of a beam search (MD-SAN); ``multinomial``: drawn word by word (X-LAN).
        baseline: ``mean`` of an image's samples, or the ``greedy`` caption's reward.
        reward: Rewards by name with their weights; cider_d alone is the published choice.
        documents: What the document frequencies of CIDEr-D count: ``image`` (X-LAN and the metric), or every
            ``caption`` for itself (the codes of M² and MD-SAN).
        count_end: The end symbol takes part in CIDEr-D's n-grams, so that captions which break off score less (X-LAN);
            not so in M² and MD-SAN.
        max_length: Words at most, the end symbol counted.
        dropout: Sample with dropout, as the authors' codes do; else without, which the log-probabilities that learn
            have in any case.
        divisor: The loss is divided by the number of sampled words (X-LAN), or of captions.
    """

    samples: int = 5
    sampling: Literal["beam", "multinomial"] = "beam"
    baseline: Literal["mean", "greedy"] = "mean"
    reward: dict[str, float] = field(default_factory=lambda: {"cider_d": 1.0})
    documents: Literal["image", "caption"] = "image"
    count_end: bool = True
    max_length: int = 20
    dropout: bool = False
    divisor: Literal["words", "captions"] = "words"

    def __post_init__(self) -> None:
        if self.samples < 1 or self.max_length < 1:
            raise ValueError(f"samples={self.samples} and max_length={self.max_length} must be at least 1")
        if self.baseline == "mean" and self.samples < 2:
            raise ValueError(f"samples={self.samples} has a mean that leaves no advantage: take 2 or baseline=greedy")
        if unknown := [name for name in self.reward if name not in rewards.REWARDS]:
            raise ValueError(f"reward has '{unknown[0]}', which is no reward: {nearest(unknown[0], rewards.REWARDS)}")


class SelfCritical:
    """The loss of a batch.

    The samples are decoded without gradients; one parallel pass over all of them then gives the log-probabilities that
    learn, with the image's encoding and its keys and values computed once per image.

    Args:
        settings: Of the stage.
        references: Per training image its captions as numbers, without end symbols.
        vocabulary: Of the model.
    """

    def __init__(
        self,
        settings: SelfCriticalSettings,
        references: Sequence[Sequence[Sequence[int]]],
        vocabulary: Vocabulary,
    ) -> None:
        self.settings, self.vocabulary = settings, vocabulary
        ended = [[[*caption, vocabulary.eos] for caption in captions] for captions in references]
        self.reward = rewards.make(
            settings.reward, ended, end=vocabulary.eos, count_end=settings.count_end, df=settings.documents
        )

    def __call__(self, model: Captioner, batch: Mapping[str, Any]) -> Loss:
        """Loss summed over the sampled words, with the mean reward as a part."""
        s = self.settings
        images = images_of(batch, model)
        index = batch["index"].tolist()
        found, base = self._sampled(model, batch)
        tokens, lengths = found.tokens.flatten(0, 1), found.lengths.flatten()
        width = int(lengths.max())
        tokens = tokens[:, :width]
        sampled = [row[:n] for row, n in zip(tokens.tolist(), lengths.tolist())]
        of_image = [i for i in index for _ in range(s.samples)]
        reward = self.reward(of_image, sampled).to(tokens.device)
        greedy_reward = None
        if base is not None:
            hypotheses = [each[0].tokens for each in base.hypotheses()]
            greedy_reward = self.reward(index, hypotheses).to(tokens.device)
        advantage = advantages(reward, s.samples, greedy_reward)

        read = torch.cat((tokens.new_full((len(tokens), 1), self.vocabulary.bos), tokens[:, :-1]), 1)
        real = real_words(lengths, width)
        hidden = model.decode(model.encode(images), read, lengths)
        logits = model.vocabulary_logits(hidden[real]).float()
        log_probs = -F.cross_entropy(logits, tokens[real], reduction="none")
        spread = log_probs.new_zeros(real.shape).masked_scatter(real, log_probs)
        total = policy_gradient(spread, real, advantage)
        count = lengths.sum() if s.divisor == "words" else torch.tensor(len(tokens), device=tokens.device)
        means = {"reward": reward.mean(), "advantage": advantage.abs().mean()}
        return Loss(total, count, {name: value.float() * count for name, value in means.items()})

    @torch.no_grad()
    def _sampled(self, model: Captioner, batch: Mapping[str, Any]) -> tuple[Sequences, Sequences | None]:
        """The samples of each image, and its greedy caption where that is the baseline."""
        training = model.training
        model.train(self.settings.dropout and training)
        try:
            return self._found(model, batch)
        finally:
            model.train(training)

    def _found(self, model: Captioner, batch: Mapping[str, Any]) -> tuple[Sequences, Sequences | None]:
        s = self.settings
        with packed(model):
            memory = model.encode(images_of(batch, model)).lean()
            limits: dict[str, Any] = {"max_length": s.max_length, "forbid": model.forbidden}
            given: dict[str, Any] = {"device": model.device}
            if s.sampling == "beam":
                chosen = BeamSettings(beam=s.samples, returned=s.samples, **limits)
                found = beam_search(model.step, model.start(memory), len(memory), chosen, model.symbols, **given)
            else:
                drawn = SamplingSettings(samples=s.samples, **limits)
                found = sample(model.step, model.start(memory), len(memory), drawn, model.symbols, **given)
            base = None
            if s.baseline == "greedy":
                if s.dropout:  # the baseline is the model's without it
                    model.eval()
                    memory = model.encode(images_of(batch, model)).lean()
                base = greedy(model.step, model.start(memory), len(memory), Limits(**limits), model.symbols, **given)
            return found, base
