"""Heads against mmsegmentation's, with its weights: DeepLabv3+ decode head, non-local head, criss-cross head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vlp_segmentation.models.context import ContextHead
from vlp_segmentation.models.layers import ASPP, Classifier, ConvNormReLU, SeparableConv, resize

pytestmark = pytest.mark.shared


class Weights:
    """The golden's weights by their official names; remembers which were asked for."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.left = {name[2:]: tensor for name, tensor in tensors.items() if name.startswith("w.")}

    def fill(self, module: nn.Module, prefix: str) -> None:
        names = [name for name in self.left if name.startswith(prefix + ".")]
        state = {name[len(prefix) + 1 :]: self.left.pop(name) for name in names}
        missing, unexpected = module.load_state_dict(state, strict=False)
        assert not unexpected
        assert [name for name in missing if not name.endswith("num_batches_tracked")] == []

    def conv(self, module: ConvNormReLU, prefix: str) -> None:
        self.fill(module[0], f"{prefix}.conv")
        self.fill(module[1], f"{prefix}.bn")

    def separable(self, module: SeparableConv, prefix: str) -> None:
        self.conv(module[0], f"{prefix}.depthwise_conv")
        self.conv(module[1], f"{prefix}.pointwise_conv")


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=1e-8)


@torch.no_grad()
def test_deeplab_head(shared: Path) -> None:
    golden = load_file(shared / "reference/golden/deeplabv3plus_head.safetensors")
    weights = Weights(golden)
    pyramid, low = ASPP(24, 16, (12, 24, 36)), ConvNormReLU(12, 8)
    first, second, classifier = SeparableConv(24, 16), SeparableConv(16, 16), Classifier(16, 5)
    for module in (pyramid, low, first, second, classifier):
        module.double().eval()  # before the weights go in, which float32 would round
    weights.conv(pyramid.branches[0].project, "image_pool.1")
    weights.conv(pyramid.branches[1], "aspp_modules.0")
    for i in (1, 2, 3):
        weights.separable(pyramid.branches[i + 1], f"aspp_modules.{i}")
    weights.conv(pyramid.fuse, "bottleneck")
    weights.conv(low, "c1_bottleneck")
    weights.separable(first, "sep_bottleneck.0")
    weights.separable(second, "sep_bottleneck.1")
    weights.fill(classifier[1], "conv_seg")
    assert not weights.left
    high = pyramid(golden["c4"])
    close(high, golden["i.aspp_out"])
    joined = torch.cat([resize(high, golden["c1"].shape[-2:]), low(golden["c1"])], dim=1)
    close(joined, golden["i.decoder_cat"])
    close(classifier(second(first(joined))), golden["logits"])


def context_head(weights: Weights, attn: dict[str, object]) -> ContextHead:
    head = ContextHead(20, 16, 4, attn).double().eval()
    weights.conv(head.enter, "convs.0")
    weights.conv(head.leave, "convs.1")
    weights.conv(head.fuse, "conv_cat")
    weights.fill(head.classifier[1], "conv_seg")
    return head


@torch.no_grad()
def test_criss_cross_head(shared: Path) -> None:
    golden = load_file(shared / "reference/golden/mmseg_cc_head.safetensors")
    weights = Weights(golden)
    head = context_head(weights, {"name": "crisscross"})
    head.context.gamma.copy_(weights.left.pop("cca.gamma.scale"))
    for name in ("query_conv", "key_conv", "value_conv"):
        weights.fill(head.context.get_submodule(name), f"cca.{name}")
    assert not weights.left
    close(head.context(head.enter(golden["x"])), golden["i.attended"])
    close(head(golden["x"]), golden["logits"])


@torch.no_grad()
def test_non_local_head(shared: Path) -> None:
    golden = load_file(shared / "reference/golden/mmseg_nl_head.safetensors")
    weights = Weights(golden)
    head = context_head(weights, {"name": "nonlocal", "norm": True})
    for name in ("g", "theta", "phi"):
        weights.fill(head.context.get_submodule(name), f"nl_block.{name}.conv")
    weights.fill(head.context.conv_out[0], "nl_block.conv_out.conv")
    weights.fill(head.context.conv_out[1], "nl_block.conv_out.bn")
    assert not weights.left
    close(head.context(head.enter(golden["x"])), golden["i.attended"])
    close(head(golden["x"]), golden["logits"])
