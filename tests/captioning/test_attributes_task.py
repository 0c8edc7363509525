"""The attribute detector as a task: it learns, is scored, and its words come beside prepared features to eta."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import TINY, make

import vlplatform
from vlp_captioning.attributes import NoisyOr
from vlp_captioning.attributes.detector import AttributeDetector, DetectorSettings
from vlp_captioning.attributes.plugin import plugin
from vlp_captioning.attributes.scores import average_precision, found_of_surest
from vlp_captioning.readers import Visual
from vlplatform.cli import compose
from vlplatform.cli.main import main
from vlplatform.data.shards import Shards
from vlplatform.errors import UserError
from vlplatform.hub import save_model
from vlplatform.vision.pictures import read_image

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
TRAINER = ["trainer.warmup=0", "trainer.trackers=[]", "trainer.batch_size=6", "trainer.log_every=1"]
GRIDS = ["backbone=resnet18", "stride=8", "size=32", "grid=2", "pretrained=false", "workers=0"]
ETA = [f"model.{key}={value}" for key, value in {"dim": 16, **TINY["eta"]}.items()]


def vlp(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert vlp(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def trained(folder: Path, name: str, *settings: object, task: str = "attributes") -> tuple[Path, list[dict[str, Any]]]:
    """A run and its lines of losses and scores."""
    assert vlp("train", f"task={task}", f"out={folder / 'runs'}", f"name={name}", *TRAINER, *settings) == 0
    run = folder / "runs" / name
    return run, [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twelve pictures of one or two coloured blocks, nine of them for training; ``captions.jsonl`` beside them."""
    folder, lines = tmp_path / "photos", []
    folder.mkdir()
    for number in range(12):
        names = [list(COLOURS)[number % 3], list(COLOURS)[number // 3 % 3]]
        blocks = np.zeros((2, 3, 3), np.uint8)
        blocks[number % 2, 0], blocks[1 - number % 2, 2] = COLOURS[names[0]], COLOURS[names[1]]
        image = Image.fromarray(blocks).resize((60 + number, 40), Image.Resampling.NEAREST)
        image.save(folder / f"{number}.png")
        said = [f"a {name} block" for name in names]
        split = "train" if number < 9 else "val"
        lines.append(json.dumps({"image": f"{number}.png", "captions": said, "split": split}))
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture
def features(pictures: Path, tmp_path: Path) -> Path:
    """The blocks' colours as features: (6, 3) for each picture."""
    folder = tmp_path / "features"
    folder.mkdir()
    for path in pictures.glob("*.png"):
        small = Image.open(path).resize((3, 2), Image.Resampling.NEAREST)
        np.save(folder / f"{path.stem}.npy", np.asarray(small, np.float32).reshape(6, 3) / 255)
    return folder


def on(pictures: Path, *more: object) -> list[object]:
    return ["data=jsonl", f"data.file={pictures / 'captions.jsonl'}", *more]


def test_average_precision_against_a_loop():
    torch.manual_seed(0)
    probabilities = (torch.rand(30, 8) * 6).round() / 6  # with ties
    present = torch.rand(30, 8) > 0.6
    present[:, 5] = False
    found = average_precision(probabilities, present)
    for k in range(8):
        p, y = probabilities[:, k], present[:, k]
        each = [float(y[p >= p[i]].double().mean()) for i in range(30) if y[i]]
        assert float(found[k]) == pytest.approx(sum(each) / len(each), abs=1e-12) if each else found[k].isnan()


def test_precision_and_recall_of_the_surest():
    probabilities = torch.tensor([[0.9, 0.8, 0.1, 0.2], [0.1, 0.2, 0.9, 0.3], [0.1, 0.2, 0.3, 0.4]])
    present = torch.tensor([[True, False, True, True], [False, False, True, False], [False] * 4])
    assert found_of_surest(probabilities, present, 2) == (pytest.approx(0.5), pytest.approx((1 / 3 + 1) / 2))
    assert found_of_surest(probabilities, present, 9) == (pytest.approx(0.5), 1.0)


def test_masked_cells_count_for_nothing():
    torch.manual_seed(0)
    head, maps = NoisyOr(3, 4).double(), torch.randn(2, 3, 1, 5).double()
    mask = torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
    some = head.absence(maps, mask)
    torch.testing.assert_close(some.presence()[:1], head(maps[:1, ..., :3]))
    torch.testing.assert_close(some.log_presence()[:1], head.absence(maps[:1, ..., :3]).log_presence())
    torch.testing.assert_close(some.presence()[1:], head(maps[1:]))
    some.log_presence().sum().backward()
    assert head.cell.weight.grad is not None
    assert bool(head.cell.weight.grad.isfinite().all())


def test_begins_at_the_words_shares():
    head, shares = NoisyOr(3, 4).double(), torch.tensor([0.001, 0.3, 0.9, 0.999])
    head.begin(shares, cells=10)
    torch.testing.assert_close(head(torch.zeros(1, 3, 2, 5).double())[0], shares.double())


def test_pictures_without_vectors():
    detector = AttributeDetector(("red", "blue"), 3, DetectorSettings()).eval()
    empty, full = Visual(features=torch.zeros(0, 3)), Visual(features=torch.ones(4, 3))
    together = detector.presence([empty, full])
    torch.testing.assert_close(together[1:], detector.presence([full]))
    torch.testing.assert_close(together[:1], detector.presence([empty]))
    assert bool(together.isfinite().all())


def test_learns_is_scored_and_writes_words(pictures, features, tmp_path, capsys):
    data = on(pictures, f"data.features={features}")
    values = [
        "trainer.steps=60",
        "trainer.eval_every=20",
        "trainer.learning_rate=0.1",
        "task.common=0.9",
        "task.most=2",
    ]
    run, lines = trained(tmp_path, "words", *data, *values)
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.5 * losses[0]
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["values"]["map"] == 1.0
    assert "map is over the 3 of 3 words" in metrics["notes"][0]
    assert (run / "report.html").is_file()
    model = vlplatform.load(run)
    assert isinstance(model, AttributeDetector)
    assert set(model.words) == set(COLOURS)  # “a” and “block”, in all pictures, are left out

    assert vlp("eval", run, "--out", tmp_path / "scores.json", "--device", "cpu") == 0
    found = json.loads((tmp_path / "scores.attributes.json").read_text())
    assert sorted(found) == ["10", "11", "9"]
    assert set(found["10"]) == {"green", "red"}  # both of them: number 10 has colours 1 and 0
    capsys.readouterr()
    assert vlp("predict", run, features / "10.npy", features / "9.npy", "--out", tmp_path / "p", "--device", "cpu") == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(f"{features / '10.npy'}: ")
    assert all(f"{word} 0." in first or f"{word} 1.00" in first for word in found["10"])
    written = tmp_path / "p/attributes.json"
    assert json.loads(written.read_text()) == {"10": found["10"], "9": found["9"]}

    rest = [features / f"{number}.npy" for number in range(12)]
    assert vlp("predict", run, *rest, "--out", tmp_path / "p", "--device", "cpu") == 0
    trained(
        tmp_path, "eta", *data, f"data.attributes={written}", "model=eta", *ETA, "trainer.steps=1", task="captioning"
    )


def test_from_pictures_to_eta_in_three_commands(pictures, tmp_path, capsys, monkeypatch):
    small = ["data.pixels=[32,32]", "model.vision.pretrained=false", "model.vision.stride=8", "model.vision.grid=0"]
    run, _ = trained(tmp_path, "words", *on(pictures), *small, "trainer.steps=2", "task.words=4")
    out = tmp_path / "out"
    assert vlp("prepare", "features", pictures, out, *GRIDS, f"attributes={run}", "attribute_words=2") == 0
    shards = Shards(out)
    detector = vlplatform.load(run)
    assert isinstance(detector, AttributeDetector)
    for key, record in shards.items():
        assert record.words == detector.detect_words([read_image(pictures / key)], most=2)[0]
        assert len(record.words) == 2
    assert str(tmp_path) not in json.dumps(dict(shards.settings))
    capsys.readouterr()
    assert vlp("prepare", "features", pictures, out, *GRIDS, f"attributes={run}", "attribute_words=2") == 0
    assert "12 pictures (0 of them now)" in capsys.readouterr().out
    told = refused(capsys, "prepare", "features", pictures, out, *GRIDS, f"attributes={run}")
    assert "was written with attribute_words=2, not 10" in told

    short = ["trainer.steps=2", "task.text.min_count=1", "task.decode.max_length=6"]
    eta, _ = trained(
        tmp_path, "eta", *on(pictures, f"data.features={out}"), "model=eta", *ETA, *short, task="captioning"
    )
    # A photograph gets its words as the training pictures did.
    assert vlp("predict", eta, pictures / "10.png", "--out", tmp_path / "p", "--device", "cpu") == 0
    (told,) = json.loads((tmp_path / "p/captions.json").read_text())
    written = vlplatform.load(eta)
    assert written.shape.extractor["attribute_words"] == 2  # pyright: ignore
    assert told["captions"]
    monkeypatch.chdir(tmp_path)
    shutil.move(run, tmp_path / "words")
    assert vlp("predict", eta, pictures / "10.png", "--out", tmp_path / "p", "--device", "cpu") == 0
    shutil.move(tmp_path / "words", tmp_path / "elsewhere")
    line = refused(capsys, "predict", eta, pictures / "10.png", "--out", tmp_path / "p", "--device", "cpu")
    assert f"attribute detector words (SHA-256 {shards.settings['attributes'].split()[1]} …), and no such" in line
    # A captioner that reads no words does without the detector.
    plain = [f"model.{key}={value}" for key, value in {"dim": 16, **TINY["transformer"]}.items()]
    data = on(pictures, f"data.features={out}")
    other, _ = trained(tmp_path, "plain", *data, "model=transformer", *plain, *short, task="captioning")
    assert vlp("predict", other, pictures / "10.png", "--out", tmp_path / "p", "--device", "cpu") == 0


def test_detector_of_prepared_features(pictures, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert vlp("prepare", "features", pictures, first, *GRIDS) == 0
    run, _ = trained(tmp_path, "words", *on(pictures, f"data.features={first}"), "trainer.steps=2")
    assert vlp("prepare", "features", pictures, second, *GRIDS, f"attributes={run}", "attribute_score=0.01") == 0
    detector = vlplatform.load(run)
    assert isinstance(detector, AttributeDetector)
    for key, record in Shards(second).items():
        seen = Visual(features=Shards(first)[key].features)
        sure = dict(zip(detector.words, detector.presence([seen])[0].tolist()))
        assert list(record.words) == sorted(record.words, key=lambda word: -sure[word])
        assert min(sure[word] for word in record.words) > 0.01
        assert torch.equal(record.features, Shards(first)[key].features)


def test_checkpoints_that_find_no_words(pictures, tmp_path, capsys):
    captioner, out = save_model(make("eta").float(), tmp_path / "captioner", task="captioning"), tmp_path / "out"
    told = refused(capsys, "prepare", "features", pictures, out, *GRIDS, f"attributes={captioner}")
    assert told.endswith("captioner is a model of task=captioning, which finds no words in pictures: give one of "
                         "task=attributes.")  # fmt: skip
    told = refused(capsys, "prepare", "features", pictures, out, *GRIDS, "attributes=./nowhere")
    assert "no such folder: ./nowhere" in told
    detector = AttributeDetector(("red",), 3, DetectorSettings())
    detector.save(tmp_path / "detector")
    told = refused(capsys, "prepare", "features", pictures, out, *GRIDS, f"attributes={tmp_path / 'detector'}")
    assert "this attribute detector reads features that vlp prepare did not make" in told
    assert not out.exists()
    for wrong, message in (("attribute_words=0", "attribute_words=0 must be"), ("attribute_score=2", "must lie in 0")):
        assert message in refused(capsys, "prepare", "features", pictures, out, *GRIDS, wrong)


def test_files_that_cannot_be_predicted(pictures, tmp_path, capsys):
    detector = AttributeDetector(("red",), 3, DetectorSettings()).save(tmp_path / "detector")
    np.save(tmp_path / "wide.npy", np.zeros((4, 5), np.float32))
    (tmp_path / "x.txt").write_text("x")
    (tmp_path / "more").mkdir()
    np.save(tmp_path / "more/wide.npy", np.zeros((4, 3), np.float32))
    for files, message in (
        (["wide.npy"], "wide.npy: features are 5 wide; this detector was made for 3"),
        (["x.txt"], "x.txt is neither a picture (.jpg"),
        (["photos/1.png"], "1.png: this attribute detector reads features that vlp prepare did not make"),
        (["more/wide.npy", "wide.npy"], "have the same name, by which words are kept"),
    ):
        inputs = [tmp_path / file for file in files]
        told = refused(capsys, "predict", detector, *inputs, "--out", tmp_path / "p", "--device", "cpu")
        assert message in told
    assert not (tmp_path / "p").exists()


def test_settings_that_do_not_fit(pictures, features, tmp_path, capsys):
    data = on(pictures, f"data.features={features}")
    for settings, message in (
        (["attn=mdsa"], "task=attributes has no attention, and attn.name=mdsa was asked for: leave it out"),
        (["model=eta"], "model=eta is no attribute detector: valid: auto, noisy_or"),
        (["task.common=0"], "task: common=0.0 must lie above 0 and up to 1"),
        (["task.common=0.01"], "task.common=0.01 leaves none of the 5 words to learn: raise it"),
        (["task.best=cider"], "task.best=cider is not valid"),
        (["model.vision.backbone=resnet18"], "gives features and model.vision.backbone=resnet18 sees pixels"),
    ):
        told = refused(capsys, "train", "task=attributes", f"out={tmp_path / 'runs'}", *TRAINER, *data, *settings)
        assert message in told
    with pytest.raises(UserError, match=r"the saved settings are no attribute detector's \(KeyError\('words'\)\)"):
        plugin.rebuild({"model": {"name": "transformer"}})


def test_is_listed(capsys):
    assert vlp("list", "tasks") == 0
    assert "attributes" in capsys.readouterr().out
    assert "noisy_or" in compose.options("model")
    assert plugin.settings_class("model", "noisy_or") is DetectorSettings
