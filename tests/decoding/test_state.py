"""States of real decoders: what is expanded and shared equals what is repeated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vlplatform.attention.cache import Cache
from vlplatform.attention.multi_head import MultiHeadAttention
from vlplatform.attention.xlinear import XLinear
from vlplatform.decoding import BeamSettings, DecoderState, Symbols, beam_search
from vlplatform.layers import Decoder

WORDS, WIDTH, SYMBOLS, EOS = 12, 16, Symbols(0, 1, 2), 2
PAIRS = [
    ("sa", "sa"),
    ("sa", {"name": "nsa", "norm": "layer"}),
    ("xlinear", "xlinear"),
    ("dynamic_conv", "sa"),
    ("acf1d", "sa"),
    ({"name": "msa", "of": "sa"}, {"name": "msa", "of": "sa"}),
    ("sa", "eta"),
]


class Words(nn.Module):
    """Embedding, decoder, output; with a state that shares the memory, or one that repeats it per row."""

    def __init__(self, attn: object, cross: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fusion = cross == "eta"
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.decoder = Decoder(WIDTH, 2, attn=attn, cross=cross, heads=2, fusion=self.fusion)
        self.output = nn.Linear(WIDTH, WORDS)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5)
        self.double().eval()

    def look(self, x: Tensor, memory: dict[str, Tensor], cache: Cache | None) -> Tensor:
        if self.fusion:
            tensors, masks = (memory["regions"], memory["other"]), (memory["mask"], None)
            out = self.decoder(x, tensors, memory_mask=masks, cache=cache)
        else:
            out = self.decoder(x, memory["regions"], memory_mask=memory["mask"], cache=cache)
        logits = self.output(out)
        logits[:, :, EOS] += memory["ends"].repeat_interleave(len(x) // len(memory["ends"]))[:, None]
        return logits.log_softmax(-1)

    def start(self, memory: dict[str, Tensor]) -> DecoderState:
        return DecoderState(len(memory["regions"]), memory=memory)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        state.position += 1
        return self.look(self.embed(tokens)[:, None], state.memory, state.cache)[:, -1]


class Repeated:
    """All that has been said and the memory of every row: no cache, nothing shared."""

    def __init__(self, memory: dict[str, Tensor]) -> None:
        self.memory, self.said = memory, torch.zeros(len(memory["regions"]), 0).long()

    def expand(self, times: int) -> None:
        self.memory = {name: tensor.repeat_interleave(times, 0) for name, tensor in self.memory.items()}
        self.said = self.said.repeat_interleave(times, 0)

    def reorder(self, index: Tensor) -> None:
        self.memory = {name: tensor[index] for name, tensor in self.memory.items()}
        self.said = self.said[index]


def memory_of(items: int) -> dict[str, Tensor]:
    torch.manual_seed(1)
    mask = torch.rand(items, 5) < 0.7
    mask[:, 0] = True
    return {
        "regions": torch.randn(items, 5, WIDTH).double(),
        "other": torch.randn(items, 3, WIDTH).double(),
        "mask": mask,
        "ends": torch.arange(items).double() * 4 - 8,  # some sentences end soon
    }


@pytest.mark.parametrize("finish", ["beam", "aside"])
@pytest.mark.parametrize(("attn", "cross"), PAIRS)
def test_a_shared_memory_equals_a_repeated_one(attn, cross, finish):
    model, memory = Words(attn, cross), memory_of(5)
    settings = BeamSettings(beam=3, max_length=8, finish=finish, returned=2)

    def slow(tokens: Tensor, state: Repeated) -> Tensor:
        state.said = torch.cat((state.said, tokens[:, None]), 1)
        return model.look(model.embed(state.said), state.memory, None)[:, -1]

    with torch.no_grad():
        state = model.start(memory)
        found = beam_search(model.step, state, 5, settings, SYMBOLS)
        expected = beam_search(slow, Repeated(memory), 5, settings, SYMBOLS)
    assert torch.equal(found.tokens, expected.tokens)
    torch.testing.assert_close(found.log_probs, expected.log_probs, rtol=1e-9, atol=1e-9)
    assert 0 < state.items < 5  # some left
    assert state.share == 3
    caches = [state.cache]
    while caches:
        cache = caches.pop()
        caches += cache.children.values()
        if cache.tensors:
            rows = {len(tensor) for tensor in cache.tensors.values()}
            assert rows == {state.items if cache.memory else state.items * 3}


@pytest.mark.parametrize("module", [MultiHeadAttention(8, heads=2), XLinear(8, heads=2)])
def test_a_memory_is_marked_when_one_query_has_each_item(module):
    query, memory, own, other = torch.randn(2, 1, 8), torch.randn(2, 4, 8), Cache(), Cache()
    module(query, causal=True, cache=own)
    module(query, memory, cache=other)
    assert not own.memory
    assert other.memory
    assert other.copy().memory
    kept = other.tensors["key"]
    own.expand(3)
    other.expand(3)
    assert len(own.tensors["key"]) == 6
    assert other.tensors["key"] is kept
    assert other.share == 3
    other.reorder(torch.tensor([2, 0, 0, 3, 3, 4]), same_memory=True)
    assert other.tensors["key"] is kept
    other.reorder(torch.tensor([3, 5, 4]))
    assert torch.equal(other.tensors["key"], kept[1:])


def test_an_lstms_tensors_follow_the_hypotheses():
    h, regions = torch.arange(3.0)[:, None], torch.arange(3.0)[:, None] * 10
    state = DecoderState(3, rows={"h": h}, memory={"regions": regions})
    state.expand(2)
    assert state.rows["h"][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    state.reorder(torch.tensor([1, 0, 4, 4]))  # the second item leaves
    assert state.rows["h"][:, 0].tolist() == [0, 0, 2, 2]
    assert state.memory["regions"][:, 0].tolist() == [0, 20]
    assert state.items == 2
    state.reorder(torch.tensor([2, 3]))
    assert state.memory["regions"][:, 0].tolist() == [20]
    with pytest.raises(ValueError, match="3 rows are not 2 for each of at most 1 items"):
        state.reorder(torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match=r"rows\['h'\] has shape \(3, 1\); expected 2"):
        DecoderState(2, rows={"h": h})
