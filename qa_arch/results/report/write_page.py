"""The page as one file: template, figures, packed rows, and a limit on its size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from qa_arch.config.files import write_atomic
from qa_arch.errors import RunError, UnavailableError
from qa_arch.results.attention import ATTENTION, AttentionMap, read_attention
from qa_arch.results.mistakes import BOUNDARIES, NAMES
from qa_arch.results.pairwise import SPANS
from qa_arch.results.provenance import now, versions
from qa_arch.results.record import Runs
from qa_arch.results.report import pack
from qa_arch.results.report.collect import Collected, ScoredSet, collect
from qa_arch.results.report.language_runs import language_runs
from qa_arch.results.report.run_settings import run_settings
from qa_arch.results.report.single_file import single_file
from qa_arch.results.shareable import shareable
from qa_arch.results.systems import group_by_system, repeated
from qa_arch.types.text import QuestionSet

LIMIT = 30_000_000
"""Bytes of a page; rows of single questions are left out before it grows beyond."""
MAPS = 40
"""Attention maps of one run that a page holds."""
WITH_PATHS = ("runs", "groups", "settings", "problems", "leftOut", "pretraining")
"""What a page tells of runs; not the names in a set's breakdowns, which are the data's."""
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
    "attention.js",
    "pretraining.js",
    "main.js",
)


@dataclass(frozen=True)
class Report:
    """What was written, and what is not in it."""

    path: Path
    runs: int
    bytes: int
    left_out: tuple[str, ...]
    """Runs whose rows of single questions did not fit."""
    problems: tuple[str, ...]
    """What could not be used, one line each."""


def write_report(
    runs: Runs,
    out: str | Path,
    *,
    questions: QuestionSet | None = None,
    baseline: str | None = None,
    types: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
    named: Sequence[Path] = (),
    title: str | None = None,
    limit: int = LIMIT,
    problems: Sequence[str] = (),
) -> Report:
    """Write ``runs`` as one HTML page that needs nothing else, not even a network.

    ``questions`` are the texts of a set that runs were scored on, ``types`` classes of its questions by
    id, ``columns`` (keys of ``results.columns``) stand in the table beside the page's own. Where the page
    would exceed ``limit`` bytes, single questions are kept of the ``named`` run folders first, then of the
    best run of each system, then of the others, as far as they fit. ``problems`` are said on the page.
    Runs that select answers have no spans and are left out; pre-training runs have a section of their own.
    Raises RunError where there is nothing to show,
    UnavailableError without plotly.
    """
    if not runs:
        raise RunError("no runs to report; name a folder that holds run.json files")
    plotly = _plotly()
    problems = list(problems)
    pretraining = [run for run in runs if run[1].pretrains]
    runs, again = _once(_with_spans([run for run in runs if run not in pretraining], problems, pretraining))
    collected = collect(runs, questions=questions, baseline=baseline, types=types, columns=columns)
    problems = [*problems, *again, *collected.problems]
    value, packs = collected.value, {"plotly": pack.pack_bytes(plotly)}
    for number, scored in enumerate(collected.sets):
        packs |= _pack_set(number, scored)
    room = (limit - sum(map(len, packs.values()))) // 2  # the rest is for rows of single questions
    value["attention"] = _attention(runs, packs, problems, room=room)
    value |= _about([*runs, *pretraining], title, limit, problems)
    value["pretraining"] = language_runs(pretraining)
    value["settings"] = run_settings(runs)
    value["leftOut"] = []
    spare = limit - len(_page(value, packs)) - 200 * len(runs)
    left_out = _add_rows(collected, runs, packs, named, spare)
    value["leftOut"] = [str(runs[number][0]) for number in left_out]
    if left_out:
        value["notes"].append(
            f"Single questions of {len(left_out)} of {len(runs)} runs are not in this page (see About)."
        )
    page = _page(value, packs)
    path = write_atomic(out, page)
    return Report(path, len(runs) + len(pretraining), len(page), tuple(value["leftOut"]), tuple(problems))


def _with_spans(runs: Runs, problems: list[str], pretraining: Runs) -> Runs:
    with_spans = [run for run in runs if not run[1].selects]
    others = len(runs) - len(with_spans)
    if not with_spans and not pretraining:
        raise RunError("these runs select answers and have no spans to show; qa-arch tables compares them")
    if others:
        problems.append(f"{others} runs select answers and have no spans to show; see qa-arch tables")
    return with_spans


def _once(runs: Runs) -> tuple[Runs, list[str]]:
    """``runs`` without those that are another's again, and a line for each of these."""
    again = {
        folder: f"{folder}: seed {seed} of {group.label} is {first} again; left out"
        for group in group_by_system(runs)
        for folder, first, seed in repeated(group)
    }
    return [run for run in runs if run[0] not in again], list(again.values())


def _about(runs: Runs, title: str | None, limit: int, problems: Sequence[str]) -> dict[str, Any]:
    version = versions().get("qa-arch", "of an unknown version")
    names = list(dict.fromkeys(record.name for _, record in runs))
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    failed = sum(record.status != "ok" for _, record in runs)
    facts = [f"{len(runs):,} run{'s' if len(runs) > 1 else ''}"]
    facts += [f"{failed:,} of them not finished"] if failed else []
    return {
        "title": title or f"Runs of {shown}",
        "facts": f"{', '.join(facts)} · written {now()[:10]} by qa_arch {version}",
        "created": now(),
        "version": version,
        "limit": limit,
        "columns": [list(column) for column in pack.COLUMNS],
        "oddsUnit": pack.ODDS_UNIT,
        "f1Unit": pack.F1_UNIT,
        "outcomes": [[key, NAMES[key]] for key in pack.OUTCOMES],
        "boundaries": list(BOUNDARIES.items()),
        "spans": SPANS,
        "notes": [f"{len(problems)} things could not be used (see About)."] if problems else [],
        "problems": list(problems),
    }


def _pack_set(number: int, scored: ScoredSet) -> dict[str, str]:
    rows = next(iter(scored.rows.values()), None)
    if rows is None:
        return {}
    packs = {
        f"{number}-ids": pack.pack_json(list(rows.ids)),
        f"{number}-facets": pack.pack_levels([facet.level for facet in scored.breakdowns]),
    }
    if scored.questions is not None:
        packs[f"{number}-texts"] = pack.pack_texts(scored.questions)
    return packs


def _add_rows(
    collected: Collected, runs: Runs, packs: dict[str, str], named: Sequence[Path], spare: int
) -> list[int]:
    """Pack rows of single questions while they fit; the runs whose rows are left out, in order."""
    wanted = {path.resolve() for path in named}
    best: set[int] = set()
    groups = [run["group"] for run in collected.value["runs"]]
    for scored in collected.sets:
        ranked = sorted(scored.rows, key=lambda number: -float(scored.rows[number].f1.mean()))
        first = {groups[number]: number for number in reversed(ranked)}
        best |= set(first.values())
    left_out: set[int] = set()
    order = sorted(
        ((number, s) for s, scored in enumerate(collected.sets) for number in scored.rows),
        key=lambda pair: (runs[pair[0]][0].resolve() not in wanted, pair[0] not in best, pair[0]),
    )
    for number, s in order:
        packed = pack.pack_run(collected.sets[s].rows[number], collected.sets[s].mistakes[number])
        if len(packed) > spare:
            left_out.add(number)
            continue
        packs[f"{s}-run{number}"] = packed
        spare -= len(packed)
    return sorted(left_out)


def _attention(
    runs: Runs, packs: dict[str, str], problems: list[str], *, room: int
) -> dict[str, list[dict[str, Any]]]:
    """Pack at most ``MAPS`` maps a run, the newest first, while they fit into ``room`` bytes."""
    shown = {}
    for number, (folder, record) in enumerate(runs):
        try:
            stored = read_attention(folder)
        except RunError as error:
            problems.append(str(error))
            continue
        known = {facts.fingerprint for facts in record.data.values()}
        maps: list[dict[str, Any]] = []
        for item in reversed([item for item in stored if item.fingerprint in known][-MAPS:]):
            scaled = (item.weights.astype("float32") * 255).round().clip(0, 255).astype("uint8")
            packed = pack.pack_bytes(scaled.tobytes())
            if len(packed) > room:
                break
            room -= len(packed)
            packs[f"attention-{number}-{len(maps)}"] = packed
            maps.append(_map(item))
        if len(maps) < len(stored):
            problems.append(f"{folder / ATTENTION}: {_unused(stored, known, len(maps))}")
        if maps:
            shown[str(number)] = maps
    return shown


def _unused(stored: Sequence[AttentionMap], known: set[str | None], count: int) -> str:
    strange = sum(item.fingerprint not in known for item in stored)
    reasons = [f"{strange} maps are of questions that the run was not scored on"] if strange else []
    left = len(stored) - strange - count
    return "; ".join(reasons + ([f"the newest {count} maps are shown, {left} are left out"] if left else []))


def _map(item: AttentionMap) -> dict[str, Any]:
    return {
        "id": item.id,
        "labels": list(item.labels),
        "encoder": item.encoder,
        "context": item.context.tolist(),
        "question": item.question.tolist(),
    }


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
