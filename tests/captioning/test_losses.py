"""Policy gradient and self-critical training against the authors' numbers and the definitions, gradients included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from reference import cider as slow_cider
from safetensors.torch import load_file
from tiny_models import VOCABULARY, images, make
from torch import Tensor

from vlp_captioning.loss import advantages, policy_gradient
from vlp_captioning.models import Captioner
from vlp_captioning.self_critical import SelfCritical, SelfCriticalSettings
from vlplatform.errors import UserError
from vlplatform.losses import real_words
from vlplatform.settings import parse

EOS = VOCABULARY.eos


# Policy gradient.


@pytest.mark.shared
def test_policy_gradient_of_the_xlinear_code(shared: Path) -> None:
    case = load_file(shared / "reference/golden/xlinear_losses.safetensors")
    sequences, log_probs = case["rl.seq"], case["rl.logp"].requires_grad_()
    lengths = torch.tensor([([*row, 0].index(0) + 1) for row in sequences.tolist()]).clamp_max(sequences.shape[1])
    real = real_words(lengths, sequences.shape[1])
    loss = policy_gradient(log_probs, real, case["rl.reward"])
    assert (loss / lengths.sum()).item() == pytest.approx(case["rl.loss"].item(), abs=1e-9)
    (grad,) = torch.autograd.grad(loss, log_probs)
    torch.testing.assert_close(grad, real * -case["rl.reward"][:, None])


def test_what_is_not_real_has_no_part() -> None:
    log_probs = torch.tensor([[-1.0, -2.0, -torch.inf]], requires_grad=True)
    loss = policy_gradient(log_probs, torch.tensor([[True, True, False]]), torch.tensor([2.0], dtype=torch.double))
    loss.backward()
    assert loss.item() == 6
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[-2, -2, 0]]


def test_advantages() -> None:
    rewards = torch.tensor([1.0, 2.0, 6.0, 0.0, 0.0, 3.0])
    assert advantages(rewards, 3).tolist() == [-2, -1, 3, -1, -1, 2]
    assert advantages(rewards, 3, torch.tensor([1.0, 2.0])).tolist() == [0, 1, 5, -2, -2, 1]
    assert advantages(rewards, 1, rewards).abs().sum() == 0


# Self-critical training.

REFERENCES = [
    [[5, 6, 7], [5, 6, 8, 9], [4, 5, 6]],
    [[8, 9, 10, 11]],
    [[4, 4, 12], [13, 12, 5]],
    [[7, 7, 7, 7, 7]],
]
NO_DROPOUT = {
    "transformer": {"dropout": 0.0, "feature_dropout": 0.0},
    "xlan": dict.fromkeys(
        ("dropout", "feature_dropout", "word_dropout", "encoder_dropout", "update_dropout", "decoder_dropout"), 0.0
    )
    | {"output_dropout": 0.0},
}
CHOSEN = [3, 0]  # of the training images


def batch() -> dict[str, Any]:
    seen = images(2, real=(7, 4))
    return {key: seen[key] for key in ("features", "mask", "boxes", "size")} | {
        "ids": ["d", "a"],
        "index": torch.tensor(CHOSEN),
        "attributes": [[], []],
    }


def loss_of(settings: dict[str, Any]) -> SelfCritical:
    return SelfCritical(parse(SelfCriticalSettings, settings, "task.self_critical"), REFERENCES, VOCABULARY)


def reward(image: int, caption: list[int], *, ended: bool, single: bool = False) -> float:
    """CIDEr-D by the formulas."""
    end = [EOS] if ended else []
    references = [[[*words, *end] for words in each] for each in REFERENCES]
    told = caption if ended else [word for word in caption if word != EOS]
    documents = [[words] for each in references for words in each] if single else references
    return slow_cider.score(told, references[image], slow_cider.frequencies(documents), len(documents))


def by_definition(model: Captioner, samples: list[list[list[int]]], advantage: list[list[float]]) -> Tensor:
    """−Σ A Σ_t log p, caption by caption and word by word."""
    seen = images(2, real=(7, 4))
    total = torch.zeros((), dtype=torch.double)
    for i, (of_image, of_sample) in enumerate(zip(samples, advantage)):
        regions = {key: seen[key][i : i + 1] for key in ("features", "mask", "boxes", "size")}
        for caption, a in zip(of_image, of_sample):
            memory = model.encode(model.checked(regions))
            state, previous = model.start(memory), VOCABULARY.bos
            for word in caption:
                total = total - a * model.step(torch.tensor([previous]), state)[0, word]
                previous = word
    return total


def check_gradients(model: Captioner, total: Tensor, expected: Tensor) -> None:
    assert total.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    parameters = list(model.parameters())
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    wanted = torch.autograd.grad(expected, parameters, allow_unused=True)
    for a, b in zip(found, wanted):  # logits are in single precision
        if b is None or a is None:
            assert a is None or not a.any()
            continue
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("divisor", ["words", "captions"])
@pytest.mark.parametrize("kind", ["transformer", "xlan"])
def test_beam_samples_against_their_mean(kind: str, divisor: str) -> None:
    model = make(kind, **NO_DROPOUT[kind]).train()
    loss = loss_of({"samples": 3, "max_length": 6, "divisor": divisor})(model, batch())
    assert model.training
    model.eval()
    found = model.generate(images(2, real=(7, 4)), beam=3, returned=3, max_length=6)
    samples = [[caption.tokens for caption in each] for each in found]
    rewards = [[reward(image, words, ended=True) for words in each] for image, each in zip(CHOSEN, samples)]
    advantage = [[r - sum(each) / 3 for r in each] for each in rewards]
    assert any(abs(a) > 0.01 for each in advantage for a in each)
    check_gradients(model, loss.total, by_definition(model, samples, advantage))
    words = sum(len(caption) for each in samples for caption in each)
    assert int(loss.count) == (words if divisor == "words" else 6)
    mean = sum(map(sum, rewards)) / 6
    assert (loss.parts["reward"] / loss.count).item() == pytest.approx(mean, abs=1e-5)
    size = sum(abs(a) for each in advantage for a in each) / 6
    assert (loss.parts["advantage"] / loss.count).item() == pytest.approx(size, abs=1e-5)


@pytest.mark.parametrize("kind", ["transformer", "xlan"])
def test_drawn_samples_against_the_greedy_caption(kind: str) -> None:
    model = make(kind, **NO_DROPOUT[kind])
    settings = {"samples": 4, "sampling": "multinomial", "baseline": "greedy", "max_length": 6}
    seen, given = images(2, real=(7, 4)), batch()
    torch.manual_seed(5)
    loss = loss_of(settings | {"count_end": False, "documents": "caption"})(model.train(), given)
    model.eval()
    torch.manual_seed(5)
    drawn = model.sample(seen, 4, max_length=6)  # the likeliest first, which changes no sum
    samples = [[caption.tokens for caption in each] for each in drawn]
    greedy = [each[0].tokens for each in model.generate(seen, beam=1, max_length=6)]
    base = [reward(i, words, ended=False, single=True) for i, words in zip(CHOSEN, greedy)]
    advantage = [
        [reward(i, words, ended=False, single=True) - b for words in each] for i, b, each in zip(CHOSEN, base, samples)
    ]
    assert any(abs(a) > 0.01 for each in advantage for a in each)
    check_gradients(model, loss.total, by_definition(model, samples, advantage))


def test_rewards_are_of_the_batch_s_images() -> None:
    """A model that says an image's caption gets that image's reward: index, not place in the batch, counts."""
    seen: list[tuple[list[int], list[list[int]]]] = []
    loss = loss_of({"samples": 2, "max_length": 4, "baseline": "greedy"})
    plain = loss.reward

    def told(of_image: Any, captions: Any) -> Tensor:
        seen.append((list(of_image), [list(caption) for caption in captions]))
        return plain(of_image, captions)

    loss.reward = told
    loss(make("transformer").train(), batch())
    assert [of_image for of_image, _ in seen] == [[3, 3, 0, 0], [3, 0]]
    assert all(EOS not in caption[:-1] for _, captions in seen for caption in captions)


def test_sampling_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("transformer", dropout=0.3).train()
    modes: list[bool] = []
    plain = model.step
    monkeypatch.setattr(model, "step", lambda *given: (modes.append(model.training), plain(*given))[1])
    for dropout in (False, True):
        modes.clear()
        loss = loss_of({"samples": 2, "max_length": 4, "dropout": dropout, "baseline": "greedy"})(model, batch())
        assert model.training
        assert loss.total.requires_grad
        assert set(modes) == ({True, False} if dropout else {False})  # the baseline is without dropout in any case
    loss_of({"samples": 2, "max_length": 4, "dropout": True})(model.eval(), batch())
    assert not model.training


@torch.no_grad()
def test_updates_raise_the_reward() -> None:
    """A few steps on one batch with plain gradient ascent: better samples become likelier."""
    model = make("transformer", **NO_DROPOUT["transformer"]).train()
    loss = loss_of({"samples": 8, "sampling": "multinomial", "max_length": 5})
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    rewards = []
    given = batch()
    torch.manual_seed(0)
    for _ in range(25):
        with torch.enable_grad():
            found = loss(model, given)
            optimiser.zero_grad()
            (found.total / found.count).backward()
        optimiser.step()
        rewards.append((found.parts["reward"] / found.count).item())
    assert sum(rewards[-5:]) > 2 * sum(rewards[:5]) + 0.1, rewards


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"samples": 0}, "samples=0"),
        ({"samples": 1}, "take 2 or baseline=greedy"),
        ({"max_length": 0}, "max_length=0"),
        ({"sampling": "beams"}, "sampling"),
        ({"reward": {"cider": 1.0}}, "is no reward: did you mean 'cider_d'"),
        ({"reward": {}}, "no reward"),
        ({"documents": "word"}, "documents"),
    ],
)
def test_faulty_settings_are_told(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        loss_of(settings)
