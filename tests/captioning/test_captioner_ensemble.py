"""Ensembles of captioners of different kinds."""

from __future__ import annotations

import pytest
import torch

from vlp_captioning.models import Shape
from vlp_captioning.models.ensemble import EnsembleCaptioner, generate
from vlp_captioning.models.transformer import TransformerCaptioner, TransformerSettings
from vlp_captioning.models.updown import UpDownCaptioner, UpDownSettings
from vlplatform.errors import UserError
from vlplatform.text import Vocabulary

WORDS = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", *(f"w{i}" for i in range(12))))


def members() -> list[TransformerCaptioner | UpDownCaptioner]:
    torch.manual_seed(0)
    small = TransformerSettings(dim=16, heads=2, hidden=16, encoder_layers=1, decoder_layers=1)
    first = TransformerCaptioner(WORDS, Shape(6), {"name": "sa"}, small)
    second = UpDownCaptioner(WORDS, Shape(6), {"name": "additive"}, UpDownSettings(dim=16, attention_dim=8))
    return [first.double().eval(), second.double().eval()]


def test_greedy_follows_the_mean_of_the_probabilities() -> None:
    models, features = members(), torch.randn(3, 5, 6, dtype=torch.float64)
    found = generate(models, [features], beam=1, max_length=6)
    for image, captions in enumerate(found):
        tokens = torch.tensor([[WORDS.bos, *captions[0].tokens]])
        alone = [model.log_probs(features[image : image + 1], tokens[:, :-1]).exp() for model in models]
        mean = torch.stack(alone).mean(0)[0]
        mean[:, [0, 1, 3]] = 0  # special symbols are never chosen
        assert mean.argmax(-1).tolist() == captions[0].tokens


def test_one_member_is_the_model_itself() -> None:
    model, features = members()[0], torch.randn(2, 5, 6, dtype=torch.float64)
    alone = model.generate(features, beam=3, max_length=6)
    together = generate([model], [features], beam=3, max_length=6)
    assert [c[0].tokens for c in together] == [c[0].tokens for c in alone]


def test_what_does_not_fit() -> None:
    models, features = members(), torch.randn(2, 5, 6, dtype=torch.float64)
    with pytest.raises(UserError, match="3 batches of images came for 2 models"):
        generate(models, [features] * 3)
    with pytest.raises(UserError, match=r"the members see \[2, 1\] images"):
        generate(models, [features, features[:1]])
    models[1].vocabulary = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", "other"))
    with pytest.raises(UserError, match="model 2 of the ensemble has other words"):
        generate(models, [features])


def test_an_ensemble_is_a_captioner() -> None:
    models, features = members(), torch.randn(3, 5, 6, dtype=torch.float64)
    ensemble = EnsembleCaptioner(models).eval()
    for beam in (1, 3):
        together = ensemble.generate(features, beam=beam, max_length=6)
        apart = generate(models, [features], beam=beam, max_length=6)
        assert [c[0].tokens for c in together] == [c[0].tokens for c in apart]
    tokens = torch.tensor([[WORDS.bos, 5, 6], [WORDS.bos, 7, WORDS.pad]] * 3)
    mean = torch.stack([model.log_probs(features, tokens).exp() for model in models]).mean(0)
    torch.testing.assert_close(ensemble.log_probs(features, tokens).exp()[::2], mean[::2])
    assert len(ensemble.sample(features, 2, top_p=0.9, max_length=5)[0]) == 2
    required = ensemble.generate(features, beam=6, required=[["w3"]] * 3, max_length=6)
    assert all("w3" in captions[0].text.split() for captions in required)


def test_members_that_see_something_else() -> None:
    models = members()
    small = TransformerSettings(dim=16, heads=2, hidden=16, encoder_layers=1, decoder_layers=1)
    wide = TransformerCaptioner(WORDS, Shape(7), {"name": "sa"}, small)
    with pytest.raises(UserError, match="model 2 of the ensemble sees features 7 wide, the first features 6 wide"):
        EnsembleCaptioner([models[0], wide])
    grids = [
        TransformerCaptioner(WORDS, Shape(6, extractor={"backbone": "resnet18", "grid": grid}), {"name": "sa"}, small)
        for grid in (7, 7, 3)
    ]
    EnsembleCaptioner([*grids[:2], models[0]])
    with pytest.raises(UserError, match=r"model 3 of the ensemble sees features 6 wide, the first features .* other"):
        EnsembleCaptioner(grids)
    with pytest.raises(UserError, match="needs at least one model"):
        EnsembleCaptioner([])
