"""Unknown words replaced by the source words that the model looked at when it wrote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vlp_translation.models.memory import Memory
from vlplatform.decoding import Hypothesis
from vlplatform.interpret.capture import capture

if TYPE_CHECKING:
    from vlp_translation.models.source import Source
    from vlp_translation.models.transformer import Translator


def known(
    models: Sequence[Translator],
    source: Sequence[Source],
    memories: Sequence[Memory],
    found: Sequence[Sequence[Hypothesis]],
    dictionary: Mapping[str, str],
) -> list[list[list[str]]]:
    """The words of all hypotheses, unknown ones replaced (Jean et al., ACL 2015, §3.3; Luong et al., ACL 2015).

    In the place of an unknown token stands the source word with the greatest weight in the last layer's attention to
    the source, a mean over heads and models, from one pass over the whole translation; the end symbol is no word. A
    word split into pieces counts as the piece with the greatest weight.

    Args:
        models: The model, or the members of an ensemble.
        source: What each read.
        memories: What each made of it.
        found: Hypotheses of each sentence.
        dictionary: Source word → target word; a word that is not in it is copied.
    """
    target = models[0].texts.target
    unk = target.vocabulary.unk
    places = [(i, j) for i, item in enumerate(found) for j, each in enumerate(item) if unk in each.tokens]
    copied: dict[tuple[int, int], list[str]] = {}
    if places:
        hypotheses = [found[i][j].tokens for i, j in places]
        # where numbers were given, or texts read alike, tokens of all models are the same; else the first model's count
        alike = [k for k, each in enumerate(source) if torch.equal(each.numbers, source[0].numbers)]
        looked = torch.stack([_weights(models[k], memories[k], [i for i, _ in places], hypotheses) for k in alike])
        for row, (place, weights) in enumerate(zip(places, looked.mean(0))):
            words, belongs = source[0].words(place[0], models[0])
            real = weights[:, source[0].mask[place[0]].cpu()][:, : len(belongs)]
            copied[place] = [
                dictionary.get(words[belongs[k]], words[belongs[k]]) if words else target.vocabulary.words[number]
                for number, k in zip(hypotheses[row], real.argmax(1).tolist() if words else [0] * len(real))
            ]
    return [
        [
            _replaced(models[0], each.tokens, copied[i, j]) if (i, j) in copied else target.decode(each.tokens)
            for j, each in enumerate(item)
        ]
        for i, item in enumerate(found)
    ]


def _replaced(model: Translator, tokens: list[int], instead: list[str]) -> list[str]:
    """The words of tokens, with the given ones at the unknown tokens' places."""
    target = model.texts.target
    words: list[str] = []
    begun = 0
    for place, number in enumerate(tokens):
        if number == target.vocabulary.unk:
            words += [*target.decode(tokens[begun:place]), instead[place]]
            begun = place + 1
    return words + target.decode(tokens[begun:])


def _weights(model: Translator, memory: Memory, items: Sequence[int], tokens: Sequence[list[int]]) -> Tensor:
    """The last layer's attention to the source (R, T, S), a mean over heads, while R translations are written."""
    vocabulary = model.texts.target.vocabulary
    read = torch.full((len(tokens), max(map(len, tokens))), vocabulary.pad)
    for i, row in enumerate(tokens):
        read[i, : len(row)] = torch.tensor([vocabulary.eos, *row[:-1]])
    with capture(model.decoder) as captured:
        model.decode(memory.rows(torch.tensor(items, device=model.device)), read.to(model.device))
    return captured.weights(f"layers.{len(model.decoder.layers) - 1}.cross").mean(1)
