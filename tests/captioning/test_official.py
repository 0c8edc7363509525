"""The authors' captioners through ``vlp convert`` and ``vlplatform.load``: logits, greedy and beam search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import vlplatform
from vlplatform.cli.main import main

pytestmark = pytest.mark.shared


def converted(shared: Path, case: str, source: str, out: Path, *words: str) -> tuple[Any, dict[str, Tensor]]:
    """The model of a golden case after a round trip through files, and the case's tensors."""
    tensors = load_file(shared / "reference" / "golden" / f"{case}.safetensors")
    weights = {name[2:]: tensor for name, tensor in tensors.items() if name.startswith("w.")}
    save_file(weights, out / "official.safetensors")
    assert main(["convert", source, str(out / "official.safetensors"), str(out / "ours"), *words]) == 0
    return vlplatform.load(out / "ours"), tensors


def check(captions: list[Any], tokens: Tensor, log_probs: Tensor | None) -> None:
    """Hypotheses against rows of tokens, which go on behind the end symbol."""
    for caption, row, values in zip(captions, tokens, [None] * len(tokens) if log_probs is None else log_probs):
        count = len(caption.tokens)
        assert caption.tokens == row[:count].tolist()
        if values is not None:
            assert torch.tensor(caption.log_probs, dtype=torch.float64).sub(values[:count]).abs().max() < 1e-9


def test_mdsan(shared: Path, tmp_path: Path) -> None:
    model, case = converted(shared, "mdsan_full", "mdsanet", tmp_path)
    images = {"features": case["images"], "points": case["coords"].double()}
    found = model.log_probs(images, case["seq"])
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, case["logprobs"], atol=1e-9, rtol=0)

    case = load_file(shared / "reference" / "golden" / "mdsan_decode.safetensors")
    images = {"features": case["images"], "points": case["coords"].double()}
    five = model.generate(images, beam=5, max_length=10, returned=5)
    for captions, tokens, values in zip(five, case["beam5.tokens_all"], case["beam5.logp_all"]):
        check(captions, tokens, values)
    three = [captions[0] for captions in model.generate(images, beam=3, max_length=10)]
    check(three, case["beam3.tokens"], case["beam3.logp"])
    check([captions[0] for captions in model.generate(images, beam=1, max_length=10)], case["greedy.tokens"], None)


@pytest.mark.parametrize(
    ("case", "source", "beam"), [("xlan_full", "jdai-xlan", 3), ("xtransformer_full", "jdai-xtransformer", 2)]
)
def test_jdai(shared: Path, tmp_path: Path, case: str, source: str, beam: int) -> None:
    model, tensors = converted(shared, case, source, tmp_path)
    images = {"features": tensors["att_feats"], "mask": tensors["mask"]}
    expected = tensors["logits"].log_softmax(-1)
    torch.testing.assert_close(model.log_probs(images, tensors["seq_in"]), expected, atol=1e-9, rtol=0)
    for name, width in ((f"beam{beam}", beam), ("greedy", 1)):
        found = [captions[0] for captions in model.generate(images, beam=width, max_length=8)]
        check(found, tensors[f"{name}.tokens"], tensors[f"{name}.logp"])
