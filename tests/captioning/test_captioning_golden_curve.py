"""The first losses of captioning on Scenes: the stored curve on any machine, the same bits on one."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_curves import losses, stored

CURVE = Path(__file__).with_name("golden_curve.json")
OVERRIDES = [
    "task=captioning",
    "task.text.min_count=1",
    "task.captions_per_image=2",
    "task.stages=[cross_entropy,self_critical]",
    "task.self_critical.samples=3",
    "task.self_critical.max_length=12",
    "attn=dsa",
    "model=transformer",
    "model.dim=32",
    "model.heads=4",
    "model.hidden=64",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "data=scenes",
    "data.size=48",
    "data.train=64",
    "data.val=2",
    "trainer.batch_size=8",
    "trainer.optimizer=sgd",
    "trainer.learning_rate=0.1",
    "trainer.warmup=0",
    "trainer.schedule=constant",
    "trainer.eval_every=0",
    "trainer.save_every=1000",
    "trainer.log_every=1",
    "trainer.trackers=[]",
    "trainer.stages.self_critical.steps=8",
    "trainer.stages.self_critical.learning_rate=0.02",
]


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses("captioning", OVERRIDES, tmp_path_factory.mktemp("curve") / "run", 100)


def test_the_curve_is_the_stored_one(curve: list[float]) -> None:
    known = stored(CURVE, curve)
    assert len(curve) == 108
    assert curve[:10] == pytest.approx(known[:10], rel=1e-3)
    assert curve[:100] == pytest.approx(known[:100], rel=0.05)
    assert sum(curve[90:100]) < 0.8 * sum(curve[:10])
    assert sum(curve[100:]) == pytest.approx(sum(known[100:]), rel=0.5)  # of beams, which a last bit may change


def test_a_second_run_has_the_same_bits(curve: list[float], tmp_path: Path) -> None:
    assert losses("captioning", OVERRIDES, tmp_path / "again", 12)[:12] == curve[:12]
