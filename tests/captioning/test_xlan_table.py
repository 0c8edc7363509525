"""X-LAN's table 3: no encoder block, conventional attention, ELU; and W_G without a norm, as equation 10 has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, captions, images, make
from torch import Tensor

import vlplatform
from vlp_captioning.models.updown import AdditiveAttention
from vlplatform.attention.xlinear import XLinear

ROWS: dict[str, dict[str, Any]] = {
    "LSTM + conventional": {"encoder_layers": 0, "decoder_attn": "additive", "attention_dim": 5},
    "LSTM + X-Linear": {"encoder_layers": 0},
    "1 block": {"encoder_layers": 1},
    "4 blocks": {"encoder_layers": 4},
    "4 blocks + ELU": {"encoder_layers": 4, "activation": "elu"},
    "4 blocks, conventional": {"encoder_layers": 4, "decoder_attn": "additive"},
    "the paper's text": {"heads": 1, "activation": "relu", "group_norm": False, "separate": True, "whole_norm": False},
}


@torch.no_grad()
@pytest.mark.parametrize("row", ROWS)
def test_rows_step_as_they_train(row: str, tmp_path: Path) -> None:
    """Step by step as in one pass; padding changes nothing; beams and a saved copy give the same."""
    model, tokens = make("xlan", **ROWS[row]), captions(6, 7)
    seen = images(real=(7, 4, 1))
    whole = model.log_probs(seen, tokens)
    memory = model.encode(model.checked(seen))
    state = model.start(memory)
    out = [model.step(tokens[::2, 0], state).repeat_interleave(2, 0)]
    state.expand(2)
    out += [model.step(tokens[:, t], state) for t in range(1, 7)]
    torch.testing.assert_close(torch.stack(out, 1), whole, atol=1e-9, rtol=0)
    odd = {**seen, "features": seen["features"].masked_fill(~seen["mask"][..., None], torch.nan)}
    torch.testing.assert_close(model.log_probs(odd, tokens), whole, atol=1e-12, rtol=0)
    best = model.generate(seen, beam=3, returned=3, max_length=6)
    for i, found in enumerate(best):
        alone = {key: value[i : i + 1] for key, value in seen.items()}
        read = torch.tensor([[VOCABULARY.bos, *found[0].tokens[:-1]]])
        told = model.log_probs(alone, read)[0].gather(1, torch.tensor(found[0].tokens)[:, None])[:, 0]
        assert found[0].log_probs == pytest.approx(told.tolist(), abs=1e-9)
    loaded = vlplatform.load(model.save(tmp_path / "saved"))
    assert isinstance(loaded, type(model))
    assert torch.equal(loaded.log_probs(seen, tokens), whole)


@pytest.mark.parametrize("row", ROWS)
def test_rows_learn(row: str) -> None:
    """Every parameter gets a gradient, but the update of the last keys where keys and values are apart."""
    model, tokens = make("xlan", **ROWS[row]).train(), captions(6, 7)
    hidden = model.decode(model.encode(model.checked(images())), tokens)
    model.vocabulary_logits(hidden).log_softmax(-1)[..., 5].sum().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert [name for name in without if "key_updates" not in name and not name.endswith("spatial.bias")] in (
        [],
        ["attention.weight.bias"],  # softmax does not see what is added to all logits
    )


@torch.no_grad()
def test_no_block() -> None:
    """The features stay as they are, and the whole is ``LN(W_G v̂⁰)``; without the norm ``W_G v̂⁰``."""
    seen = images(real=(7, 4, 1))
    for normed in (True, False):
        model = make("xlan", encoder_layers=0, whole_norm=normed)
        given = model.checked(seen)
        memory = model.encode(given)
        assert given.features is not None
        features = model.features(given.features, given.mask)
        assert torch.equal(memory.tokens[0], features)
        mean = features.sum(1) / seen["mask"].sum(1, keepdim=True)
        weights = dict(model.named_parameters())
        expected = mean @ weights["encoder.joined.weight"].T + weights["encoder.joined.bias"]
        if normed:
            expected = torch.nn.functional.layer_norm(
                expected, (16,), weights["encoder.norm.weight"], weights["encoder.norm.bias"]
            )
        assert ("encoder.norm.weight" in weights) == normed
        assert memory.whole is not None
        torch.testing.assert_close(memory.whole, expected, atol=1e-12, rtol=0)


@torch.no_grad()
def test_conventional_attention() -> None:
    """The first word's context by hand: ``a_i = w · tanh(W_v v_i + W_h h)`` (X-Linear, eq. 1)."""
    model = make("xlan", encoder_layers=1, decoder_attn="additive", attention_dim=5)
    assert isinstance(model.attention, AdditiveAttention)
    assert isinstance(make("xlan").attention, XLinear)
    memory = model.encode(model.checked(images(1)))
    w = dict(model.named_parameters())

    def linear(x: Tensor, name: str) -> Tensor:
        bias = w.get(f"{name}.bias")
        return x @ w[f"{name}.weight"].T + (0 if bias is None else bias)

    assert memory.whole is not None
    word = torch.nn.functional.celu(w["words.weight"][[VOCABULARY.bos]], 1.3)
    zeros = torch.zeros(1, 16).double()
    lstm = torch.nn.LSTMCell(32, 16).double()
    lstm.load_state_dict({name[5:]: value for name, value in w.items() if name.startswith("lstm.")})
    hidden, _ = lstm(torch.cat((word, memory.whole), 1), (zeros, zeros))
    values = memory.tokens[0][0]
    scores = linear(
        torch.tanh(linear(values, "attention.of_features") + linear(hidden, "attention.of_query")), "attention.weight"
    )
    found = (scores.softmax(0) * values).sum(0, keepdim=True)
    attended = torch.nn.functional.layer_norm(
        linear(torch.cat((hidden, found), 1), "attended"), (16,), w["attended_norm.weight"], w["attended_norm.bias"]
    )
    context = torch.nn.functional.glu(linear(torch.cat((attended, hidden), 1), "context"))
    expected = linear(context, "output").log_softmax(-1)
    torch.testing.assert_close(model.log_probs(images(1), captions(1, 1))[:, 0], expected, atol=1e-12, rtol=0)
