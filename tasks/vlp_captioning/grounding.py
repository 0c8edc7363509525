"""How well the words a captioner wrote and the vectors of the image find each other (ACF, §4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from vlp_captioning.models import Caption, Captioner, Images
from vlplatform.losses import real_words
from vlplatform.metrics.alignment import alignment


@torch.no_grad()
def alignments(model: Captioner, images: Images, captions: Sequence[Caption]) -> list[float | None]:
    """The alignment score of each image with its caption, in 0 … 1; None for a caption without words.

    The paper names a "visual feature" and a "text feature" and no more. We take what meets in the model: the encoder's
    output, as the decoder reads it, and the decoder's states from which the words were told.

    Args:
        model: The captioner.
        images: B of them, as ``model.checked`` returns them.
        captions: One for each.
    """
    memory = model.encode(images)
    words = [[number for number in caption.tokens if number != model.vocabulary.eos] for caption in captions]
    read = [torch.tensor([model.vocabulary.bos, *numbers[:-1]], device=model.device) for numbers in words]
    tokens = pad_sequence(read, batch_first=True, padding_value=model.vocabulary.pad)
    lengths = torch.tensor([len(numbers) for numbers in words], device=model.device)
    states = model.decode(memory, tokens, lengths.clamp_min(1))
    real = real_words(lengths, tokens.shape[1])
    told = alignment(memory.tokens[0].float(), states.float(), vision_mask=memory.masks[0], text_mask=real)
    return [None if math.isnan(share) else share for share in told.tolist()]
