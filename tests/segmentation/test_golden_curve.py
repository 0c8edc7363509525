"""The first hundred losses of segmentation on Scenes: the stored curve on any machine, the same bits on one."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_curves import losses, stored

CURVE = Path(__file__).with_name("golden_curve.json")
OVERRIDES = [
    "attn=bilateral",
    "data.size=48",
    "data.train=64",
    "data.val=2",
    "model.channels=16",
    "model.low_channels=8",
    "trainer.batch_size=4",
    "trainer.optimizer=sgd",
    "trainer.learning_rate=0.01",
    "trainer.warmup=0",
    "trainer.eval_every=0",
    "trainer.save_every=1000",
    "trainer.log_every=1",
    "trainer.channels_last=false",
    "trainer.trackers=[]",
    "trainer.schedule=constant",
]


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses("segmentation", OVERRIDES, tmp_path_factory.mktemp("curve") / "run", 100)


def test_the_curve_is_the_stored_one(curve):
    known = stored(CURVE, curve)
    assert len(curve) == 100
    assert curve[:10] == pytest.approx(known[:10], rel=1e-3)
    assert curve == pytest.approx(known, rel=0.05)
    assert sum(curve[-10:]) < 0.95 * sum(curve[:10])


def test_a_second_run_has_the_same_bits(curve, tmp_path):
    assert losses("segmentation", OVERRIDES, tmp_path / "again", 12) == curve[:12]
