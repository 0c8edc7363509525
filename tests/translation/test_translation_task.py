"""Translation under the engine: training, continuation, scores, report, saved models, the thesis's ablations."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from composed import changed

import vlplatform
from vlp_translation.batches import SentenceRecords
from vlp_translation.ensemble import best_translations
from vlp_translation.models import Translator
from vlp_translation.show import WEIGHTS, attention_exhibits, exhibits
from vlp_translation.task import TranslationTask
from vlp_translation.texts.bpe import Bpe
from vlplatform import registry
from vlplatform.cli import compose
from vlplatform.cli.main import main
from vlplatform.engine import Interrupted, TrainerSettings, evaluate, train
from vlplatform.errors import UserError
from vlplatform.settings import parse

SIZES = ["model.preset=tiny", "model.dim=16", "model.hidden=24", "model.encoder_layers=1", "model.decoder_layers=1"]
COMMON = [
    "task=translation",
    "data=scenes",
    "data.size=48",
    "data.train=20",
    "data.val=3",
    "data.test=3",
    *SIZES,
    "task.batches.max_tokens=150",
    "task.decode.beam=2",
    "task.decode.max_length_b=2",
    "trainer.steps=2",
    "trainer.warmup=1",
    "trainer.eval_every=0",
    "trainer.save_every=100",
    "trainer.average=0",
    "trainer.log_every=1",
    "trainer.trackers=[]",
]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLP_CACHE", str(tmp_path_factory.getbasetemp() / "translation"))


@functools.cache
def composed() -> dict[str, Any]:
    return compose.compose(COMMON)


def resolved(*words: str) -> dict[str, Any]:
    """The composed settings with changes."""
    return changed(composed(), *words)


def build(*words: str) -> TranslationTask:
    sections = resolved(*words)
    task = registry.task("translation").build({group: sections[group] for group in compose.GROUPS})
    assert isinstance(task, TranslationTask)
    return task


def fit(folder: Path, *words: str, task: TranslationTask | None = None, resume: str | None = None) -> dict[str, Any]:
    sections = resolved(*words)
    trainer = parse(TrainerSettings, sections["trainer"], "trainer")
    return train(task or build(*words), trainer, folder, resolved=sections, seed=0, resume=resume)


def lines(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


def written(path: Path, *texts: str) -> str:
    """The prefix of a pair of files in the languages en and de."""
    for language, text in zip(("en", "de"), texts):
        path.with_name(f"{path.name}.{language}").write_text(text, encoding="utf-8")
    return str(path)


# Training.


def test_a_run_that_is_interrupted_goes_on_alike(tmp_path: Path) -> None:
    words = ["trainer.steps=5", "trainer.eval_every=5", "task.best=-nll", "task.scores=[]"]
    fit(tmp_path / "whole", *words)
    told = lines(tmp_path / "whole")
    assert [line["step"] for line in told] == [1, 2, 3, 4, 5]
    assert all(line["loss"] != line["nll"] for line in told)  # labels are smoothed
    task = build(*words)
    plain, seen = task.loss, []

    def loss(*given: Any) -> Any:
        seen.append(0)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(*given)

    task.loss = loss  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(Interrupted, match="after update 3"):
        fit(tmp_path / "cut", *words, task=task)
    fit(tmp_path / "cut", *words, resume="auto")
    for name in ("metrics.jsonl", "metrics.json", "best/model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name


def test_the_loss_is_fairseq_s_summed_over_tokens() -> None:
    task = build("task.label_smoothing=0.2")
    records, model = task.records("train"), task.build_model().eval()
    batch = task.collate([records[0]])
    found = task.loss(model, batch)
    real = batch["targets"] != task.texts.target.vocabulary.pad
    assert int(found.count) == int(real.sum()) == int(batch["tokens"])
    log_probs = model.log_probs(batch["source"], batch["read"])[real]
    nll = -log_probs.gather(1, batch["targets"][real][:, None]).sum()
    each = 0.2 / (log_probs.shape[-1] - 1)
    smoothed = (1 - 0.2 - each) * nll - each * log_probs.sum()
    assert found.total.item() == pytest.approx(smoothed.item(), rel=1e-5)
    assert found.parts["nll"].item() == pytest.approx(nll.item(), rel=1e-5)
    plain = build("task.label_smoothing=0").loss(model, batch)
    assert plain.total.item() == pytest.approx(nll.item(), rel=1e-5)


def test_the_loss_as_best_needs_no_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training with early stop and averaging, by the likelihood alone."""

    def never(*_: Any) -> Any:
        raise AssertionError("nothing is to be translated")

    monkeypatch.setattr("vlp_translation.task.best_translations", never)
    words = ["task.best=-nll", "task.scores=[]", "trainer.eval_every=1", "trainer.save_every=1", "trainer.average=2"]
    task = build(*words)
    monkeypatch.setattr("vlp_translation.show.attention_exhibits", lambda *_: [])
    metrics = fit(tmp_path, *words, "trainer.steps=6", "trainer.early_stop=1", "trainer.learning_rate=3", task=task)
    assert set(metrics["values"]) == {"nll", "perplexity"}
    judged = [line for line in lines(tmp_path, "eval") if "nll" in line or "values" in line]
    assert [line["step"] for line in judged][:2] == [1, 2]
    assert lines(tmp_path)[-1]["step"] == 2, "it goes up at such a learning rate, and stops"
    assert "reference" in (tmp_path / "report.html").read_text()


def test_a_report_has_sentences_and_matrices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["attn=bilateral", "trainer.eval_every=2", "trainer.save_every=1", "trainer.average=2"]
    metrics = fit(tmp_path / "run", *words)
    names = ("bleu", "sacrebleu", "chrf", "nll", "perplexity", "length_ratio")
    assert set(metrics["values"]) == set(names)
    how, of_script, *signatures = metrics["notes"]
    assert how == "decoded with beam=2, length_penalty=1"
    assert re.match(r"bleu, as multi-bleu\.perl: BLEU = \d+\.\d\d, .*\(BP=.*, hyp_len=.*", of_script)
    assert [line.partition(":")[0] for line in signatures] == ["bleu", "sacrebleu", "chrf"]
    assert all("nrefs:1|case:" in line for line in signatures)
    page = (tmp_path / "run" / "report.html").read_text()
    task = build(*words)
    records = task.evaluation_records("val")
    assert all(f"source: {records[i]['line']} — translation: " in page for i in (0, len(records) - 1))
    assert all(f"reference: {records[i]['reference']} (" in page for i in (0, len(records) - 1))
    assert page.count(WEIGHTS) == 1, "one note above all matrices"
    assert "the red dot" not in page
    for title in ("content", "bilateral_sa", "attention"):
        assert page.count(f"<span>{title}</span>") == (3 if title == "attention" else 2)
    assert "encoder.layers.0.attention:" in page
    assert "decoder.layers.0.cross:" in page

    loaded = vlplatform.load(str(tmp_path / "run"))
    assert isinstance(loaded, Translator)
    assert loaded.settings() == task.build_model().settings()
    source = ["lo piko rubo anulo", "ta la krusa", ""]
    rebuilt = registry.task("translation").rebuild(json.loads(json.dumps(loaded.settings())))
    rebuilt.load_state_dict(loaded.state_dict())
    first, second = (
        [each.tokens for each in best_translations([model.eval()], source, task.settings.decode)]
        for model in (loaded, rebuilt)
        if isinstance(model, Translator)
    )
    assert first == second
    assert first[2] == []

    scores = evaluate(task, loaded, "val", batch_size=64, workers=0)
    assert scores.values == pytest.approx(metrics["values"]), "as in training"
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--json", "--device", "cpu", "--batch-size", "64"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["values"] == pytest.approx(metrics["values"])
    assert main(["eval", str(tmp_path / "run"), "--split", "train", "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["values"]["nll"] > 0
    out = tmp_path / "scores.json"
    pair = [str(tmp_path / "run"), "--with", str(tmp_path / "run")]
    assert main(["eval", *pair, "--json", "--device", "cpu", "--batch-size", "64", "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["values"] == pytest.approx(metrics["values"], rel=1e-4)
    rows = json.loads(out.with_name("scores.translations.json").read_text())
    assert len(rows) == 9
    assert all({"id", "source", "translation", "reference", "score"} == set(row) for row in rows)


def test_samples_of_training_where_nothing_else_is_judged() -> None:
    task = build()
    model = task.build_model().eval()
    shown = exhibits(task, model, "train", 2)
    pairs = {tuple(pair.source.split()) for pair in task.data.pairs("train")}
    assert all(tuple(each.text.removeprefix("source: ").split(" — ")[0].split()) in pairs for each in shown)


@pytest.mark.parametrize(
    ("attn", "titles"),
    [
        ("sa", ["attention"]),
        ("rel_pos", ["content", "rel_pos", "attention"]),
        ("dynamic_conv", ["attention"]),
        ("nsa+bilateral", ["content", "bilateral_sa", "attention"]),
    ],
)
@torch.no_grad()
def test_matrices_of_attention(attn: str, titles: list[str]) -> None:
    """Rows and columns are the tokens; no translation, however long, grows beyond what can be drawn."""
    task = build(f"attn={attn}", "task.decode.max_length_b=60")
    made = attention_exhibits(task, task.build_model().eval(), "val")
    kinds = [each.text.split(":")[0] for each in made]
    cross = "decoder.layers.0.cross"
    own = ["encoder.layers.0.attention", "decoder.layers.0.attention"]
    assert kinds == [cross, *own]
    assert list(made[0].images) == ["attention"]
    assert list(made[1].images) == titles
    assert all(picture.shape[0] < 900 for each in made for picture in each.images.values())


# Data.


def text_words(folder: Path, train: tuple[str, str], val: tuple[str, ...], *more: str) -> list[str]:
    train_words = [f"data.train={written(folder / 'train', *train)}", f"data.val={written(folder / 'val', *val)}"]
    return ["data=text", "data.source=en", "data.target=de", *train_words, *more]


TRAIN = ("a dog\ntwo dogs\n" * 4, "ein hund\nzwei hunde\n" * 4)
PLAIN = ["task.text.subwords=words", "task.text.tokenize=none"]


def test_empty_lines_are_translated_to_empty_lines(tmp_path: Path) -> None:
    words = text_words(tmp_path, TRAIN, ("a dog\n\ntwo\n", "ein hund\nzwei\n\n"))
    task = build(*words, *PLAIN)
    model = task.build_model().eval()
    predictions = task.predict(model, task.collate([task.records("val")[i] for i in range(3)]))
    told = {p["id"]: p for p in predictions}
    assert told["2"]["translation"] == ""
    assert told["2"]["words"] == []
    assert told["3"]["tokens"] == 1
    scores = task.score(predictions)
    assert scores.values["nll"] > 0
    assert [p["id"] for p in predictions] == ["1", "3", "2"], "the longest first"
    assert [row["id"] for row in scores.files["translations"]] == ["1", "2", "3"], "as in the file"
    assert exhibits(task, model, "val", 3)


def test_data_without_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*text_words(tmp_path, TRAIN, ("a dog\n", "ein hund\n")), *PLAIN]
    folder = build(*words).build_model().save(tmp_path / "model")
    (tmp_path / "new.en").write_text("two dogs\n")
    given = ["data=text", "data.source=en", "data.target=de", f"data.test=[{tmp_path / 'new.en'}]"]
    assert main(["eval", str(folder), *given, "--split", "test", "--device", "cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "error: data=text has no translations to score test against: use vlp predict."
    # evaluation reads with the model's words: no training text is needed, and what it does not know is unknown
    test = written(tmp_path / "other", "a zebra\n", "ein zebra\n")
    given[-1] = f"data.test={test}"
    assert main(["eval", str(folder), *given, "--split", "test", "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["values"]["nll"] > 0
    turned = ["data=text", "data.source=de", "data.target=en", f"data.test={test}"]
    assert main(["eval", str(folder), *turned, "--split", "test", "--device", "cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "data=text goes from de to en, the model from en to de" in line


def test_members_of_an_ensemble_have_the_same_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*text_words(tmp_path, TRAIN, ("a dog\n", "ein hund\n")), *PLAIN]
    one = build(*words).build_model().save(tmp_path / "one")
    written(tmp_path / "train", "a cat\n", "eine katze\n")
    two = build(*words).build_model().save(tmp_path / "two")
    assert main(["predict", str(one), "a dog", "--with", str(two), "--device", "cpu"]) == 2
    assert "model 2 of the ensemble has other source words" in capsys.readouterr().err


def test_long_lines_are_left_out_of_training_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = (TRAIN[0] + "dog " * 10_000 + "\n", TRAIN[1] + "hund\n")
    words = [*text_words(tmp_path, train, ("a dog\n", "ein hund\n")), *PLAIN]
    task = build(*words)
    assert len(task.records("train")) >= 1
    notes = " ".join(task.describe()["data"]["notes"])
    left_out = f"1 longer than max_length=60 (the first: {tmp_path / 'train.en'}, line 9)"
    assert left_out in notes
    capsys.readouterr()
    assert main(["doctor", *OF_TEXT, *words, "data.test=null"]) in (0, 2)
    found = capsys.readouterr().out
    assert left_out in found
    assert "training pairs in 1 batches" in found
    fit(tmp_path / "told", *words)
    told = capsys.readouterr().out
    assert 0 < told.index(left_out) < told.index("1/2 · ")
    written(tmp_path / "val", "a dog\n" + "dog " * 10_000 + "\n", "ein hund\nhund\n")
    with pytest.raises(UserError, match=r"val: the line of id 2 has 10000 words .* task\.decode\.max_source=1024"):
        fit(tmp_path / "run", *words, "trainer.eval_every=1")
    assert not (tmp_path / "run").exists()


def test_long_references_are_told(tmp_path: Path) -> None:
    words = [*text_words(tmp_path, TRAIN, ("a dog\ntwo\n", "ein hund\n" + "hund " * 10_000 + "\n")), *PLAIN]
    message = r"val: the translation of the line of id 2 has 10000 words .* task\.decode\.max_source=1024"
    with pytest.raises(UserError, match=message):
        build(*words).records("val")


def test_what_learnt_positions_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The end symbol needs one of them."""
    val = ("dog " * 9 + "\n" + "dog " * 13 + "\n", "hund\nhund\n")
    words = [*text_words(tmp_path, TRAIN, val), *PLAIN, "model.positions=learned", "task.batches.max_length=9"]
    with pytest.raises(UserError, match=r"positions=learned has 9 .*max_length=9 .*set model\.max_length=10"):
        build(*words, "model.max_length=9").before_training(TrainerSettings())
    task = build(*words, "model.max_length=10")
    assert task.before_training(TrainerSettings()) == []
    told = r"line of id 2 has 13 words or pieces, but this model has 10 learnt positions, one of them for the end"
    with pytest.raises(UserError, match=told):
        task.records("val")
    folder = task.build_model().save(tmp_path / "model")
    assert main(["predict", str(folder), str(tmp_path / "val.en"), "--device", "cpu", "--out", str(tmp_path)]) == 2
    assert f"{tmp_path / 'val.en'}, line 2, has 13 words or pieces, but this model" in capsys.readouterr().err
    (tmp_path / "val.en").write_text("dog " * 9 + "\n")
    assert main(["predict", str(folder), str(tmp_path / "val.en"), "--device", "cpu", "--out", str(tmp_path)]) == 0
    written(tmp_path / "val", "dog\n", "hund " * 10 + "\n")
    judge = build(*words)  # whose own settings have more positions than the model
    judge.use(task.build_model())
    with pytest.raises(
        UserError, match="translation of the line of id 1 has 10 words or pieces, but this model has 10"
    ):
        judge.records("val")


def test_batches_are_made_once() -> None:
    task = build()
    batches = task.records("train")
    assert task.records("train") is batches
    assert "training pairs in" in " ".join(task.describe()["data"]["notes"])
    task.use(task.build_model())
    assert "training pairs in" not in " ".join(task.describe()["data"]["notes"])
    assert isinstance(task.records("train"), SentenceRecords)


def test_a_best_score_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    task = build("task.best=chrf", "task.scores=[]")
    assert task.before_training(TrainerSettings()) == []
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(
        UserError, match=r"task.best=chrf is not available: it needs the package sacrebleu .*pip install"
    ):
        task.before_training(TrainerSettings())
    assert task.before_training(TrainerSettings(eval_every=0)) == [], "nothing is judged"


def test_the_length_as_best_asks_for_translations() -> None:
    task = build("task.best=-length_ratio", "task.scores=[]")
    records = task.records("val")
    scores = task.score(task.predict(task.build_model().eval(), task.collate([records[0], records[1]])))
    assert set(scores.values) == {"nll", "perplexity", "length_ratio"}


def test_a_report_says_where_no_attention_is_drawn(tmp_path: Path) -> None:
    task = build(*text_words(tmp_path, TRAIN, ("\n" + "dog " * 31 + "\n", "hund\nhund\n")), *PLAIN)
    (told,) = attention_exhibits(task, task.build_model().eval(), "val")
    assert (told.images, told.note) == (
        {},
        "No attention is drawn for val: no sentence of it has 1 to 30 words or pieces.",
    )


# Bad input by the command line.

OF_TEXT = [word for word in COMMON if not word.startswith("data")]
OF_TEXT += ["task.text.tokenize=none", "task.batches.max_length=60"]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["train", *OF_TEXT, *words]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    return line


def test_faulty_files_are_told_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = text_words(tmp_path, TRAIN, ("a dog\ntwo\n", "ein hund\n"))
    told = refused(capsys, *words)
    assert told.startswith(f"error: {tmp_path / 'val.en'} has 2 lines, but {tmp_path / 'val.de'} has 1")
    written(tmp_path / "val", "a dog\n", "ein hund\n")
    (tmp_path / "train.de").write_bytes(TRAIN[1].encode() + b"M\xe4nner\n")
    (tmp_path / "train.en").write_text(TRAIN[0] + "men\n")
    told = refused(capsys, *words)
    assert f"{tmp_path / 'train.de'}, line 9, is not UTF-8 (byte 2 is 0xe4)" in told
    written(tmp_path / "train", *TRAIN)
    (tmp_path / "dict").write_text("xx 1\nyy 1\n")
    told = refused(capsys, *words, "task.text.subwords=words", f"task.text.dictionary={tmp_path / 'dict'}")
    assert "it does not match" in told
    assert not (tmp_path / "runs").exists()


def test_learning_pieces_is_interrupted_and_begun_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("VLP_CACHE", str(tmp_path / "cache"))
    words = text_words(tmp_path, TRAIN, ("a dog\n", "ein hund\n"), f"out={tmp_path / 'runs'}", "name=run")
    command = ["train", *OF_TEXT, *words, "task.text.size=20"]
    plain = Bpe.learn

    def interrupted(counts: Any, size: int) -> Bpe:
        made = plain(counts, size)
        for _ in range(2):  # the first Ctrl-C would be content to save after the update
            os.kill(os.getpid(), signal.SIGINT)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(Bpe, "learn", interrupted)
        assert main(command) == 130
    assert capsys.readouterr().err.endswith("error: interrupted\n")
    assert not (tmp_path / "runs").exists()
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert main(command) == 0


# The thesis's ablations and the mechanisms of the table, two updates each.

ABLATIONS = {
    **{f"padding {p}": ["attn=bilateral", f"attn.padding={p}"] for p in ("inf", "zero", "min", "learned")},
    "smoothing": ["attn=bilateral", "attn.smoothing=zscore"],
    **{
        f"windows {a} {b}": [
            "attn=bilateral",
            f"attn.window={a}",
            "model.decoder_attn.name=bilateral",
            f"model.decoder_attn.window={b}",
        ]
        for a, b in ((5, 21), (11, 21), (11, 6), (21, 11), (31, 16), (41, 21))
    },
    **{name: [f"attn={name}"] for name in ("sa", "bilateral", "nsa", "rel_pos", "dynamic_conv", "acf1d")},
}


@pytest.mark.parametrize("case", ABLATIONS)
def test_ablations_train_and_translate(case: str, tmp_path: Path) -> None:
    words = ABLATIONS[case]
    task = build(*words)
    metrics = fit(tmp_path, *words, "task.scores=[bleu]", "trainer.eval_every=2", task=task)
    assert 0 <= metrics["values"]["bleu"] <= 100
    assert metrics["values"]["nll"] < 20
    model = task.build_model()
    if case.startswith("windows"):
        _, encoder, decoder = case.split()
        assert model.attn["window"] == int(encoder)
        assert model.model_settings.decoder_attn == {"name": "bilateral", "window": int(decoder)}
    elif case.startswith(("padding", "smoothing")):
        of_decoder = model.model_settings.decoder_attn
        assert isinstance(of_decoder, dict)
        key = case.split()[0]
        assert of_decoder[key] == model.attn[key] == words[1].partition("=")[2]
        assert (model.attn["window"], of_decoder["window"]) == (21, 11)


def test_ablations_are_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As README has them, and a sum of terms."""
    readme = ["attn=bilateral", "attn.window=11", "model.decoder_attn={name: bilateral, window: 6}"]
    for i, words in enumerate((ABLATIONS["windows 11 6"], readme, ["attn=nsa+rel_pos"])):
        assert main(["train", *COMMON, *words, f"out={tmp_path}", f"name=run{i}"]) == 0
        assert main(["predict", str(tmp_path / f"run{i}"), "ta la krusa", "--device", "cpu"]) == 0
    first, second = ((tmp_path / run / "best" / "config.json").read_text() for run in ("run0", "run1"))
    assert json.loads(first)["model"] == json.loads(second)["model"]
    saved = json.loads((tmp_path / "run2" / "best" / "config.json").read_text())["model"]
    assert saved["attn"]["name"] == "nsa+rel_pos"
    assert saved["model"]["decoder_attn"]["name"] == "sa"
    assert "(vlp predict" in capsys.readouterr().out


# What is listed, and settings.


def test_what_is_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlplatform.cli.list._settings", lambda *_: {})  # of every other task, too: slow

    def listed(what: str) -> dict[str, dict[str, Any]]:
        assert main(["list", what, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        return {row["name"]: row for row in rows if "translation" in (row["name"], row.get("task"))}

    assert "sentence" in listed("tasks")["translation"]["summary"]
    assert {"scenes", "multi30k", "iwslt14", "wmt14", "text", "jsonl"} <= set(listed("data"))
    assert "transformer" in listed("models")
    metrics = listed("metrics")
    assert {"bleu", "bleu_split", "sacrebleu", "chrf", "nll", "perplexity", "length_ratio"} == set(metrics)
    assert all(row["summary"] for row in metrics.values())


@pytest.mark.parametrize("recipe", ["multi30k", "iwslt14", "wmt14", "scenes"])
def test_recipes_compose(recipe: str) -> None:
    sections = compose.compose(["task=translation", f"data={recipe}"])
    plugin = registry.task("translation")
    for group in ("task", "model"):
        name = "transformer" if group == "model" else sections[group]["name"]
        values = {key: value for key, value in sections[group].items() if key != "name" or group == "task"}
        settings_class = plugin.settings_class(group, name)  # type: ignore[attr-defined]
        parse(settings_class, values, group)
    trainer = parse(TrainerSettings, sections["trainer"], "trainer")
    assert trainer.schedule == "inverse_sqrt"
    assert trainer.optimizer == "adamw", "fairseq's Adam decays weights apart from the gradient"
    if recipe != "scenes":
        assert trainer.warmup_start * trainer.learning_rate == pytest.approx(1e-7)
    assert trainer.average > 0


UNFIT: dict[str, tuple[list[str], str]] = {
    "attention": (["attn=crisscross"], "crisscross"),
    "typing": (["attn=bilaterl"], "did you mean 'bilateral'"),
    "option": (["attn=bilateral", "attn.pading=zero"], "pading"),
    "padding": (["attn=bilateral", "attn.padding=none"], "padding"),
    "window": (["attn=bilateral", "attn.window=6"], "window=6 is even"),
    "decoder": (["model.decoder_attn=nsa"], "nsa"),
    "heads": (["model.heads=3"], "heads=3"),
    "model": (["model=transformr"], "did you mean 'transformer'"),
    "smoothing": (["task.label_smoothing=1"], "label_smoothing=1"),
    "scores": (["task.scores=[blue]"], "did you mean 'bleu'"),
    "best": (["task.best=-nl"], "did you mean 'nll'"),
    "rising": (
        ["task.best=perplexity"],
        "best=perplexity would keep the worst checkpoint, as less is better: write -p",
    ),
    "beam": (["task.decode.beam=0"], "beam=0"),
    "least": (
        ["task.decode.min_length=20"],
        "min_length=20 is more than the translation of a short source may have by",
    ),
    "returned": (["task.decode.returned=3"], "returned=3"),
    "length": (["task.decode.max_length_a=-1"], "max_length_a=-1"),
    "source": (["task.decode.max_source=0"], "max_source=0"),
    "batches": (["task.batches.max_tokens=60"], "max_tokens=60 must be above max_length=60"),
    "data": (["data.source=toru"], "must differ"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_told_in_a_sentence(case: str) -> None:
    words, message = UNFIT[case]
    with pytest.raises(UserError, match=re.escape(message)) as told:
        build(*words)
    assert "\n" not in str(told.value)
