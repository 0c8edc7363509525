"""Noisy-OR: equal to a product over cells in double precision, finite for any logit, and it learns."""

from __future__ import annotations

import math

import pytest
import torch

from vlp_captioning.attributes import Absence, NoisyOr, detected, frequent_words, labels, noisy_or_loss
from vlplatform.errors import UserError


def test_against_a_loop_over_cells():
    torch.manual_seed(0)
    head, maps = NoisyOr(3, 4).double(), 30 * torch.randn(2, 3, 2, 5).double()
    logits, got = head.cell(maps).detach(), head(maps).detach()
    for b in range(2):
        for k in range(4):
            none = 1.0
            for y in range(2):
                for x in range(5):
                    none *= 1 - 1 / (1 + math.exp(-float(logits[b, k, y, x])))
            assert float(got[b, k]) == pytest.approx(1 - none, rel=1e-9, abs=1e-14)


def test_loss_against_plain_cross_entropy():
    torch.manual_seed(0)
    head, maps = NoisyOr(3, 6, prior=0.3, cells=10).double(), torch.randn(4, 3, 2, 5).double()
    present = torch.rand(4, 6) > 0.5
    loss = noisy_or_loss(head.absence(maps), present)
    expected = torch.nn.functional.binary_cross_entropy(head(maps), present.double(), reduction="sum")
    torch.testing.assert_close(loss.total, expected, rtol=1e-12, atol=0)
    assert loss.count == 4
    torch.testing.assert_close(
        torch.autograd.grad(loss.total, head.cell.weight)[0], torch.autograd.grad(expected, head.cell.weight)[0]
    )


@pytest.mark.parametrize("logit", [-1e4, -200.0, -88.0, -20.0, -15.1, -14.9, -7.0, 0.0, 20.0, 200.0, 1e4])
def test_any_logit_is_finite_and_has_a_gradient(logit):
    head = NoisyOr(1, 2)
    with torch.no_grad():
        head.cell.weight.zero_()
        assert head.cell.bias is not None
        head.cell.bias.fill_(logit)
    for present in (True, False):
        head.zero_grad()
        loss = noisy_or_loss(head.absence(torch.ones(1, 1, 2, 2)), torch.tensor([[present, present]])).total
        loss.backward()
        assert torch.isfinite(loss)
        assert head.cell.bias.grad is not None
        assert torch.isfinite(head.cell.bias.grad).all()
        wrong = (logit < -1) if present else (logit > 1)
        assert not wrong or (head.cell.bias.grad != 0).all()
    if logit <= -20:  # so small that 1 − ∏ is the sum of four exp(logit)
        log = head.absence(torch.ones(1, 1, 2, 2)).log_presence()
        torch.testing.assert_close(log, torch.full((1, 2), logit + math.log(4)), rtol=1e-6, atol=1e-6)


def test_presence_where_the_branches_meet():
    for x in (9.99e-4, 1e-3, 1.001e-3):
        value = torch.tensor(x, dtype=torch.float64)
        got = Absence(-value, value.log()).log_presence()
        assert float(got) == pytest.approx(math.log(-math.expm1(-x)), rel=1e-10)


def test_prior_and_half_precision():
    head = NoisyOr(8, 5, prior=0.02, cells=49)
    torch.nn.init.zeros_(head.cell.weight)
    torch.testing.assert_close(head(torch.randn(2, 8, 7, 7)), torch.full((2, 5), 0.02), rtol=1e-4, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert head(torch.randn(1, 8, 3, 3)).dtype == torch.float32
    with pytest.raises(ValueError, match="have no cells"):
        head(torch.ones(1, 8, 0, 3))
    with pytest.raises(ValueError, match="prior=1 must lie between"):
        NoisyOr(8, prior=1)


def test_it_finds_a_word_in_one_cell():
    torch.manual_seed(0)
    head = NoisyOr(4, 3, cells=9)
    optimizer = torch.optim.Adam(head.parameters(), 0.1)
    present = torch.rand(64, 3) < 0.4
    maps = 0.1 * torch.randn(64, 4, 3, 3)
    for row, column in present.nonzero().tolist():
        maps[row, column, torch.randint(3, ()), torch.randint(3, ())] += 1.0
    for _ in range(200):
        optimizer.zero_grad()
        loss = noisy_or_loss(head.absence(maps), present)
        (loss.total / loss.count).backward()
        optimizer.step()
    assert ((head(maps) > 0.5) == present).all()


def test_words():
    captions = [[["a", "red", "dog"], ["a", "dog"]], [["red"]], []]
    words = frequent_words((c for each in captions for c in each), 3)
    assert words == ("a", "dog", "red")
    assert labels(captions, words[1:]).tolist() == [[True, True], [False, True], [False, False]]
    probabilities = torch.tensor([[0.1, 0.9, 0.5], [0.2, 0.1, 0.3]])
    assert detected(probabilities, words, most=2) == [("dog", "red"), ("red", "a")]
    assert detected(probabilities, words, above=0.4) == [("dog", "red"), ()]
    with pytest.raises(UserError, match="hold no words to detect"):
        frequent_words([])
