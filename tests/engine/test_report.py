"""The report: one sound, self-contained page whatever the run's folder holds."""

from __future__ import annotations

import html
import json
import math
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlplatform import registry, settings
from vlplatform.cli import compose
from vlplatform.engine import TrainerSettings
from vlplatform.engine.report import charts, write_report
from vlplatform.engine.report.charts import Series, line_chart, smoothed
from vlplatform.engine.report.curves import curves
from vlplatform.engine.report.read import Run, read_run
from vlplatform.engine.report.sections import command
from vlplatform.errors import UserError
from vlplatform.task import Exhibit

VOID = {"meta", "img", "br", "hr", "link", "input", "path", "circle", "rect"}
HOSTILE = "</script><script>alert('x')</script> <img src=http://evil.example/x onerror=\"a\"> & $title \x00 \ud800"
SETTINGS = {
    "task": {"name": "segmentation"},
    "attn": {"name": "local_bilateral", "window": 3},
    "model": {"name": "unet", "backbone": "resnet18"},
    "data": {"name": "scenes", "size": [96, 128]},
    "trainer": {"steps": 40, "clip_norm": None, "stages": {}},
    "seed": 3,
    "name": "run",
    "out": "runs",
}


class Page(HTMLParser):
    """Checks that tags nest, and collects what a reader and a browser would find."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in <{tag}>"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def write_run(folder: Path, *, steps: int = 40, evals: bool = True, final: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(SETTINGS))
    (folder / "environment.json").write_text(
        json.dumps({"python": "3.11", "device": {"type": "cpu", "name": "x86_64", "processes": 2}})
    )
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        rate = 0.01 * (1 - step / (steps + 1))
        loss = 0.3 + math.exp(-step / 10)
        lines.append({"kind": "train", "step": step, "epoch": 0.1, "loss": loss, "lr": rate, "grad_norm": 2.0})
        if evals and step % 10 == 0:
            lines.append({"kind": "eval", "step": step, "split": "val", "values": {"miou": step / 100, "fps": 90.0}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "timings.jsonl").write_text(json.dumps({"kind": "train", "step": 1, "samples_per_second": 52.0}) + "\n")
    if final:
        per_class = {"iou": {"sky": 0.9, "moon": None}, "f1": {"sky": 0.95, "moon": math.nan}}
        (folder / "metrics.json").write_text(
            json.dumps(
                {
                    "status": "finished",
                    "split": "val",
                    "best_metric": "miou",
                    "best_step": 40,
                    "values": {"pixel_accuracy": 0.97, "miou": 0.8123},
                    "per_class": per_class,
                    "parameters": 1234567,
                    "initial_weights": "resnet18 from a local file, r18.safetensors; its licence is unknown",
                }
            )
        )
    return folder


def exhibit(side: int = 24, **more: Any) -> Exhibit:
    noise = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
    legend = {"sky": (10, 20, 30), "moon": (200, 200, 0)}
    return Exhibit("val/1", {"image": noise, "truth": noise, "prediction": noise}, "97% right", legend, **more)


def read(path: Path) -> tuple[str, Page]:
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


def self_contained(page: Page, text: str) -> None:
    for tag, attrs in page.tags:
        assert tag not in {"script", "link", "iframe", "object", "base"}
        assert not any(name.startswith("on") for name in attrs)
        for name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
            assert (attrs.get(name) or "#").startswith(("#", "data:image/")), (tag, attrs.get(name))
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_a_whole_run(tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path / "run"), [exhibit()], [exhibit()])
    text, page = read(path)
    assert path == tmp_path / "run" / "report.html"
    self_contained(page, text)
    facts = ("1\u202f234\u202f567", "x86_64 × 2", "52", "r18.safetensors; its licence is unknown")
    for expected in ("0.8123", "mIoU on val", "finished", "local_bilateral", *facts):
        assert expected in page.words
    assert "never comparable" in page.words
    assert "not why the model decides" in page.words
    sections = [attrs["id"] for attrs in page.all("section")]
    assert sections == ["scores", "curves", "samples", "attention", "settings", "environment", "reproduce"]
    assert [a["href"] for a in page.all("a")] == [f"#{name}" for name in sections]
    assert all(attrs["alt"] for attrs in page.all("img"))
    assert len(page.all("img")) == 6
    assert len(page.all("svg")) == 6  # loss, scores, frames per second, rate, norm; folded: samples per second
    assert all(attrs["aria-label"] for attrs in page.all("svg"))
    assert page.words.count("moon") >= 2, "class table and legend"
    assert not [p for p in tmp_path.rglob("*") if p.name.startswith(".")], "nothing is left aside"


def test_only_scenes_carries_the_warning(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "settings.json").write_text(json.dumps({**SETTINGS, "data": {"name": "camvid"}}))
    assert "never comparable" not in read(write_report(folder, [], []))[1].words


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a<b>&\"'")
    (folder / "settings.json").write_text(json.dumps({"task": {HOSTILE: HOSTILE}, HOSTILE: [HOSTILE]}))
    (folder / "environment.json").write_text(json.dumps({HOSTILE: {HOSTILE: HOSTILE}, "command": HOSTILE}))
    scores = {HOSTILE: 0.5, "values": {HOSTILE: 0.5}, "per_class": {HOSTILE: {HOSTILE: 0.5}}, "status": HOSTILE}
    (folder / "metrics.json").write_text(json.dumps({**scores, "split": HOSTILE, "best_metric": HOSTILE}))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "train", "step": 41, "loss": 1.0, HOSTILE: 2.0}) + "\n")
        file.write(json.dumps({"kind": "eval", "step": 41, "split": HOSTILE, "values": {HOSTILE: 0.5}}) + "\n")
    picture = np.zeros((4, 4, 3), np.uint8)
    shown = Exhibit(HOSTILE, {HOSTILE: picture}, HOSTILE, {HOSTILE: (1, 2, 3)})
    text, page = read(write_report(folder, [shown], [shown]))
    self_contained(page, text)
    assert len(page.all("img")) == 2
    assert page.words.count("<script>alert('x')</script>") > 12
    assert "$title" in page.words, "a dollar in the data is no placeholder"
    assert "\x00" not in text


@pytest.mark.parametrize(
    "missing", ["settings.json", "environment.json", "metrics.jsonl", "timings.jsonl", "metrics.json"]
)
def test_each_file_may_be_missing(tmp_path: Path, missing: str) -> None:
    folder = write_run(tmp_path / "run")
    (folder / missing).unlink()
    text, page = read(write_report(folder, [], []))
    self_contained(page, text)
    assert (f"{missing} " in page.words) == (missing not in ("metrics.json", "timings.jsonl"))
    assert ("no final scores yet" in page.words) == (missing == "metrics.json")


def test_an_empty_folder_and_none(tmp_path: Path) -> None:
    _, page = read(write_report(tmp_path, [], []))
    assert "was not evaluated" in page.words
    assert "Nothing was logged" in page.words
    with pytest.raises(UserError, match="no run folder"):
        write_report(tmp_path / "nowhere", [], [])


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"values": ', "null", '{"values": {}, "per_class": {}}', "\xff"])
def test_broken_files_are_told(tmp_path: Path, content: str) -> None:
    folder = write_run(tmp_path / "run", evals=False)
    for name in ("settings.json", "environment.json", "metrics.json"):
        (folder / name).write_bytes(content.encode("latin-1"))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    _, page = read(write_report(folder, [], []))
    assert "metrics.jsonl has 1 unreadable line," in page.words
    assert ("settings.json" in page.words) == (not content.startswith('{"values": {}'))


def test_steps_done_again_after_a_resume_count_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=5, evals=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "train", "step": 3, "loss": 9.0}) + "\n")
    run = read_run(folder)
    assert [line["step"] for line in run.train] == [1, 2, 3, 4, 5]
    assert run.train[2]["loss"] == 9.0
    assert run.train[0]["samples_per_second"] == 52.0


def test_scores_of_the_last_evaluation_stand_in_for_final_ones(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", final=False))
    assert run.scores()["val"].values["miou"] == 0.4
    assert run.headline() == ("val", "miou")


def test_the_selecting_score_is_the_headline(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    assert run.headline() == ("val", "miou")
    run.final["best_metric"] = "-unknown"
    assert run.headline() == ("val", "pixel_accuracy")


def test_every_kind_of_split_is_found() -> None:
    run = Run("r", final={"val": {"values": {"a": 1.0}}, "test": {"values": {"a": 0.5}}})
    assert {split: scores.values for split, scores in run.scores().items()} == {"val": {"a": 1.0}, "test": {"a": 0.5}}
    assert Run("r", final={"miou": 0.5}).scores()["val"].values == {"miou": 0.5}


def test_the_command_spells_out_every_setting(tmp_path: Path) -> None:
    text, _ = read(write_report(write_run(tmp_path / "run"), [], []))
    told = html.unescape(re.findall(r'<pre class="command".*?<code>(.*?)</code>', text, re.S)[0])
    words = shlex.split(told)
    assert words[:3] == ["accelerate", "launch", "run.py"]
    assert words[3:7] == ["task=segmentation", "attn=local_bilateral", "model=unet", "data=scenes"]
    assert {"attn.window=3", "data.size=[96, 128]", "trainer.clip_norm=null", "seed=3"} <= set(words)
    assert not any(word.startswith(("name=", "out=", "trainer.stages", "task.name")) for word in words)


def test_the_command_composes_back_to_the_settings_it_was_made_of() -> None:
    def resolve(overrides: list[str]) -> dict[str, Any]:
        resolved = compose.compose(overrides)
        sections = {group: resolved[group] for group in compose.GROUPS}
        trainer = settings.parse(TrainerSettings, sections["trainer"], "trainer")
        task = registry.task("segmentation").build(sections)
        return json.loads(json.dumps({**resolved, **task.sections, "trainer": settings.as_dict(trainer)}))

    given = resolve(
        ["attn=crisscross", "trainer=smoke", "trainer.clip_norm=1", "trainer.milestones=[3,4]", "data.train=64"]
    )
    text = command(Run("run", settings=given))
    words = shlex.split(html.unescape(re.findall("<code>(.*)</code>", text)[0]))
    assert resolve(words[3:]) == given


def test_a_long_run_with_photographs_stays_small(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=20_000)
    photographs = [exhibit(700) for _ in range(6)]
    path = write_report(folder, photographs, photographs[:3])
    assert path.stat().st_size < 3_000_000
    Page(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [math.nan],
        [math.inf, 1.0, -math.inf],
        [0.0] * 50,
        [5.0] * 50,
        [-3.0, 2.0],
        [1e-12, 1e12],
        [1e300, -1e300, 5e-324],
        [1.0, math.nan] * 40,
        list(range(5000)),
    ],
)
@pytest.mark.parametrize("scale", ["fit", "linear", "unit"])
def test_charts_of_any_values_stay_within_their_frame(values: list[float], scale: charts.Scale) -> None:
    chart = line_chart("a & b", [Series("loss", range(len(values)), values)], scale=scale)
    Page(chart)
    assert "nan" not in chart.lower()
    for drawn in re.findall(r'class="line[^"]*" d="([^"]*)"', chart):
        points = [[float(n) for n in point.split()] for point in re.split("[ML]", drawn)[1:]]
        assert len(points) <= 4 * charts.COLUMNS + 1
        assert all(charts.LEFT - 0.1 <= x <= charts.WIDTH - charts.RIGHT + 0.1 for x, _ in points)
        assert all(charts.TOP - 0.1 <= y <= charts.HEIGHT - charts.BOTTOM + 0.1 for _, y in points)


def test_decimation_keeps_a_spike_and_a_gap() -> None:
    values = [1.0] * 9000
    values[4321], values[7000] = 2.0, math.nan
    chart = line_chart("loss", [Series("loss", range(9000), values)], scale="linear")
    (path,) = re.findall(r'class="line[^"]*" d="([^"]*)"', chart)
    assert path.count("M") == 2, "the line is broken where a value is missing"
    heights = {float(point.split()[1]) for point in re.split("[ML]", path)[1:]}
    assert min(heights) < max(heights) - 50
    assert "1 non-finite value not drawn" in chart


def test_readings_name_step_and_values() -> None:
    chart = line_chart("scores", [Series("miou", [10, 20], [0.5, 0.75]), Series("acc", [20], [0.9])])
    assert re.findall("<title>(.*?)</title>", chart) == ["step 10 · miou 0.5000", "step 20 · miou 0.7500 · acc 0.9000"]
    assert "miou from 0.5000 at step 10 to 0.7500 at step 20" in chart


def test_wide_ranges_take_a_logarithmic_axis_but_rates_and_scores_do_not() -> None:
    wide = [Series("x", [1, 2, 3], [0.001, 0.1, 0.9])]
    assert "logarithmic" in line_chart("x", wide)
    assert "logarithmic" not in line_chart("x", wide, scale="unit")
    assert "logarithmic" not in line_chart("x", wide, scale="linear")


def test_smoothing_has_no_start_up_bias_and_bridges_gaps() -> None:
    assert smoothed([2.0] * 100) == pytest.approx([2.0] * 100)
    out = smoothed([1.0, math.nan, 1.0])
    assert out[0] == pytest.approx(1.0)
    assert math.isnan(out[1])
    assert out[2] == pytest.approx(1.0)


def test_scores_of_other_scales_have_charts_of_their_own() -> None:
    lines = [{"step": s, "values": {"miou": 0.5, "cider": 100.0 + s, "nothing": None}} for s in (1, 2)]
    drawn = curves(Run("r", evals={"val": lines}))
    assert re.findall("<h3>([^<]*)", drawn) == ["Training loss", "Scores on val", "cider on val"]
