"""``report.html``: a run in one self-contained file, without scripts and without a single outside resource."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from vlplatform import __version__
from vlplatform.engine.files import space_needed, write_whole
from vlplatform.engine.report import pictures, sections
from vlplatform.engine.report.curves import curves
from vlplatform.engine.report.read import read_run
from vlplatform.engine.report.text import escape
from vlplatform.errors import UserError
from vlplatform.interpret import CAPTION
from vlplatform.task import Exhibit

__all__ = ["write_report"]


def write_report(
    folder: Path,
    exhibits: Sequence[Exhibit],
    attention: Sequence[Exhibit],
    final: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``report.html`` into the run's folder from what the folder holds, and return its path.

    Read are ``settings.json``, ``environment.json``, ``metrics.jsonl``, ``timings.jsonl`` and ``metrics.json``;
    one that is missing or cut short is named on the page. An older report is replaced in one step.

    Args:
        folder: The run's folder.
        exhibits: Sample predictions beside the truth.
        attention: Pictures of attention.
        final: What ``metrics.json`` is going to hold, where the report is written before it.

    Raises:
        UserError: There is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"there is no run folder {folder}: give the folder that a training wrote.")
    run = read_run(folder)
    if final is not None:
        run.final = dict(final)
    uris = pictures.fitted([*exhibits, *attention])
    samples = pictures.figures(exhibits, uris)
    parts = {
        "Scores": sections.scores(run, exhibits),
        "Curves": curves(run),
        "Samples": pictures.legend(exhibits) + samples,
        "Attention": _attention(attention, uris[len(exhibits) :]),
        "Settings": sections.settings(run),
        "Environment": sections.environment(run),
        "Reproduce": sections.command(run),
    }
    parts = {name: content for name, content in parts.items() if content}
    here = files("vlplatform.engine.report")
    page = Template((here / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(run.name),
        style=(here / "page.css").read_text(encoding="utf-8"),
        header=sections.header(run),
        notes=sections.notes(run),
        links="".join(f'<a href="#{name.lower()}">{name}</a>' for name in parts),
        body="".join(
            f'<section id="{name.lower()}"><h2>{name}</h2>{content}</section>' for name, content in parts.items()
        ),
        version=escape(__version__),
    )
    path = folder / "report.html"
    with space_needed(folder):
        write_whole(path, page.encode())
    return path


def _attention(exhibits: Sequence[Exhibit], uris: Sequence[Sequence[str]]) -> str:
    """The exhibits, those that follow each other with the same note under that note."""
    parts: list[str] = []
    for note, group in itertools.groupby(zip(exhibits, uris), lambda pair: pair[0].note):
        together, rows = zip(*group)
        scale = SCALE if any(exhibit.heat for exhibit in together) else ""
        parts.append(f'<p class="honest">{escape(note or CAPTION)}</p>{scale}{pictures.figures(together, rows)}')
    return "".join(parts)


SCALE = '<p class="scale" aria-hidden="true"><span>least</span><i></i><span>most attention</span></p>'
