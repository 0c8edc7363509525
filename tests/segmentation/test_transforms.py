"""The joint training transforms: picture and mask stay in step, sizes hold, chance is torch's alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from vlp_segmentation.augmentation import IGNORE, Augmentation
from vlp_segmentation.transforms import MirrorImage, resize_mask, training_transform

PLAIN = {"flip": 0.0, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0}


def apply(augment, image, mask, pairs=()):
    image, mask = training_transform(augment, pairs)(tv_tensors.Image(image), tv_tensors.Mask(mask))
    return image.as_subclass(torch.Tensor), mask.as_subclass(torch.Tensor)


def blocks(height, width, side=16, ids=3):
    """A picture whose red channel shows its mask's id × 80, in blocks."""
    mask = torch.randint(0, ids, (-(-height // side), -(-width // side)), dtype=torch.uint8)
    mask = mask.repeat_interleave(side, 0).repeat_interleave(side, 1)[:height, :width].contiguous()
    return torch.stack([mask * 80, torch.zeros_like(mask), torch.zeros_like(mask)]), mask


@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    crop=st.tuples(st.integers(2, 70), st.integers(2, 70)),
    low=st.floats(0.3, 1.0),
    high=st.floats(1.0, 3.0),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_any_picture_gives_the_crop_size(height, width, crop, low, high, seed):
    torch.manual_seed(seed)
    image, mask = blocks(height, width)
    augment = Augmentation(crop=crop, scale_range=(low, high))
    image, mask = apply(augment, image, mask)
    assert image.shape == (3, *crop)
    assert mask.shape == crop
    assert image.dtype == torch.float32
    assert mask.dtype == torch.uint8
    assert 0 <= image.min() <= image.max() <= 1
    assert set(mask.unique().tolist()) <= {0, 1, 2, IGNORE}


@given(scale=st.floats(0.5, 2.0), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_mask_follows_the_picture(scale, seed):
    torch.manual_seed(seed)
    augment = Augmentation(crop=(60, 50), scale_range=(scale, scale), **PLAIN | {"flip": 0.5})
    image, mask = apply(augment, *blocks(80, 96))
    shown = (image[0] * 255 / 80).round()
    agrees = (shown == mask) | (mask == IGNORE)
    assert agrees.float().mean() > 0.9  # all but the blurred seams between blocks


def test_padding_is_ignored_and_has_the_fill_colour():
    torch.manual_seed(0)
    image, mask = torch.zeros(3, 20, 30, dtype=torch.uint8), torch.ones(20, 30, dtype=torch.uint8)
    augment = Augmentation(crop=(40, 50), scale_range=(1, 1), fill=(255, 0, 51), **PLAIN)
    image, mask = apply(augment, image, mask)
    assert (mask == 1).sum() == 20 * 30
    assert (image[:, mask == IGNORE] * 255).round().unique(dim=1).flatten().tolist() == [255, 0, 51]
    assert not image[:, mask == 1].any()


def test_window_is_the_same_as_scaling_the_whole_and_cropping():
    image = functional.gaussian_blur(torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8), [9, 9])
    mask = torch.arange(64, dtype=torch.uint8).expand(64, 64).contiguous()
    augment = Augmentation(crop=(64, 64), scale_range=(2, 2), max_class_share=1, **PLAIN)
    torch.manual_seed(1)
    crop, labels = apply(augment, image, mask)
    left = 2 * int(labels[0, 0])
    whole = functional.resize(image, [128, 128], antialias=True) / 255
    distances = [
        (crop - whole[:, top : top + 64, left : left + 64])[:, 2:-2, 2:-2].abs().max() for top in range(0, 66, 2)
    ]
    assert min(distances) <= 1.01 / 255
    assert torch.equal(labels, resize_mask(mask, [128, 128])[:64, left : left + 64])


def test_without_a_crop_size_the_picture_keeps_its_own():
    augment = Augmentation(scale_range=(0.5, 2.0))
    for size in ((20, 30), (41, 17)):
        image, mask = apply(augment, *blocks(*size))
        assert image.shape[1:] == mask.shape == size


def test_flip_swaps_left_and_right():
    image = torch.arange(12, dtype=torch.uint8).reshape(1, 2, 6).expand(3, 2, 6)
    mask = torch.tensor([[0, 1, 2, 3, 4, IGNORE]] * 2, dtype=torch.uint8)
    augment = Augmentation(scale_range=(1, 1), **PLAIN | {"flip": 1.0})
    flipped, labels = apply(augment, image, mask, [(1, 2), (3, 4)])
    assert labels.tolist() == [[IGNORE, 3, 4, 1, 2, 0]] * 2
    assert torch.equal((flipped * 255).round(), image.flip(2).float())
    again, _ = MirrorImage(1.0, [(1, 2), (3, 4)])(tv_tensors.Mask(labels), 0)
    assert torch.equal(again.as_subclass(torch.Tensor), mask)


def test_flip_happens_with_its_probability():
    torch.manual_seed(0)
    mirror = MirrorImage(0.25)
    mask = tv_tensors.Mask(torch.tensor([[0, 1]], dtype=torch.uint8))
    flipped = sum(int(mirror(mask)[0, 0]) for _ in range(800))
    assert 150 < flipped < 250


def test_crop_filled_by_one_class_is_drawn_anew():
    mask = torch.zeros(40, 400, dtype=torch.uint8)
    mask[:, 180:220:2] = 1
    image = torch.zeros(3, 40, 400, dtype=torch.uint8)

    def mixed(share):
        torch.manual_seed(0)
        augment = Augmentation(crop=(40, 40), scale_range=(1, 1), max_class_share=share, **PLAIN)
        return sum(bool((apply(augment, image, mask)[1] == 1).any()) for _ in range(100))

    assert mixed(0.75) > 2 * mixed(1.0)


def test_crop_without_labels_is_drawn_anew():
    mask = torch.full((40, 200), IGNORE, dtype=torch.uint8)
    mask[:, :40:2], mask[:, 1:40:2] = 0, 1
    torch.manual_seed(0)
    augment = Augmentation(crop=(40, 40), scale_range=(1, 1), **PLAIN)
    labelled = sum(
        bool((apply(augment, torch.zeros(3, 40, 200, dtype=torch.uint8), mask)[1] != IGNORE).any()) for _ in range(50)
    )
    assert labelled > 35


def test_colour_changes_the_picture_alone():
    torch.manual_seed(0)
    image, mask = blocks(32, 32)
    augment = Augmentation(scale_range=(1, 1), flip=0, max_class_share=1)
    coloured, labels = apply(augment, image, mask)
    assert torch.equal(labels, mask)
    assert not torch.allclose(coloured, image / 255)


def test_inputs_are_left_untouched():
    image, mask = blocks(32, 32)
    before = image.clone(), mask.clone()
    for seed in range(5):
        torch.manual_seed(seed)
        apply(Augmentation(crop=(32, 32), hue=0.1), image, mask, [(0, 1)])
    assert torch.equal(image, before[0])
    assert torch.equal(mask, before[1])


def test_all_chance_is_torchs():
    image, mask = blocks(50, 60)
    augment = Augmentation(crop=(32, 32), hue=0.1)
    results = []
    for other in (1, 2):
        random.seed(other)
        np.random.seed(other)
        torch.manual_seed(7)
        results.append(apply(augment, image, mask))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    torch.manual_seed(8)
    assert not torch.equal(apply(augment, image, mask)[0], results[0][0])


def test_resized_mask_takes_the_label_under_each_centre():
    mask = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]], dtype=torch.uint8)
    assert resize_mask(mask, (1, 2)).tolist() == [[5, 7]]
    assert resize_mask(mask, (4, 8))[::2, ::2].equal(mask)
    assert resize_mask(mask, (4, 8))[1::2, 1::2].equal(mask)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"crop": (0, 5)}, "crop"),
        ({"scale_range": (2.0, 1.0)}, "scale_range"),
        ({"scale_range": (0.0, 1.0)}, "scale_range"),
        ({"max_class_share": 0.0}, "max_class_share"),
        ({"flip": 1.5}, "flip"),
        ({"hue": 0.7}, "hue"),
        ({"brightness": -0.1}, "brightness"),
        ({"fill": (0, 0, 256)}, "fill"),
    ],
)
def test_settings_out_of_range(wrong, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**wrong)
