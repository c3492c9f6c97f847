"""The report as a single file: template, figures and packed question rows.

Question rows and texts are deflated and Base64-encoded JSON; the page's ``data.js`` unpacks them on demand.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from qa_arch.config.files import write_atomic
from qa_arch.errors import RunError, UnavailableError
from qa_arch.metrics.significance import Unit
from qa_arch.provenance import now, versions
from qa_arch.records import Runs
from qa_arch.results.errors import BOUNDARIES, OUTCOMES, Mistakes
from qa_arch.results.publish import shareable
from qa_arch.results.questions import Questions
from qa_arch.results.report.collect import collect, run_settings
from qa_arch.results.samples import MEASURES, MeasureName
from qa_arch.results.systems import group_by_system, repeated
from qa_arch.types.text import QuestionSet

log = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page"
WITH_PATHS = ("runs", "groups", "settings", "problems")
"""Parts of the page in which paths are shortened. Sets are left out: they have names from the data."""
SCRIPTS = (
    *("elements.js", "data.js", "state.js", "view_link.js", "tables.js", "charts.js", "seeds.js"),
    *("runs.js", "single_run.js", "figures.js", "errors.js", "questions.js", "main.js"),
)


@dataclass(frozen=True)
class Report:
    """A written page."""

    path: Path
    runs: int
    bytes: int
    problems: tuple[str, ...]
    """One line per run or file that could not be used."""


def write_report(
    runs: Runs,
    out: str | Path,
    *,
    questions: QuestionSet | None = None,
    baseline: str | None = None,
    measure: MeasureName = "f1",
    unit: Unit | None = None,
    types: Mapping[str, str] | None = None,
    problems: Sequence[str] = (),
) -> Report:
    """Write ``runs`` as one self-contained HTML page that works offline.

    ``questions`` are the texts of a set that runs were scored on, ``measure`` is the one that the page opens
    with (exact, f1 or spans), ``unit`` the sampling unit of intervals and tests (default: articles, if the
    set has several). ``types`` maps its question ids to classes. ``problems`` are listed on the page. Runs
    without spans (answer selection, pre-training) are left out. Raises RunError if there is nothing to show,
    UnavailableError without plotly.
    """
    plotly = _plotly()
    problems = list(problems)
    with_spans = [run for run in runs if not (run[1].pretrains or run[1].selects)]
    if not with_spans:
        raise RunError("no run with spans to report; qa-arch tables compares runs of other tasks")
    if others := len(runs) - len(with_spans):
        problems.append(f"runs without spans, for which see qa-arch tables: {others}")
    duplicates = {
        folder: f"{folder}: seed {seed} of {system.label} repeats {first}; left out"
        for system in group_by_system(with_spans)
        for folder, first, seed in repeated(system)
    }
    problems += duplicates.values()
    runs = [run for run in with_spans if run[0] not in duplicates]
    log.info("reading the records and questions of %d runs", len(runs))
    value, sets = collect(
        runs, questions=questions, baseline=baseline, unit=unit, types=types, problems=problems
    )
    packs = {"plotly": pack_bytes(plotly)}
    for number, scored in enumerate(sets):
        for rows in list(scored.rows.values())[:1]:  # all have the same questions
            packs[f"{number}-ids"] = pack_json(list(rows.ids))
            packs[f"{number}-facets"] = pack_bytes(b"".join(f.level.tobytes() for f in scored.breakdowns))
        if scored.questions is not None:
            packs[f"{number}-texts"] = pack_texts(scored.questions)
        for run, rows in scored.rows.items():
            packs[f"{number}-run{run}"] = pack_run(rows, scored.mistakes[run])
    failed = sum(record.status != "ok" for _, record in runs)
    facts = f"{len(runs):,} run{'s' if len(runs) > 1 else ''}"
    facts += f", {failed:,} of them not finished" if failed else ""
    version = versions().get("qa-arch", "of an unknown version")
    value |= {
        "title": f"Runs of {', '.join(list(dict.fromkeys(record.name for _, record in runs))[:3])}",
        "facts": f"{facts} · written {now()[:10]} by qa_arch {version}",
        "created": now(),
        "version": version,
        "outcomes": list(OUTCOMES.items()),
        "boundaries": list(BOUNDARIES.items()),
        "measure": measure,
        "spans": MEASURES["spans"],
        "notes": [f"Runs or files not used: {len(problems)} (see About)."] if problems else [],
        "problems": problems,
        "settings": run_settings(runs),
    }
    value |= {key: shareable(value[key]) for key in WITH_PATHS}
    page = single_file(
        "page.html", value["title"], styles=("style.css",), scripts=SCRIPTS, value=value, packs=packs
    )
    path = write_atomic(out, page)
    return Report(path, len(runs), len(page), tuple(problems))


def _plotly() -> bytes:
    """Source of plotly.js from the Python package, without importing it."""
    spec = util.find_spec("plotly")
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0]) / "package_data" / "plotly.min.js" if folders else None
    if path is None or not path.is_file():
        raise UnavailableError("reports are drawn by plotly.js: pip install 'qa-arch[report]'")
    return path.read_bytes()


def pack_run(rows: Questions, judged: Mistakes) -> str:
    """Span, null odds, scores and mistake of every question of one run, by column."""
    outcomes, boundaries = list(OUTCOMES), list(BOUNDARIES)
    odds = np.clip(rows.null_odds, -1e9, 1e9).tolist()  # JSON lacks infinity
    columns = {
        "start": rows.start.tolist(),
        "end": rows.end.tolist(),
        "odds": [None if np.isnan(value) else round(value, 2) for value in odds],
        "f1": rows.f1.round(4).tolist(),
        "exact": (rows.exact > 0).tolist(),
        "abstained": rows.abstained.tolist(),
        "outcome": [outcomes[index] for index in judged.outcome.tolist()],
        "boundary": [None if index < 0 else boundaries[index] for index in judged.boundary.tolist()],
        "overlaps": judged.overlaps.tolist(),
        "near": judged.near_miss.tolist(),
        "plausible": [None if np.isnan(value) else value == 1 for value in judged.plausible.tolist()],
    }
    return pack_json(columns)


def pack_texts(questions: QuestionSet) -> str:
    """Each passage once, and for every question: text, passage index, gold and plausible spans, title."""
    contexts: dict[str, int] = {}
    rows = [
        [
            example.question,
            contexts.setdefault(example.context, len(contexts)),
            sorted({(gold.start, gold.end) for gold in example.answers if gold.start >= 0}),
            sorted({(gold.start, gold.end) for gold in example.plausible if gold.start >= 0}),
            example.title,
        ]
        for example in questions.examples
    ]
    return pack_json({"contexts": list(contexts), "questions": rows})


def pack_json(value: Any) -> str:
    return pack_bytes(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def pack_bytes(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def single_file(
    template: str,
    title: str,
    *,
    styles: Sequence[str],
    scripts: Sequence[str],
    value: Mapping[str, Any],
    packs: Mapping[str, str],
    folder: Path = PAGE,
) -> bytes:
    """Fill the placeholders of the file ``template`` in one pass, so that no data is taken for one.

    ``template``, ``styles`` and ``scripts`` are files in ``folder`` or else in ``PAGE``. ``value`` becomes
    the page's ``DATA``, and ``packs`` are what it unpacks on demand, by name.
    """

    def text(name: str) -> str:
        own = folder / name
        return (own if own.is_file() else PAGE / name).read_text(encoding="utf-8")

    contents = {
        "title": html.escape(title),
        "style": "\n".join(map(text, styles)),
        "script": "\n".join(map(text, scripts)),
        "data": embed(value),
        "packs": "\n".join(
            f'<script type="text/plain" id="pack-{name}">{packed}</script>' for name, packed in packs.items()
        ),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: contents[match[1]], text(template)).encode("utf-8")


def embed(value: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
