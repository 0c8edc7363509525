"""Translation's speed on this machine, as ratios within one run: training, beam search, and against transformers.

Training and beam search compare attention mechanisms in one model; ``marian`` compares the search with transformers'
``MarianMTModel.generate`` of the same size (random weights, sources and translations of one length, no early end).

    python scripts/bench_translation.py [--only training|search|marian] [--preset iwslt] [--batch 1 8 64] [--repeats 3]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from measure import in_turns
from torch import Tensor

from vlp_translation.models import PRESETS, TransformerSettings, Translator
from vlp_translation.texts import Side, Texts
from vlp_translation.texts.dictionary import of_words
from vlp_translation.texts.whole import WholeWords
from vlp_translation.texts.wording import Wording
from vlplatform.losses import linear_cross_entropy

EOS = 2
BARS = {1: 1.5, 8: 1.5, 64: 1.2}
"""How many times as fast as ``generate`` the search must be, by batch."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("training", "search", "marian"))
    parser.add_argument("--preset", choices=tuple(PRESETS), default="iwslt")
    parser.add_argument(
        "--attn", nargs="+", default=["sa", "bilateral", "dynamic_conv"], help="the first is the measure"
    )
    parser.add_argument("--words", type=int, default=10_000, help="size of the vocabulary")
    parser.add_argument("--length", type=int, default=24, help="tokens of a sentence")
    parser.add_argument("--tokens", type=int, default=1536, help="target tokens of a training batch")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64], help="sentences translated together")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    print(f"preset {args.preset}, {args.words} words, sentences of {args.length} tokens, on {args.device}")
    for name, part in (("training", training), ("search", search), ("marian", marian)):
        if args.only in (None, name):
            part(args)


def translator(attn: str, args: argparse.Namespace) -> Translator:
    """A model of the preset with one vocabulary for both sides."""
    vocabulary = of_words([f"w{i}" for i in range(args.words - 4)], "words")
    sides = (Side(Wording(code, moses=False), WholeWords(), vocabulary) for code in ("de", "en"))
    return Translator(Texts(*sides), {"name": attn}, TransformerSettings(preset=args.preset)).to(args.device).eval()


def sentences(count: int, args: argparse.Namespace) -> Tensor:
    """Random ones (count, length) with their ends."""
    rows = torch.randint(4, args.words, (count, args.length))
    rows[:, -1] = EOS
    return rows.to(args.device)


def training(args: argparse.Namespace) -> None:
    """Target tokens per second of forward and backward passes and an update, of each mechanism."""
    count = max(1, args.tokens // args.length)
    source, target = sentences(count, args), sentences(count, args)
    read = torch.cat((target[:, -1:], target[:, :-1]), 1)

    def of(attn: str) -> Callable[[], None]:
        model = translator(attn, args).train()
        optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98))

        def step() -> None:
            hidden = model.decode(model.encode(source), read)
            loss, _ = linear_cross_entropy(hidden.flatten(0, 1), model.output.weight, target.flatten(), 0.1)
            optimizer.zero_grad(set_to_none=True)
            (loss / target.numel()).backward()
            optimizer.step()

        return step

    taken = in_turns([of(attn) for attn in args.attn], args.repeats, torch.device(args.device))
    print(f"training, batches of {count} sentences: target tokens/s, time over {args.attn[0]}'s (bar: bilateral 1.3)")
    for attn, each in zip(args.attn, taken):
        print(f"  {attn:<14}{target.numel() / each:9.0f}  {each / taken[0]:5.2f}")


def search(args: argparse.Namespace) -> None:
    """Sentences per second of beam search, of each mechanism."""
    models = [translator(attn, args) for attn in args.attn]
    print(f"beam {args.beam}: sentences/s, time over {args.attn[0]}'s (bar: bilateral 1.3)")
    for size in args.batch:
        source = sentences(size, args)
        works = [lambda model=model, source=source: here(model, source, args) for model in models]
        taken = in_turns(works, args.repeats, torch.device(args.device))
        for attn, each in zip(args.attn, taken):
            print(f"  batch {size:>2}  {attn:<14}{size / each:8.2f}  {each / taken[0]:5.2f}")


def here(model: Translator, source: Tensor, args: argparse.Namespace) -> Any:
    """Beam search of this library: ``length`` tokens and the end."""
    return model.generate(source, beam=args.beam, min_length=args.length, max_length_b=args.length)


def marian(args: argparse.Namespace) -> None:
    """Sentences per second of beam search with self-attention, against ``generate``."""
    from transformers import MarianConfig, MarianMTModel

    sizes, start = PRESETS[args.preset], args.words - 1
    config = MarianConfig(
        vocab_size=args.words,
        d_model=sizes.dim,
        encoder_layers=sizes.encoder_layers,
        decoder_layers=sizes.decoder_layers,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        encoder_ffn_dim=sizes.hidden,
        decoder_ffn_dim=sizes.hidden,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=1,
        eos_token_id=EOS,
        decoder_start_token_id=start,
        forced_eos_token_id=None,
    )
    theirs: Any = MarianMTModel(config).to(args.device).eval()
    ours = translator("sa", args)
    fixed: Any = {"max_new_tokens": args.length + 1, "min_new_tokens": args.length + 1, "do_sample": False}

    def there(source: Tensor) -> Any:
        with torch.inference_mode():
            return theirs.generate(
                source, attention_mask=torch.ones_like(source), num_beams=args.beam, early_stopping=True, **fixed
            )

    print(f"beam {args.beam}, sentences/s: ours, transformers' MarianMTModel.generate, ratio (bar)")
    for size in args.batch:
        source = sentences(size, args)
        works = (lambda source=source: here(ours, source, args), lambda source=source: there(source))
        mine, other = in_turns(works, args.repeats, torch.device(args.device))
        bar = f"({BARS[size]})" if size in BARS else ""
        print(f"  batch {size:>2}  {size / mine:8.2f} {size / other:8.2f}  {other / mine:5.2f} {bar}")


if __name__ == "__main__":
    main()
