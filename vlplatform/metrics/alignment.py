"""ACF's alignment score: how many vision and language tokens choose each other.

The normalised fine-grained alignment score of ACF (https://arxiv.org/abs/2301.01955) §4.1: with V = D_v D_tᵀ and
T = D_t D_vᵀ the coincidences of the places of their maxima are counted and the number is normalised. No code is public.
"""

from __future__ import annotations

import torch
from torch import Tensor


def alignment(
    vision: Tensor, text: Tensor, *, vision_mask: Tensor | None = None, text_mask: Tensor | None = None
) -> Tensor:
    """The share of token pairs that are each other's nearest, (B,), in 0 … 1; NaN where a side has no token.

    The text leaves two things open. We read "coincidence" as: vision token i and word j coincide if j is the highest
    entry of row i of V and i the highest of row j of T, that is, they are mutually nearest by dot product (of several
    equal ones the first). And "normalise" as: divide by the most such pairs there can be, the smaller number of tokens.

    Args:
        vision: (B, N, D) vision features as the decoder sees them; not normalised, the paper does not.
        text: (B, T, D) features of the words.
        vision_mask: (B, N) bool, true where the token is real; None: all are.
        text_mask: (B, T) likewise.

    Raises:
        ValueError: Shapes that do not fit each other.
    """
    if vision.ndim != 3 or text.ndim != 3 or vision.shape[::2] != text.shape[::2]:
        raise ValueError(f"vision {tuple(vision.shape)} and text {tuple(text.shape)} must be (B, N, D) and (B, T, D)")
    if not vision.shape[1] or not text.shape[1]:
        return vision.new_full((len(vision),), torch.nan)
    real_vision = _mask(vision_mask, vision)
    real_text = _mask(text_mask, text)
    scores = vision @ text.transpose(1, 2)  # (B, N, T)
    worst = float("-inf")
    word = scores.masked_fill(~real_text[:, None], worst).argmax(2)  # (B, N) of each vision token
    place = scores.masked_fill(~real_vision[..., None], worst).argmax(1)  # (B, T) of each word
    own = torch.arange(vision.shape[1], device=vision.device)
    mutual = (place.gather(1, word) == own) & real_vision & real_text.gather(1, word)
    most = torch.minimum(real_vision.sum(1), real_text.sum(1))
    return mutual.sum(1).to(scores.dtype) / most  # 0 / 0 is NaN


def _mask(mask: Tensor | None, tokens: Tensor) -> Tensor:
    if mask is None:
        return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    if mask.shape != tokens.shape[:2]:
        raise ValueError(f"the mask {tuple(mask.shape)} does not fit tokens {tuple(tokens.shape)}")
    return mask
