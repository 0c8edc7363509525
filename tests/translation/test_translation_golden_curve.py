"""The first losses of translation on Scenes: the stored curve on any machine, the same bits on one."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_curves import losses, stored

CURVE = Path(__file__).with_name("golden_curve.json")
OVERRIDES = [
    "task=translation",
    "attn=bilateral",
    "task.batches.max_tokens=256",
    "model.preset=tiny",
    "model.dim=32",
    "model.hidden=48",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "data=scenes",
    "data.size=48",
    "data.train=64",
    "data.val=2",
    "trainer.optimizer=sgd",
    "trainer.learning_rate=0.2",
    "trainer.warmup=0",
    "trainer.schedule=constant",
    "trainer.eval_every=0",
    "trainer.average=0",
    "trainer.save_every=1000",
    "trainer.log_every=1",
    "trainer.trackers=[]",
]


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLP_CACHE", str(tmp_path_factory.getbasetemp() / "translation"))
        yield


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses("translation", OVERRIDES, tmp_path_factory.mktemp("curve") / "run", 100)


def test_the_curve_is_the_stored_one(curve: list[float]) -> None:
    known = stored(CURVE, curve)
    assert len(curve) == 100
    assert curve[:10] == pytest.approx(known[:10], rel=1e-3)
    assert curve == pytest.approx(known, rel=0.05)
    assert sum(curve[90:]) < 0.8 * sum(curve[:10])


def test_a_second_run_has_the_same_bits(curve: list[float], tmp_path: Path) -> None:
    assert losses("translation", OVERRIDES, tmp_path / "again", 12) == curve[:12]
