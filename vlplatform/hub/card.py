"""The model card: a README.md whose front matter hubs read and whose text people read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from vlplatform import __version__

HOW_TO_LOAD = """```python
import vlplatform

model = vlplatform.load("this folder, or its hub id")  # in evaluation mode, on the CPU
```

`vlp predict` applies it to your own files."""


def model_card(*, task: str, card: Mapping[str, Any]) -> str:
    """Front matter, scores, data and licence, settings, budget, citation, and how to load, as Markdown.

    ``card`` has the keys described in :func:`vlplatform.hub.save_model`; what is missing is said to be missing.
    """
    scores = dict(_rows(card.get("scores") or {}))
    parts = {
        "How to load": HOW_TO_LOAD,
        "Scores": _score_table(scores),
        "Data": _list(card.get("data") or {}),
        "Initial weights": str(card.get("initial_weights") or "Not stated."),
        "Licence of the weights": str(card.get("licence") or "Not stated by whoever saved the model."),
        "Settings": f"```json\n{json.dumps(card.get('settings') or {}, indent=2, default=str)}\n```",
        "Training budget": _list(card.get("budget") or {}),
        "Citation": "\n\n".join(f"```\n{text}\n```" for text in card.get("citation") or ()) or "Not stated.",
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in parts.items())
    head = f"A {task} model, saved by vlplatform {__version__} (weights in safetensors, settings in config.json)."
    return f"---\n{_front_matter(task, scores, card)}\n---\n\n# {task} model\n\n{head}\n\n{body}\n"


def _front_matter(task: str, scores: Mapping[str, float], card: Mapping[str, Any]) -> str:
    licence = str(card.get("licence") or "") or None
    # The hub takes identifiers such as apache-2.0; anything else goes under "other", with its name.
    known = licence is None or re.fullmatch(r"[a-z][a-z0-9]*([.-][a-z0-9]+)*", licence) is not None
    whole = {name: value for name, value in scores.items() if ": " not in name and math.isfinite(value)}
    data_name = _data_name(card)
    results = [
        EvalResult(
            task_type=task,
            dataset_type=re.sub(r"\W+", "-", data_name.lower()),
            dataset_name=data_name,
            metric_type=name,
            metric_value=round(value, 6),
        )
        for name, value in whole.items()
        if data_name
    ]
    data = ModelCardData(
        library_name="vlplatform",
        tags=["vlplatform", task],
        metrics=list(whole) or None,
        model_name=f"{task} model" if results else None,
        eval_results=results or None,
        license=licence if known else "other",
        license_name=None if known else licence,
    )
    return data.to_yaml()


def _data_name(card: Mapping[str, Any]) -> str:
    data = card.get("data")
    return str(data.get("name") or "") if isinstance(data, Mapping) else ""


def _rows(scores: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Scores flattened: ``{"iou": {"road": 0.9}}`` gives ``("iou: road", 0.9)``."""
    for name, value in scores.items():
        if isinstance(value, Mapping):
            yield from _rows(value, f"{prefix}{name}: ")
        else:
            yield f"{prefix}{name}", float(value)


def _score_table(scores: Mapping[str, float]) -> str:
    if not scores:
        return "None were given when the model was saved."
    lines = [f"| {_plain(name)} | {'–' if math.isnan(v) else f'{v:.4f}'} |" for name, v in scores.items()]
    return "\n".join(["| score | value |", "|---|---|", *lines])


def _list(facts: Any) -> str:
    if not facts:
        return "Not stated."
    if not isinstance(facts, Mapping):
        return str(facts)
    return "\n".join(f"- {_plain(str(name))}: {_plain(_inline(value))}" for name, value in facts.items())


def _inline(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _plain(text: str) -> str:
    """Text that stays in its cell and line."""
    return " ".join(text.split()).replace("|", "\\|")
