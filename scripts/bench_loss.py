"""The loss over a vocabulary with and without holding all logits: time and peak memory, as ratios within one run.

python scripts/bench_loss.py [--words 10000] [--repeats 5]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from measure import in_turns, peak_bytes

from vlplatform.losses import linear_cross_entropy, smoothed_cross_entropy

SIZES = ((4096, 128), (1536, 512), (4096, 512))
"""Target tokens and width."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=10_000, help="size of the vocabulary")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    print(f"{args.words} words on {device}: ms and MiB, forward and backward, then the ratio")
    for tokens, dim in SIZES:
        hidden = torch.randn(tokens, dim, device=device, requires_grad=True)
        weight = torch.randn(args.words, dim, device=device, requires_grad=True)
        targets = torch.randint(args.words, (tokens,), device=device)
        works = [_work(each, hidden, weight, targets) for each in (_whole, linear_cross_entropy)]
        (whole, parts), (before, after) = in_turns(works, args.repeats, device), [peak_bytes(w, device) for w in works]
        print(
            f"  {tokens} x {dim}  {whole * 1e3:7.0f} {parts * 1e3:7.0f}  {parts / whole:5.2f}   "
            f"{before / 2**20:6.0f} {after / 2**20:6.0f}  {after / before:5.2f}"
        )


def _whole(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return smoothed_cross_entropy(hidden @ weight.t(), targets, smoothing)


def _work(
    loss: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
) -> Callable[[], None]:
    def work() -> None:
        hidden.grad = weight.grad = None
        loss(hidden, weight, targets, 0.1)[0].backward()

    return work


if __name__ == "__main__":
    main()
