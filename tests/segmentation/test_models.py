"""The segmentation models: shapes, gradients, settings that rebuild them, export, and where the mechanism sits."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from vlp_segmentation import plugin
from vlp_segmentation.models import MODELS, Labels, SegmentationModel
from vlplatform import attention
from vlplatform.attention.mechanism import Mechanism
from vlplatform.errors import UserError

LABELS = Labels(("ground", "tree", "sky"), ((0, 0, 0), (0, 128, 0), (0, 0, 255)))
SMALL: dict[str, dict[str, Any]] = {
    "deeplabv3plus": {"channels": 32, "low_channels": 8},
    "unet": {},
    "context": {"channels": 32},
}
PAIRS = [
    ("deeplabv3plus", "conv"),
    ("deeplabv3plus", "local_bilateral"),
    ("unet", "conv"),
    ("unet", "local_bilateral"),
    ("context", "crisscross"),
    ("context", "bilateral_nl"),
]


def make(model: str, attn: str | dict[str, Any], **settings: Any) -> SegmentationModel:
    torch.manual_seed(0)
    cls = MODELS[model]
    chosen = {"backbone": "resnet18", **SMALL[model], **settings}
    return cls(LABELS, {"name": attn} if isinstance(attn, str) else attn, cls.Settings(**chosen))


@pytest.mark.parametrize(("model", "attn"), PAIRS)
def test_any_size_gives_logits_of_that_size(model: str, attn: str) -> None:
    net = make(model, attn, stages=3).eval()
    with torch.no_grad():
        for size in ((33, 47), (32, 64), (9, 5)):
            logits = net(torch.rand(2, 3, *size))
            assert logits.shape == (2, 3, *size)
            assert logits.isfinite().all()


@pytest.mark.parametrize(("model", "attn"), PAIRS)
def test_training_reaches_every_parameter(model: str, attn: str) -> None:
    net = make(model, attn).train()
    for parameter in net.parameters():  # zero-initialised gates would hide what lies behind them
        if parameter.ndim <= 1:
            nn.init.normal_(parameter, mean=0.5, std=0.1)
    outputs = net(torch.rand(2, 3, 33, 40))
    assert outputs.logits.shape == (2, 3, 33, 40)
    assert (outputs.aux is not None) == (model == "context")
    total = outputs.logits.square().sum()
    if outputs.aux is not None:
        assert outputs.aux.shape == outputs.logits.shape
        total = total + outputs.aux.square().sum()
    total.backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.parametrize(("model", "attn"), PAIRS)
def test_settings_survive_json_and_rebuild_the_model(model: str, attn: str) -> None:
    net = make(model, attn, stages=3, freeze_norms=2, pretrained=False).eval()
    saved = json.loads(json.dumps(net.settings()))
    assert not {"pretrained", "weights", "partial_weights"} & set(saved["model"])
    again = plugin.rebuild(saved).eval()
    assert again.settings() == net.settings()
    again.load_state_dict(net.state_dict())
    image = torch.rand(1, 3, 20, 31)
    with torch.no_grad():
        assert torch.equal(net(image), again(image))


def test_rebuild_refuses_settings_of_something_else() -> None:
    saved = make("unet", "conv", stages=3).settings()
    for broken in (
        {**saved, "model": {"name": "segformer"}},
        {**saved, "palette": [[1, 2]]},
        {"model": saved["model"]},
    ):
        with pytest.raises(UserError, match=r"config\.json"):
            plugin.rebuild(broken)


@pytest.mark.parametrize(("model", "attn"), [PAIRS[1], PAIRS[3], PAIRS[4]])
def test_export_gives_the_same_logits(model: str, attn: str) -> None:
    net = make(model, attn, stages=3).eval()
    image = torch.rand(1, 3, 32, 40)
    with torch.no_grad():
        exported = torch.export.export(net, (image,)).module()
        torch.testing.assert_close(exported(image), net(image), rtol=1e-4, atol=1e-5)


def test_images_are_normalised_inside() -> None:
    net = make("unet", "conv", stages=3).eval()
    seen: list[torch.Tensor] = []
    net.backbone.net.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    net(mean)
    assert seen[0].abs().max() < 1e-6
    assert not [name for name in net.state_dict() if name.endswith(("mean", "std")) and "running" not in name]


def test_fusion_of_deeplab_has_the_published_parameters() -> None:
    published = {"conv": 590_080, "local_content": 265_216, "local_geometric": 217_560, "local_bilateral": 283_864}
    for name, count in published.items():
        net = make("deeplabv3plus", name, channels=256, stages=3)
        assert sum(p.numel() for p in net.fusion[0].parameters()) == count, name


def test_unet_follows_table_4_5() -> None:
    net = make("unet", "local_bilateral", output_stride=32)
    operators = [block[0] for block in net.blocks]
    refined = type(attention.build("local_bilateral_ir", dim=16, socket="local"))
    plain = type(attention.build("local_bilateral", dim=16, socket="local"))
    assert [type(operator) for operator in operators] == [refined, plain, plain, plain]
    assert [operator.heads for operator in operators] == [8, 8, 4, 4]
    sizes: list[tuple[int, ...]] = []
    for block in net.blocks:
        block.register_forward_hook(lambda _, args, out: sizes.append((args[0].shape[1], *out.shape[1:])))
    net.eval()(torch.rand(1, 3, 64, 96))
    assert sizes == [(768, 512, 4, 6), (640, 256, 8, 12), (320, 256, 16, 24), (320, 128, 32, 48)]


def test_unet_heads_and_refinement_can_be_chosen() -> None:
    net = make("unet", {"name": "local_bilateral", "heads": 2}, refine=False, stages=3)
    assert {type(block[0]).__name__ for block in net.blocks} == {
        type(attention.build("local_bilateral", dim=16, socket="local")).__name__
    }
    assert [block[0].heads for block in net.blocks] == [2, 2, 2]


def test_pyramid_dilations_fit_the_output_stride() -> None:
    for stride, expected in ((8, [12, 24, 36]), (16, [6, 12, 18])):
        net = make("deeplabv3plus", "conv", output_stride=stride, stages=3)
        assert [branch[0][0].dilation[0] for branch in net.pyramid.branches[2:]] == expected


def test_one_training_image_is_enough_for_image_pooling() -> None:
    net = make("deeplabv3plus", "conv", stages=3).train()
    assert net(torch.rand(1, 3, 33, 33)).logits.isfinite().all()


class Mean3x3(nn.AvgPool2d):
    """A mechanism that keeps the channels."""

    def __init__(self, dim: int) -> None:
        super().__init__(3, 1, 1)


def test_mechanism_without_out_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    known = attention.catalogue()
    card = Mechanism("mean", Mean3x3, ("local",), "mean of a window", "none")
    monkeypatch.setattr(attention, "catalogue", lambda: {**known, "mean": card})
    assert make("deeplabv3plus", "mean", stages=3).eval()(torch.rand(1, 3, 9, 9)).shape == (1, 3, 9, 9)
    with pytest.raises(UserError, match="model=deeplabv3plus"):
        make("unet", "mean", stages=3)


def test_no_auxiliary_head_when_its_weight_is_zero() -> None:
    net = make("context", "crisscross", stages=3, aux_weight=0.0).train()
    assert net(torch.rand(2, 3, 16, 16)).aux is None
