"""Label-smoothed cross-entropy against the authors' numbers and its definition, gradients included."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from vlplatform import losses
from vlplatform.losses import linear_cross_entropy, real_words, smoothed_cross_entropy


@pytest.mark.shared
def test_losses_of_the_xlinear_code(shared: Path) -> None:
    case = load_file(shared / "reference/golden/xlinear_losses.safetensors")
    real = case["targets"] >= 0
    logits, targets = case["logits"][real], case["targets"][real]
    loss, nll = smoothed_cross_entropy(logits, targets)
    assert (loss / real.sum()).item() == pytest.approx(case["cross_entropy"].item(), abs=1e-9)
    assert nll == loss
    smoothed, nll = smoothed_cross_entropy(logits, targets, 0.1)
    others = logits.shape[1] - 1
    entropy = -0.9 * math.log(0.9) - 0.1 * math.log(0.1 / others)  # theirs is a divergence
    assert (smoothed / real.sum()).item() - entropy == pytest.approx(case["label_smoothing_0.1"].item(), abs=1e-9)
    assert (nll / real.sum()).item() == pytest.approx(case["cross_entropy"].item(), abs=1e-9)


@pytest.mark.shared
@pytest.mark.parametrize("case", ["fairseq_transformer", "fairseq_transformer_prenorm", "fairseq_dynamicconv"])
def test_loss_of_fairseq(shared: Path, case: str) -> None:
    tensors = load_file(shared / f"reference/golden/{case}.safetensors")
    real = tensors["target"] != 1
    loss, nll = smoothed_cross_entropy(tensors["logits"][real], tensors["target"][real], 0.1)
    assert loss.item() == pytest.approx(tensors["loss_ls_0.1_sum"].item(), abs=1e-8)
    assert nll.item() == pytest.approx(tensors["nll_sum"].item(), abs=1e-8)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_smoothing_by_its_definition(smoothing: float) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(5, 7, dtype=torch.double, requires_grad=True), torch.randint(7, (5,))
    wanted = torch.full((5, 7), smoothing / 6, dtype=torch.double)
    wanted[torch.arange(5), targets] = 1 - smoothing
    expected = -(wanted * logits.log_softmax(-1)).sum()
    loss, nll = smoothed_cross_entropy(logits, targets, smoothing)
    torch.testing.assert_close(loss, expected)
    assert not nll.requires_grad
    torch.testing.assert_close(*torch.autograd.grad(loss, logits), *torch.autograd.grad(expected, logits))
    assert torch.autograd.gradcheck(lambda x: smoothed_cross_entropy(x, targets, smoothing)[0], logits)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("room", [1, 14, 1 << 20])
def test_without_holding_the_logits(smoothing: float, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses._LOGITS, "cpu", room)  # 1, 2 and all rows at a time
    torch.manual_seed(0)
    hidden = torch.randn(5, 3, dtype=torch.double, requires_grad=True)
    weight = torch.randn(7, 3, dtype=torch.double, requires_grad=True)
    targets = torch.randint(7, (5,))
    wanted = smoothed_cross_entropy(hidden @ weight.t(), targets, smoothing)
    found = linear_cross_entropy(hidden, weight, targets, smoothing)
    torch.testing.assert_close(found, wanted)
    assert not found[1].requires_grad
    for loss, twin in ((found[0], wanted[0]), (found[0] * 3, wanted[0] * 3)):
        of_found = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
        torch.testing.assert_close(of_found, torch.autograd.grad(twin, (hidden, weight), retain_graph=True))
    assert torch.autograd.gradcheck(lambda x, w: linear_cross_entropy(x, w, targets, smoothing)[0], (hidden, weight))
    with torch.no_grad():
        assert not linear_cross_entropy(hidden, weight, targets, smoothing)[0].requires_grad
    of_weight = torch.autograd.grad(linear_cross_entropy(hidden.detach(), weight, targets, smoothing)[0], weight)
    torch.testing.assert_close(of_weight, torch.autograd.grad(wanted[0], (weight,)))


def test_large_logits_do_not_overflow() -> None:
    hidden, weight = torch.tensor([[300.0], [-300.0]], requires_grad=True), torch.tensor([[1.0], [-1.0], [0.0]])
    loss, _ = linear_cross_entropy(hidden, weight, torch.tensor([0, 0]), 0.1)
    wanted, _ = smoothed_cross_entropy(hidden @ weight.t(), torch.tensor([0, 0]), 0.1)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(*torch.autograd.grad(loss, hidden), *torch.autograd.grad(wanted, hidden))


def test_under_autocast() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(9, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    targets = torch.randint(11, (9,))
    with torch.autocast("cpu", torch.bfloat16):
        loss, nll = linear_cross_entropy(hidden, weight, targets, 0.1)
    wanted, _ = smoothed_cross_entropy(hidden @ weight.t(), targets, 0.1)
    assert loss.dtype == nll.dtype == torch.float32
    torch.testing.assert_close(loss, wanted, rtol=1e-2, atol=0)
    for found, exact in zip(torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(wanted, (hidden, weight))):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, exact, rtol=0, atol=3e-2)


def test_no_words_no_loss() -> None:
    loss, nll = smoothed_cross_entropy(torch.zeros(0, 7, requires_grad=True), torch.zeros(0, dtype=torch.long), 0.1)
    assert loss.item() == nll.item() == 0
    hidden, weight = torch.zeros(0, 3, requires_grad=True), torch.zeros(7, 3, requires_grad=True)
    loss, nll = linear_cross_entropy(hidden, weight, torch.zeros(0, dtype=torch.long), 0.1)
    assert loss.item() == nll.item() == 0
    loss.backward()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_real_words() -> None:
    assert real_words(torch.tensor([0, 2, 3]), 3).tolist() == [[False] * 3, [True, True, False], [True] * 3]


def test_padding_is_left_out() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 4, 6), torch.tensor([[3, 2, 0, 0], [5, 4, 3, 2]])
    real = real_words(torch.tensor([2, 4]), 4)
    loss, _ = smoothed_cross_entropy(logits[real], targets[real])
    expected = F.cross_entropy(logits[0, :2], targets[0, :2], reduction="sum")
    expected += F.cross_entropy(logits[1], targets[1], reduction="sum")
    torch.testing.assert_close(loss, expected)
