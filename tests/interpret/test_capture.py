"""Capturing attention of toy models: what is recorded, when, and that nothing is left behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vlplatform.errors import UserError
from vlplatform.interpret import attention_rows, capture


class ToyMaps(nn.Module):
    """Content attention by dot products, position attention uniform; changes its input in place afterwards."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(x) + 1
        x.zero_()
        return out

    def attention_maps(self, x: Tensor, row: int, col: int) -> dict[str, Tensor]:
        b, _, h, w = x.shape
        scores = (self.norm(x) * self.norm(x)[:, :, row, col, None, None]).sum(1).flatten(1)
        content = scores.softmax(-1).view(b, 1, h, w).expand(b, self.heads, h, w)
        return {"content": content, "position": torch.full_like(content, 1 / (h * w))}


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 3, 1)
        self.blocks = nn.ModuleList([ToyMaps(), nn.Identity(), ToyMaps()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) for m in model.modules())


def test_records_operators_by_dotted_path_in_call_order(x: Tensor) -> None:
    model = Toy()
    with torch.no_grad(), capture(model) as captured:
        assert captured.names() == []
        model(x)
    assert captured.names() == ["blocks.0", "blocks.2"]
    assert hooks(model) == 0


def test_maps_are_those_of_the_unchanged_input_in_evaluation_mode(x: Tensor) -> None:
    model = Toy().train()
    with torch.no_grad(), capture(model) as captured:
        model(x)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    maps = captured.maps("blocks.0", 0.99, 0.0)
    assert {k: v.shape for k, v in maps.items()} == dict.fromkeys(("content", "position"), (2, 2, 5, 7))
    with torch.no_grad():
        expected = model.eval().blocks[0].attention_maps(model.stem(x), 4, 0)["content"]
    torch.testing.assert_close(maps["content"], expected)
    assert maps["content"].std() > 0, "the input was captured before the operator emptied it"
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_each_parts_own_mode_is_restored(x: Tensor) -> None:
    model = Toy().train()
    model.blocks[2].norm.eval()
    modes = [m.training for m in model.modules()]
    attention_rows(model, x[0].sigmoid(), [(0.5, 0.5)])
    assert [m.training for m in model.modules()] == modes


@pytest.mark.parametrize(("fraction", "row"), [(0.0, 0), (0.19, 0), (0.2, 1), (0.5, 2), (1.0, 4)])
def test_fractions_name_pixels_of_the_map(x: Tensor, fraction: float, row: int) -> None:
    model = Toy().eval()
    with torch.no_grad(), capture(model) as captured:
        model(x)
        expected = model.blocks[2].attention_maps(captured._calls["blocks.2"].x, row, 6)
    torch.testing.assert_close(captured.maps("blocks.2", fraction, 1.0), expected)


def test_hooks_go_after_an_error_too(x: Tensor) -> None:
    model = Toy()
    with pytest.raises(RuntimeError), capture(model):
        model(torch.zeros(1, 5, 4, 4))
    assert hooks(model) == 0


def test_unknown_name_and_point_outside_are_users_mistakes(x: Tensor) -> None:
    model = Toy()
    with torch.no_grad(), capture(model) as captured:
        model(x)
    with pytest.raises(UserError, match=r"did you mean 'blocks.0'"):
        captured.maps("block.0", 0.5, 0.5)
    with pytest.raises(UserError, match="outside the image"):
        captured.maps("blocks.0", 0.5, 1.5)


def test_half_precision_inputs_of_autocast_are_mapped(x: Tensor) -> None:
    model = Toy()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), capture(model) as captured:
        model(x)
    assert captured.maps("blocks.0", 0.5, 0.5)["content"].dtype is torch.float32


def test_an_operator_alone_and_a_model_without_any(x: Tensor) -> None:
    with torch.no_grad(), capture(alone := ToyMaps()) as captured:
        alone(x.clone())
    assert captured.names() == ["model"]
    with capture(bare := nn.Conv2d(3, 3, 1)) as captured:
        bare(x)
    assert captured.names() == []
    assert attention_rows(bare, x[0].sigmoid(), [(0.5, 0.5)]) == []


class Clean(ToyMaps):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


@pytest.mark.parametrize("part", ["whole", "inside", "in place"])
def test_compiled_models_even_after_they_ran(part: str, x: Tensor) -> None:
    model: nn.Module = nn.Sequential(nn.Conv2d(3, 3, 1), Clean())
    if part == "whole":
        model = torch.compile(model, backend="eager")  # pyright: ignore[reportAssignmentType]
    elif part == "inside":
        model[1] = torch.compile(model[1], backend="eager")  # pyright: ignore
    else:
        model.compile(backend="eager")
    with torch.no_grad():
        model(x)  # compiled here, without hooks
        with capture(model) as captured:
            model(x)
    assert captured.names() == ["1"]
    assert captured.maps("1", 0.5, 0.5)["position"].shape == (2, 2, 5, 7)


def test_data_parallel_wrappers_do_not_show(x: Tensor) -> None:
    class Wrapper(nn.parallel.DistributedDataParallel):
        def __init__(self, module: nn.Module) -> None:  # no process group in a unit test
            nn.Module.__init__(self)
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)

    model = Wrapper(Toy())
    with torch.no_grad(), capture(model) as captured:
        model(x)
    assert captured.names() == ["blocks.0", "blocks.2"]


def test_rows_show_the_last_operator_unless_named(x: Tensor) -> None:
    model, image = Toy(), torch.rand(3, 40, 56)
    rows = attention_rows(model, image.clone(), [(0.1, 0.2), (0.9, 0.5)], id="cat")
    assert [r.id for r in rows] == ["cat", "cat"]
    assert all(list(r.images) == ["query", "content", "position"] for r in rows)
    assert all(p.shape == (6 * 40, 6 * 56, 3) for r in rows for p in r.images.values())
    assert rows[0].text.startswith("blocks.2")
    assert "10%" in rows[0].text
    both = attention_rows(model, image, [(0.1, 0.2)], names=["blocks.0", "blocks.2"])
    assert [r.text.split(",")[0] for r in both] == ["blocks.0", "blocks.2"]
    with pytest.raises(UserError, match="blocks"):
        attention_rows(model, image, [(0.5, 0.5)], names=["nothing"])
