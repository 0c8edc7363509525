"""Translations for the report: source, hypothesis, reference, and where the tokens of a sentence looked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlp_translation.ensemble import best_translations
from vlp_translation.models import Translator
from vlplatform.interpret import capture, draw
from vlplatform.task import Exhibit

if TYPE_CHECKING:
    from vlp_translation.task import TranslationTask

LONGEST = 30
"""Tokens of the longest sentence whose attention is drawn; longer ones would not fit on a page."""
WEIGHTS = (
    "Each row shows where one token looked in the layer named, the mean over heads, brightest where most, every row "
    "scaled to its own maximum: rows can be compared in shape, not in brightness. Rows over the source (cross) are the "
    "tokens that the decoder wrote, all others those that it or the encoder read. Where logits are a sum, what each "
    "summand alone would attend to (content: queries and keys; the others: positions) stands beside the whole, which "
    "the model uses. Weights that may be negative are shown by their magnitude. A map says where this layer read, not "
    "why a word was chosen: lower layers have mixed the tokens before."
)
"""What the matrices show and do not show."""


def exhibits(task: TranslationTask, model: Translator, split: str, count: int) -> list[Exhibit]:
    """``count`` sentences spread evenly over a split by length, each with its translation and reference."""
    predictions = task.predict(model, _spread(task, model, split, count))
    return [Exhibit(p["id"], {}, _told(p)) for p in predictions]


def _told(prediction: dict[str, Any]) -> str:
    written = prediction.get("translation")
    lines = [f"source: {prediction['source']}"]
    if written is not None:
        lines.append(f"translation: {written} (score {prediction['score']:.2f})")
    if prediction["reference"] is not None:
        lines.append(
            f"reference: {prediction['reference']} ({prediction['nll'] / prediction['tokens']:.2f} nats a token)"
        )
    return " — ".join(lines)


def attention_exhibits(task: TranslationTask, model: Translator, split: str) -> list[Exhibit]:
    """One short sentence: what its tokens read of the source, and of each other on either side.

    Always in the top layer. Where logits are a sum (``bilateral``, ``rel_pos``), what each summand alone would attend
    to stands beside the whole: content, position, and both. Where nothing can be drawn, a note says why.
    """
    batch = _fitting(task, model, split)
    if batch is None:
        return [_nothing(split, f"no sentence of it has 1 to {LONGEST} words or pieces")]
    (found,) = best_translations([model], batch["source"], task.settings.decode)
    tokens = found.tokens[:LONGEST]
    if not tokens:
        return [_nothing(split, f"the model found no translation of '{batch['lines'][0]}'")]
    source, target = task.texts.source.vocabulary, task.texts.target.vocabulary
    read = torch.tensor([[target.eos, *tokens]], device=model.device)[:, :-1]
    with capture(model) as captured:
        model.decode(model.encode(batch["source"]), read)
    of_source = [source.words[number] for number in batch["source"][0].tolist()]
    written = [target.words[number] for number in tokens]
    given = [target.words[number] for number in read[0].tolist()]
    made: list[Exhibit] = []
    for part, kind, rows, columns in (
        ("decoder", "cross", written, of_source),
        ("encoder", "attention", of_source, of_source),
        ("decoder", "attention", given, given),
    ):
        names = [name for name in captured.names("tokens") if name.startswith(f"{part}.") and name.endswith(f".{kind}")]
        if names:
            pictures = {
                title: draw.weight_matrix(weights, rows, columns)
                for title, weights in _maps(captured, names[-1]).items()
                if weights.shape == (len(rows), len(columns))
            }
            if pictures:
                text = f"{names[-1]}: {batch['lines'][0]} — {found.text}"
                made.append(Exhibit(batch["ids"][0], pictures, text, note=WEIGHTS))
    return made or [_nothing(split, "this model's attentions give no weights")]


def _nothing(split: str, why: str) -> Exhibit:
    return Exhibit(split, {}, note=f"No attention is drawn for {split}: {why}.", heat=False)


def _maps(captured: Any, name: str) -> dict[str, Tensor]:
    """Titles and weights (N, M), the mean over heads; magnitudes where a mechanism's weights may be negative."""
    parts = captured.parts(name)
    whole = captured.weights(name)
    several = parts if len(parts) > 1 else {}
    return {title: weights[0].mean(0).abs() for title, weights in {**several, "attention": whole}.items()}


def _spread(task: TranslationTask, model: Translator, split: str, count: int) -> dict[str, Any]:
    """A batch of ``count`` sentences, spread evenly."""
    records = task.evaluation_records(split)
    places = [round(k * (len(records) - 1) / max(1, count - 1)) for k in range(min(count, len(records)))]
    return _on_device(task.collate([records[place] for place in places]), model)


def _fitting(task: TranslationTask, model: Translator, split: str) -> dict[str, Any] | None:
    """The batch of one sentence, of middle length among those that can be drawn; None if all are empty or too long."""
    records = task.evaluation_records(split)
    lengths = [int(task.corpus(split).lengths[place, 0]) for place in records.order]
    places = [place for place, length in enumerate(lengths) if 0 < length <= LONGEST]
    if not places:
        return None
    return _on_device(task.collate([records[places[len(places) // 2]]]), model)


def _on_device(batch: dict[str, Any], model: Translator) -> dict[str, Any]:
    return {key: value.to(model.device) if isinstance(value, Tensor) else value for key, value in batch.items()}
