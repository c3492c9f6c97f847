"""The report as one file: template, figures and packed rows of questions, within a limit on its size.

Rows of questions and texts are compressed bytes in Base64, which the page unpacks on demand. A column is
stored plane by plane (all first bytes, then all second bytes, ...), little-endian, which deflate shortens
well. The page's ``data.js`` reads exactly this.
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
import numpy.typing as npt

from qa_arch.config.files import write_atomic
from qa_arch.errors import RunError, UnavailableError
from qa_arch.metrics.error_analysis import Boundary, Judged, Outcome
from qa_arch.metrics.significance import Unit
from qa_arch.records import Runs
from qa_arch.results.provenance import now, versions
from qa_arch.results.publish import shareable
from qa_arch.results.questions import BOUNDARIES, NAMES, Mistakes, Questions, mistakes
from qa_arch.results.report.collect import ScoredSet, collect, run_settings
from qa_arch.results.samples import MEASURES, MeasureName
from qa_arch.results.systems import group_by_system, repeated
from qa_arch.types.text import QuestionSet

log = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page"
LIMIT = 30_000_000
"""Bytes of a page; rows of single questions are left out before it grows beyond."""
WITH_PATHS = ("runs", "groups", "settings", "problems", "leftOut")
"""The parts of a page about runs; not the names in a set's breakdowns, which are the data's."""
SCRIPTS = (
    "elements.js",
    "data.js",
    "state.js",
    "view_link.js",
    "tables.js",
    "charts.js",
    "seeds.js",
    "runs.js",
    "single_run.js",
    "figures.js",
    "errors.js",
    "questions.js",
    "main.js",
)
COLUMNS = (
    ("start", 4),
    ("length", 4),
    ("odds", 2),
    ("f1", 1),
    ("probability", 1),
    ("flags", 1),
    ("mistake", 1),
)
"""Name and bytes of each column of a run, in order."""
ODDS_UNIT = 0.01
"""Null odds are kept to this; beyond ±327 they are infinite to the page."""
F1_UNIT = 1 / 250
EXACT, ABSTAINED, NO_SPAN = 1, 2, 4
"""Flags of a question."""
OUTCOMES: tuple[Outcome, ...] = tuple(NAMES)
PLACES: tuple[Boundary | None, ...] = (None, *BOUNDARIES)
NEAR, PLAUSIBLE = 64, 128
"""A mistake is the place of its outcome, 8 times that of its boundary, and these."""


@dataclass(frozen=True)
class Report:
    """The page that was written, and the runs that are not in it."""

    path: Path
    runs: int
    bytes: int
    left_out: tuple[str, ...]
    """Runs whose rows of single questions did not fit."""
    problems: tuple[str, ...]
    """A line for each thing that could not be used."""


def write_report(
    runs: Runs,
    out: str | Path,
    *,
    questions: QuestionSet | None = None,
    baseline: str | None = None,
    measure: MeasureName = "f1",
    unit: Unit | None = None,
    types: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
    limit: int = LIMIT,
    problems: Sequence[str] = (),
) -> Report:
    """Write ``runs`` as one HTML page that needs nothing else, not even a network.

    ``questions`` are the texts of a set that runs were scored on, ``measure`` is what the page opens with
    (exact, f1 or spans), ``unit`` what intervals and tests are over (default: articles, where the set has
    several), ``types`` classes of its questions by id, ``columns`` (keys of ``results.columns``) stand in the
    table beside the page's own. Where the page would exceed ``limit`` bytes, single questions are kept of
    the best run of each system, then of the others, as far as they fit. ``problems`` are said on the page.
    Runs without spans (of answer selection, pre-training) are left out.
    Raises RunError where there is nothing to show, UnavailableError without plotly.
    """
    plotly = _plotly()
    problems = list(problems)
    with_spans = [run for run in runs if not (run[1].pretrains or run[1].selects)]
    if not with_spans:
        raise RunError("no run with spans to report; qa-arch tables compares runs of other tasks")
    if others := len(runs) - len(with_spans):
        problems.append(f"{others} runs have no spans to show; see qa-arch tables")
    again = {
        folder: f"{folder}: seed {seed} of {system.label} is {first} again; left out"
        for system in group_by_system(with_spans)
        for folder, first, seed in repeated(system)
    }
    problems += again.values()
    runs = [run for run in with_spans if run[0] not in again]
    log.info("reading the records and questions of %d runs", len(runs))
    value, sets = collect(
        runs,
        questions=questions,
        baseline=baseline,
        unit=unit,
        types=types,
        columns=columns,
        problems=problems,
    )
    packs = {"plotly": pack_bytes(plotly)}
    for number, scored in enumerate(sets):
        for rows in list(scored.rows.values())[:1]:  # all have the same questions
            packs[f"{number}-ids"] = pack_json(list(rows.ids))
            packs[f"{number}-facets"] = pack_bytes(b"".join(f.level.tobytes() for f in scored.breakdowns))
        if scored.questions is not None:
            packs[f"{number}-texts"] = pack_texts(scored.questions)
    failed = sum(record.status != "ok" for _, record in runs)
    facts = f"{len(runs):,} run{'s' if len(runs) > 1 else ''}"
    facts += f", {failed:,} of them not finished" if failed else ""
    version = versions().get("qa-arch", "of an unknown version")
    value |= {
        "title": f"Runs of {', '.join(list(dict.fromkeys(record.name for _, record in runs))[:3])}",
        "facts": f"{facts} · written {now()[:10]} by qa_arch {version}",
        "created": now(),
        "version": version,
        "limit": limit,
        "columns": [list(column) for column in COLUMNS],
        "oddsUnit": ODDS_UNIT,
        "f1Unit": F1_UNIT,
        "outcomes": [[key, NAMES[key]] for key in OUTCOMES],
        "boundaries": list(BOUNDARIES.items()),
        "measure": measure,
        "spans": MEASURES["spans"],
        "notes": [f"{len(problems)} things could not be used (see About)."] if problems else [],
        "problems": problems,
        "settings": run_settings(runs),
        "leftOut": [],
    }
    left_out = _add_rows(value, sets, packs, limit - len(_page(value, packs)) - 200 * len(runs))
    value["leftOut"] = [str(runs[number][0]) for number in left_out]
    if left_out:
        value["notes"].append(
            f"Single questions of {len(left_out)} of {len(runs)} runs are not in this page (see About)."
        )
    page = _page(value, packs)
    path = write_atomic(out, page)
    return Report(path, len(runs), len(page), tuple(value["leftOut"]), tuple(problems))


def _add_rows(
    value: Mapping[str, Any], sets: Sequence[ScoredSet], packs: dict[str, str], spare: int
) -> list[int]:
    """Pack rows of single questions while they fit; the runs whose rows are left out, in order."""
    best: set[int] = set()
    groups = [run["group"] for run in value["runs"]]
    for scored in sets:
        ranked = sorted(scored.rows, key=lambda number: -float(scored.rows[number].f1.mean()))
        first = {groups[number]: number for number in reversed(ranked)}
        best |= set(first.values())
    left_out: set[int] = set()
    order = sorted(
        ((number, s) for s, scored in enumerate(sets) for number in scored.rows),
        key=lambda pair: (pair[0] not in best, pair[0]),
    )
    for number, s in order:
        packed = pack_run(sets[s].rows[number], sets[s].mistakes[number])
        if len(packed) > spare:
            left_out.add(number)
            continue
        packs[f"{s}-run{number}"] = packed
        spare -= len(packed)
    return sorted(left_out)


def _page(value: Mapping[str, Any], packs: Mapping[str, str]) -> bytes:
    shown = {**value, **{key: shareable(value[key]) for key in WITH_PATHS}}
    return single_file(
        "page.html", value["title"], styles=("style.css",), scripts=SCRIPTS, value=shown, packs=packs
    )


def _plotly() -> bytes:
    """The source of plotly.js from the Python package, which itself is not imported."""
    spec = util.find_spec("plotly")
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0]) / "package_data" / "plotly.min.js" if folders else None
    if path is None or not path.is_file():
        raise UnavailableError("reports are drawn by plotly.js: pip install 'qa-arch[report]'")
    return path.read_bytes()


def pack_run(rows: Questions, judged: Mistakes | None = None) -> str:
    """Offsets, null odds, scores, flags and the mistake of every question of one run."""
    none = rows.start < 0
    odds = np.clip(np.round(rows.null_odds / ODDS_UNIT), -32767, 32767)
    odds = np.where(np.isnan(odds), -32768, odds)
    probability = np.zeros(len(rows)) if rows.probability is None else rows.probability
    flags = EXACT * (rows.exact > 0) + ABSTAINED * rows.abstained + NO_SPAN * none
    columns = {
        "start": np.where(none, 0, rows.start),
        "length": np.where(none, 0, rows.end - rows.start),
        "odds": odds.astype(np.int64) & 0xFFFF,
        "f1": (rows.f1 / F1_UNIT).round(),
        "probability": (np.clip(probability, 0, 1) * 255).round(),
        "flags": flags,
        "mistake": np.array([_mistake(row) for row in (judged or mistakes(rows)).judged], dtype=np.int64),
    }
    return pack_bytes(b"".join(planes(columns[name], width) for name, width in COLUMNS))


def pack_texts(questions: QuestionSet) -> str:
    """Passages once each, and of every question: text, passage, gold and plausible spans."""
    contexts: dict[str, int] = {}
    rows = [
        [
            example.question,
            contexts.setdefault(example.context, len(contexts)),
            sorted({(gold.start, gold.end) for gold in example.answers}),
            sorted({(gold.start, gold.end) for gold in example.plausible}),
            example.title,
        ]
        for example in questions.examples
    ]
    return pack_json({"contexts": list(contexts), "questions": rows})


def pack_json(value: Any) -> str:
    return pack_bytes(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def pack_bytes(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def _mistake(row: Judged) -> int:
    code = OUTCOMES.index(row.outcome) + 8 * PLACES.index(row.boundary)
    return code + NEAR * row.near_miss + PLAUSIBLE * (row.plausible is True)


def planes(values: npt.NDArray, width: int) -> bytes:
    """Whole numbers of ``width`` bytes, plane by plane, lowest first."""
    whole = np.asarray(values).astype(np.uint32)
    return b"".join(((whole >> (8 * byte)) & 0xFF).astype(np.uint8).tobytes() for byte in range(width))


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
    """The file ``template`` with its places filled, each once, so that no data is taken for a place.

    It, ``styles`` and ``scripts`` are files of ``folder`` or else of ``PAGE``, ``value`` is the page's
    ``DATA``, ``packs`` what it unpacks on demand (``pack``), by name.
    """

    def text(name: str) -> str:
        own = folder / name
        return (own if own.is_file() else PAGE / name).read_text(encoding="utf-8")

    places = {
        "title": html.escape(title),
        "style": "\n".join(map(text, styles)),
        "script": "\n".join(map(text, scripts)),
        "data": embed(value),
        "packs": "\n".join(
            f'<script type="text/plain" id="pack-{name}">{packed}</script>' for name, packed in packs.items()
        ),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: places[place[1]], text(template)).encode("utf-8")


def embed(value: Any) -> str:
    """JSON that can stand in a script element: no character of it can end the element or open a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
