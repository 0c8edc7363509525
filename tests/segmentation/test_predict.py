"""Pictures of any kind in, label map and overlay out; nothing half-written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vlp_segmentation import plugin
from vlp_segmentation.models import MODELS, Labels, SegmentationModel
from vlp_segmentation.predict import as_tested
from vlp_segmentation.testing import InferenceSettings
from vlplatform.errors import UserError
from vlplatform.vision.pictures import read_image

CPU = torch.device("cpu")
PALETTE = ((0, 0, 0), (0, 128, 0), (0, 0, 255))


@pytest.fixture(scope="module")
def model() -> SegmentationModel:
    torch.manual_seed(0)
    cls = MODELS["unet"]
    return cls(
        Labels(("ground", "tree", "sky"), PALETTE), {"name": "conv"}, cls.Settings(backbone="resnet18", stages=3)
    )


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, shape).astype(np.uint8)


def test_label_map_and_overlay(model: SegmentationModel, tmp_path: Path) -> None:
    Image.fromarray(noise(33, 47, 3)).save(tmp_path / "street.png")
    written = plugin.predict_files(model, [tmp_path / "street.png"], tmp_path / "deep" / "out", CPU)
    assert [path.name for path in written] == ["street.labels.png", "street.overlay.png"]
    with torch.no_grad():
        expected = model.eval()(read_image(tmp_path / "street.png")[None] / 255).argmax(1)[0].numpy()
    with Image.open(written[0]) as labels, Image.open(written[1]) as overlay:
        assert labels.mode == "P"
        assert (np.array(labels) == expected).all()
        assert (np.array(labels.convert("RGB")) == np.array(PALETTE)[expected]).all()
        assert overlay.mode == "RGB"
        assert overlay.size[0] >= 47
        assert overlay.size[1] > 33  # the legend lies below
    assert sorted(path.name for path in written[0].parent.iterdir()) == [path.name for path in written]


@pytest.mark.parametrize("mode", ["L", "RGBA", "LA", "P", "CMYK", "1"])
def test_any_mode(model: SegmentationModel, tmp_path: Path, mode: str) -> None:
    suffix = "tif" if mode == "CMYK" else "png"
    Image.fromarray(noise(20, 30, 3)).convert(mode).save(tmp_path / f"x.{suffix}")
    labels, _ = plugin.predict_files(model, [tmp_path / f"x.{suffix}"], tmp_path / "out", CPU)
    with Image.open(labels) as opened:
        assert opened.size == (30, 20)


def test_sixteen_bits_are_scaled(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 32768, 65535]], dtype=np.uint16)).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png")[:, 0].tolist() == [[0, 128, 255]] * 3


def test_camera_orientation_is_honoured(model: SegmentationModel, tmp_path: Path) -> None:
    picture = Image.fromarray(noise(20, 30, 3))
    exif = picture.getexif()
    exif[0x0112] = 6  # to be shown turned by a quarter
    picture.save(tmp_path / "phone.jpg", exif=exif)
    assert read_image(tmp_path / "phone.jpg").shape == (3, 30, 20)
    for path in plugin.predict_files(model, [tmp_path / "phone.jpg"], tmp_path / "out", CPU):
        with Image.open(path) as opened:
            assert opened.size[0] >= 20
            assert opened.size[1] >= 30


def test_unreadable_inputs(model: SegmentationModel, tmp_path: Path) -> None:
    Image.fromarray(noise(64, 64, 3)).save(tmp_path / "whole.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:500])
    (tmp_path / "text.png").write_text("no picture")
    cases = (("cut.jpg", "cannot be decoded"), ("text.png", "cannot be decoded"), ("none.png", "is missing"))
    for name, problem in cases:
        with pytest.raises(UserError, match=rf"{name} {problem}.*: give a sound JPEG"):
            plugin.predict_files(model, [tmp_path / name], tmp_path / "out", CPU)
    assert not (tmp_path / "out").exists()


def test_results_that_would_collide(model: SegmentationModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two inputs are called 'a'"):
        plugin.predict_files(model, [tmp_path / "x" / "a.jpg", tmp_path / "y" / "a.jpg"], tmp_path / "out", CPU)


def test_a_folder_that_cannot_be_written(model: SegmentationModel, tmp_path: Path) -> None:
    Image.fromarray(noise(20, 30, 3)).save(tmp_path / "x.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        plugin.predict_files(model, [tmp_path / "x.png"], tmp_path / "file" / "out", CPU)


def test_pictures_are_tested_as_the_run_was(model: SegmentationModel) -> None:
    assert as_tested(model) == (InferenceSettings(), [])
    data = {"scale": 0.5, "flip_pairs": [["sky", "tree"], ["left", "right"]]}
    model.loaded_config = {"sections": {"task": {"test": {"scales": [1.0, 1.5], "flip": True}}, "data": data}}
    assert as_tested(model) == (InferenceSettings(scales=(0.5, 0.75), flip=True), [(2, 1)])
    del model.loaded_config
