"""Captioning's speed on this machine, as ratios within one run: decoding, training, reward, self-critical step.

Decoding is compared with ``transformers``' ``generate`` on an encoder–decoder of the same size (BART: 3 + 3 layers,
D = 512, feed-forward 2048, 50 image vectors through its encoder, 20 tokens, no early end), with random weights, in
float32.

    python scripts/bench_captioning.py [--only decoding|training|critical] [--repeats 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vlp_captioning.models import Images, Shape
from vlp_captioning.models.transformer import TransformerCaptioner, TransformerSettings
from vlplatform.geometry import Geometry
from vlplatform.losses import real_words, smoothed_cross_entropy
from vlplatform.text import Vocabulary

WORDS, REGIONS, LENGTH, FEATURES = 9487, 50, 20, 2048


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("decoding", "training", "critical"))
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    for name, part in (("decoding", decoding), ("training", training), ("critical", critical)):
        if args.only in (None, name):
            part(args.repeats)


def captioner() -> TransformerCaptioner:
    """The captioner that is measured."""
    vocabulary = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", *(f"w{i}" for i in range(WORDS - 4))))
    settings = TransformerSettings(encoder_layers=3, decoder_layers=3)
    return TransformerCaptioner(vocabulary, Shape(FEATURES), {"name": "sa"}, settings).eval()


def images(count: int) -> Images:
    """Random regions."""
    boxes = torch.rand(count, REGIONS, 4).sort(-1).values
    mask = torch.ones(count, REGIONS, dtype=torch.bool)
    return Images(torch.randn(count, REGIONS, FEATURES), mask, Geometry.from_boxes(boxes))


def decoding(repeats: int) -> None:
    """Captions per second of beam search, against ``generate``; both write LENGTH tokens."""
    from transformers import BartConfig, BartForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    config = BartConfig(
        vocab_size=WORDS,
        d_model=512,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    theirs: Any = BartForConditionalGeneration(config).eval()
    ours = captioner()
    embed = torch.nn.Linear(FEATURES, 512)

    def hf(batch: Images, beam: int) -> Tensor:
        assert batch.features is not None
        with torch.no_grad():
            states = theirs.model.encoder(inputs_embeds=embed(batch.features)).last_hidden_state
            fixed: Any = {"num_beams": beam, "max_new_tokens": LENGTH, "min_new_tokens": LENGTH, "do_sample": False}
            return theirs.generate(encoder_outputs=BaseModelOutput(last_hidden_state=states), **fixed)

    def here(batch: Images, beam: int) -> Any:
        return ours.generate(batch, beam=beam, max_length=LENGTH, min_length=LENGTH - 1)

    print("beam search, captions/s: ours, transformers' generate, ratio (bars: 2 at batch 1, 1.5 at 8, 1.2 at 50)")
    for beam in (3, 5):
        for size in (1, 8, 50):
            batch = images(size)
            mine, other = alternately(repeats, lambda: here(batch, beam), lambda: hf(batch, beam))  # noqa: B023
            print(f"  beam {beam} batch {size:>2}  {size / mine:8.1f} {size / other:8.1f}  {other / mine:5.2f}")


def training(repeats: int) -> None:
    """A step over 10 images × 5 captions against 50 pairs of an image and a caption."""
    model = captioner().train()
    tokens = torch.randint(4, WORDS, (50, LENGTH))
    together, apart = images(10), images(50)

    def step(batch: Images) -> None:
        model.zero_grad(set_to_none=True)
        loss = cross_entropy(model, batch, tokens)
        loss.backward()

    mine, other = alternately(repeats, lambda: step(together), lambda: step(apart))
    rates = f"10 images x 5 {50 / mine:.1f}, 50 pairs {50 / other:.1f}"
    print(f"training, captions/s: {rates}, ratio {other / mine:.2f} (bar 2)")


def critical(repeats: int) -> None:
    """A self-critical step of 10 images × 5 samples against a cross-entropy step over 50 captions as long."""
    from vlp_captioning.self_critical import SelfCritical, SelfCriticalSettings

    model = captioner().train()
    batch = images(10)
    assert batch.features is not None
    references = [[torch.randint(4, 400, (10,)).tolist() for _ in range(5)] for _ in range(200)]
    given = {"features": batch.features, "mask": batch.mask, "index": torch.arange(10)}
    for sampling, baseline in (("beam", "mean"), ("multinomial", "greedy")):
        settings = SelfCriticalSettings(sampling=sampling, baseline=baseline)  # type: ignore[arg-type]
        loss = SelfCritical(settings, references, model.vocabulary)
        tokens = torch.randint(4, WORDS, (50, LENGTH + 1))

        def sampled() -> None:
            model.zero_grad(set_to_none=True)
            loss(model, given).total.backward()  # noqa: B023

        def learnt() -> None:
            model.zero_grad(set_to_none=True)
            cross_entropy(model, batch, tokens).backward()  # noqa: B023

        mine, other = alternately(repeats, sampled, learnt)
        print(f"self-critical step ({sampling}, {baseline}): {mine / other:.2f} x a cross-entropy step (bar 2.5)")


def cross_entropy(model: TransformerCaptioner, batch: Images, tokens: Tensor) -> Tensor:
    """The loss of whole captions (R, T)."""
    lengths = torch.full((len(tokens),), tokens.shape[1] - 1)
    hidden = model.decode(model.encode(batch), tokens[:, :-1], lengths)
    real = real_words(lengths, tokens.shape[1] - 1)
    return smoothed_cross_entropy(model.vocabulary_logits(hidden[real]), tokens[:, 1:][real])[0]


def alternately(repeats: int, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[float, float]:
    """Median seconds of both, run in turns after one run to warm up."""
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(repeats + 1):
        for own, run in zip(times, (first, second)):
            start = time.perf_counter()
            run()
            if i:
                own.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    main()
