"""The M² Transformer against a slow one, by loops over images, heads and words, under the authors' names of weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import vlplatform
from vlp_captioning.models.m2 import M2Captioner
from vlplatform.cli.main import main
from vlplatform.errors import UserError

DIM, HEADS, SLOTS, HIDDEN, WORDS, WIDTH, LAYERS, LONGEST = 12, 3, 4, 20, 11, 5, 3, 9
PAD, BOS, EOS = 1, 2, 3


def official(decoders: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """A made-up checkpoint of their ``Transformer``, with the buffers that keep the state of decoding."""
    torch.manual_seed(seed)
    made: dict[str, Tensor] = {}

    def linear(name: str, into: int, out: int, bias: bool = True) -> None:
        made[f"{name}.weight"] = torch.randn(out, into, dtype=torch.double) / math.sqrt(into)
        if bias:
            made[f"{name}.bias"] = 0.3 * torch.randn(out, dtype=torch.double)

    def norm(name: str) -> None:
        made[f"{name}.weight"] = 1 + 0.2 * torch.randn(DIM, dtype=torch.double)
        made[f"{name}.bias"] = 0.2 * torch.randn(DIM, dtype=torch.double)

    def attention(name: str) -> None:
        for part in ("fc_q", "fc_k", "fc_v", "fc_o"):
            linear(f"{name}.attention.{part}", DIM, DIM)
        norm(f"{name}.layer_norm")

    def feed_forward(name: str) -> None:
        linear(f"{name}.fc1", DIM, HIDDEN)
        linear(f"{name}.fc2", HIDDEN, DIM)
        norm(f"{name}.layer_norm")

    linear("encoder.fc", WIDTH, DIM)
    norm("encoder.layer_norm")
    for i in range(LAYERS):
        attention(f"encoder.layers.{i}.mhatt")
        for slot in ("m_k", "m_v"):
            made[f"encoder.layers.{i}.mhatt.attention.{slot}"] = torch.randn(1, SLOTS, DIM, dtype=torch.double)
        feed_forward(f"encoder.layers.{i}.pwff")
    made["decoder.word_emb.weight"] = torch.randn(WORDS, DIM, dtype=torch.double)
    made["decoder.pos_emb.weight"] = torch.randn(LONGEST + 1, DIM, dtype=torch.double)
    for i in range(decoders):
        below = f"decoder.layers.{i}"
        attention(f"{below}.self_att")
        attention(f"{below}.enc_att")
        feed_forward(f"{below}.pwff")
        for gate in range(1, LAYERS + 1):
            linear(f"{below}.fc_alpha{gate}", 2 * DIM, DIM)
        made |= {f"{below}.self_att.running_{kind}": torch.zeros(0, DIM) for kind in ("keys", "values")}
    linear("decoder.fc", DIM, WORDS, bias=False)
    made["decoder.running_mask_self_attention"] = torch.zeros((1, 1, 0), dtype=torch.uint8)
    made["decoder.running_seq"] = torch.zeros(1, dtype=torch.long)
    return made


class Slow:
    """One image (N, F) and one caption at a time."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def linear(self, name: str, x: Tensor) -> Tensor:
        out = self.weights[f"{name}.weight"] @ x
        return out + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else out

    def norm(self, name: str, x: Tensor) -> Tensor:
        spread = ((x - x.mean()) ** 2).mean()
        scaled = (x - x.mean()) / torch.sqrt(spread + 1e-5)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attend(self, name: str, query: Tensor, tokens: list[Tensor]) -> Tensor:
        """``LN(q + W_o [heads])``; slots join where there are some."""
        q = self.linear(f"{name}.attention.fc_q", query)
        keys = [self.linear(f"{name}.attention.fc_k", x) for x in tokens]
        values = [self.linear(f"{name}.attention.fc_v", x) for x in tokens]
        width = DIM // HEADS
        if f"{name}.attention.m_k" in self.weights:
            keys += [math.sqrt(width) * slot for slot in self.weights[f"{name}.attention.m_k"][0]]
            values += [math.sqrt(SLOTS) * slot for slot in self.weights[f"{name}.attention.m_v"][0]]
        heads = []
        for h in range(HEADS):
            part = slice(h * width, (h + 1) * width)
            raised = [math.exp(float(q[part] @ key[part]) / math.sqrt(width)) for key in keys]
            heads.append(sum(r / sum(raised) * value[part] for r, value in zip(raised, values)))
        out = self.linear(f"{name}.attention.fc_o", torch.cat([torch.as_tensor(head) for head in heads]))
        return self.norm(f"{name}.layer_norm", query + out)

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        hidden = self.linear(f"{name}.fc1", x).clamp_min(0)
        return self.norm(f"{name}.layer_norm", x + self.linear(f"{name}.fc2", hidden))

    def encode(self, features: Tensor) -> list[list[Tensor]]:
        """The outputs of every layer."""
        x = [self.norm("encoder.layer_norm", self.linear("encoder.fc", row).clamp_min(0)) for row in features]
        every = []
        for i in range(LAYERS):
            x = [self.attend(f"encoder.layers.{i}.mhatt", token, x) for token in x]
            x = [self.feed_forward(f"encoder.layers.{i}.pwff", token) for token in x]
            every.append(x)
        return every

    def log_probs(self, features: Tensor, caption: list[int]) -> Tensor:
        """(T, V) for begin symbol and words."""
        memory = self.encode(features)
        words, places = self.weights["decoder.word_emb.weight"], self.weights["decoder.pos_emb.weight"]
        x = [words[word] + places[t + 1] for t, word in enumerate(caption)]
        for i in range(1 + max(int(n.split(".")[2]) for n in self.weights if n.startswith("decoder.layers."))):
            below = f"decoder.layers.{i}"
            said = [self.attend(f"{below}.self_att", token, x[: t + 1]) for t, token in enumerate(x)]
            x = [self.meshed(below, token, memory) for token in said]
        return torch.stack([self.linear("decoder.fc", token).log_softmax(0) for token in x])

    def meshed(self, below: str, said: Tensor, memory: list[list[Tensor]]) -> Tensor:
        total = torch.zeros(DIM, dtype=torch.double)
        for k, tokens in enumerate(memory):
            found = self.attend(f"{below}.enc_att", said, tokens)
            gate = torch.sigmoid(self.linear(f"{below}.fc_alpha{k + 1}", torch.cat((said, found))))
            total = total + gate * found
        return self.feed_forward(f"{below}.pwff", total / math.sqrt(len(memory)))


def convert(weights: dict[str, Tensor], folder: Path, *words: str) -> Any:
    save_file(weights, folder / "official.safetensors")
    given = ["convert", "m2", str(folder / "official.safetensors"), str(folder / "ours"), f"heads={HEADS}", *words]
    assert main(given) == 0
    return vlplatform.load(folder / "ours")


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return official()


@pytest.fixture(scope="module")
def model(weights: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> M2Captioner:
    loaded = convert(weights, tmp_path_factory.mktemp("m2"))
    assert isinstance(loaded, M2Captioner)
    return loaded


@torch.no_grad()
def test_log_probs_are_those_of_the_slow_one(model: M2Captioner, weights: dict[str, Tensor]) -> None:
    torch.manual_seed(1)
    slow, features = Slow(weights), torch.randn(2, 4, WIDTH, dtype=torch.double)
    features[1, 3] = 0  # padding
    captions = [[BOS, 5, 4, 9, 10, 7], [BOS, 8, 8, EOS, PAD, PAD]]
    found = model.log_probs(features, torch.tensor(captions))
    assert found.dtype == torch.double
    torch.testing.assert_close(found[0], slow.log_probs(features[0], captions[0]), atol=1e-10, rtol=0)
    expected = slow.log_probs(features[1, :3], captions[1][:4])
    torch.testing.assert_close(found[1, :4], expected, atol=1e-10, rtol=0)
    uniform = torch.full((2, WORDS), -math.log(WORDS), dtype=torch.double)
    torch.testing.assert_close(found[1, 4:], uniform)  # hidden states of padding are zeros


@torch.no_grad()
def test_greedy_captions_are_those_of_the_slow_one(model: M2Captioner, weights: dict[str, Tensor]) -> None:
    torch.manual_seed(2)
    slow, features = Slow(weights), torch.randn(3, 4, WIDTH, dtype=torch.double)
    for each, of_image in zip(model.generate(features, beam=1, max_length=6), features):
        caption = [BOS]
        while len(caption) < 7 and caption[-1] != EOS:
            caption.append(int(slow.log_probs(of_image, caption)[-1].argmax()))
        assert each[0].tokens == caption[1:]


def test_what_the_weights_tell(model: M2Captioner) -> None:
    settings = model.model_settings
    assert (settings.dim, settings.hidden, settings.slots, settings.max_length) == (DIM, HIDDEN, SLOTS, LONGEST - 1)
    assert (settings.encoder_layers, settings.decoder_layers) == (LAYERS, 2)
    assert model.shape.forbidden == ()
    assert (model.vocabulary.pad, model.vocabulary.bos, model.vocabulary.eos, model.vocabulary.unk) == (1, 2, 3, 0)
    assert model.vocabulary.words[4] == "word4"


def test_more_layers_than_ten(tmp_path: Path) -> None:
    loaded = convert(official(decoders=11), tmp_path)
    assert loaded.model_settings.decoder_layers == 11


def test_a_vocabulary_of_ones_own(weights: dict[str, Tensor], tmp_path: Path) -> None:
    words = ["<unk>", "<pad>", "<bos>", "<eos>", *"abcdefg"]
    (tmp_path / "words.json").write_text(json.dumps({"itos": words}))
    assert convert(weights, tmp_path, f"vocabulary={tmp_path / 'words.json'}").vocabulary.words == tuple(words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("encoder.layers.0.mhatt.attention.m_k"), "has no encoder.layers.0.mhatt.attention.m_k"),
        (lambda w: w.pop("decoder.layers.1.fc_alpha2.bias"), "lacks layers.1.gates.1.bias"),
        (lambda w: w.update(extra=torch.ones(1)), "has beyond the model extra"),
        (lambda w: w.update({"decoder.fc.weight": torch.ones(3, DIM)}), r"output.weight \(3, 12\), expected \(11, 12"),
    ],
)
def test_weights_of_something_else_are_refused(change: Any, words: str, tmp_path: Path) -> None:
    from vlp_captioning.convert import M2ConvertSettings, m2
    from vlplatform.hub.importer import Checkpoint

    other = official()
    change(other)
    with pytest.raises(UserError, match=words):
        m2(Checkpoint(other), M2ConvertSettings(heads=HEADS))


def test_heads_must_split_the_width(weights: dict[str, Tensor], capsys: Any, tmp_path: Path) -> None:
    save_file(weights, tmp_path / "official.safetensors")
    given = ["convert", "m2", str(tmp_path / "official.safetensors"), str(tmp_path / "ours"), "heads=5"]
    assert main(given) != 0
    assert "dim=12 is not divisible by heads=5" in capsys.readouterr().err


@pytest.mark.shared
@pytest.mark.parametrize(("case", "source"), [("mdsan_full", "mdsanet")])
def test_state_of_decoding_in_md_san_s_checkpoints_is_no_weight(
    shared: Path, case: str, source: str, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    tensors = load_file(shared / f"reference/golden/{case}.safetensors")
    own = {name[2:]: tensor for name, tensor in tensors.items() if name.startswith("w.")}
    own["decoder.layers.0.self_att.running_keys"] = torch.zeros(0, 32)
    own["decoder.running_seq"] = torch.zeros(1, dtype=torch.long)
    save_file(own, tmp_path / "official.safetensors")
    assert main(["convert", source, str(tmp_path / "official.safetensors"), str(tmp_path / "ours")]) == 0
