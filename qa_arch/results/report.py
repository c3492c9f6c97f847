"""The report: runs, systems and scored sets as one HTML page, from the tables of the other commands.

``scored_sets`` collects what the runs were scored on; tables, figures (``results.plots``) and the details of
every run are rendered here. The page's own code sorts tables, switches systems on and off, and browses the
questions, whose rows are packed beside it.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from qa_arch.errors import RunError
from qa_arch.files import write_atomic
from qa_arch.metrics.significance import Unit
from qa_arch.provenance import now, versions
from qa_arch.records import (
    CALIBRATION,
    DEV,
    QUESTIONS,
    Measure,
    RunRecord,
    Runs,
    SplitFacts,
    questions_folder,
)
from qa_arch.results import effects, errors, plots
from qa_arch.results.columns import COLUMNS, notes_on, runs_table
from qa_arch.results.compare import effects_table, mean_row
from qa_arch.results.effects import FITTED, MEASURES, MeasureName, Missing, Sample, Samples
from qa_arch.results.errors import BOUNDARIES, OUTCOMES, Mistakes
from qa_arch.results.html import Mark, key_html, pack_bytes, pack_json, page_html, plotly_source, table_html
from qa_arch.results.plots import SIGNIFICANT, Shown, ShownRun
from qa_arch.results.publish import shareable
from qa_arch.results.systems import (
    Breakdown,
    Questions,
    System,
    breakdowns,
    differing,
    find_system,
    fingerprints,
    group_by_system,
    load_questions,
    repeated,
    whole_config,
)
from qa_arch.results.tables import Table, number, text
from qa_arch.terminal import counted
from qa_arch.types import QuestionSet

log = logging.getLogger(__name__)

_MEASURES: tuple[MeasureName, ...] = ("exact", "f1", "forced_f1")
"""Measures of the page; the last only if some questions have no answer."""
_SCORES = (*_MEASURES, "HasAns_f1", "NoAns_f1", "answerable_recall", "threshold_0_f1", "null_threshold")
_COSTS = (
    "batch",
    "strategy",
    "train_questions",
    "parameters",
    "seconds",
    "examples_per_second",
    "peak_memory_mb",
)
_CALIBRATION = ("ece", "ece_fitted", "answerable_ece", "auroc")
FROM_ROWS: tuple[MeasureName, ...] = ("forced_f1", "aurc")
"""Measures that records may lack."""
DRAWN = 6
"""Systems that are drawn when the page opens, the best first; the legend switches the others on."""
_PAIR = (text("name", "name"), text("value", "value"))


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

    ``questions`` are the texts of a set that runs were scored on, ``measure`` is the one that figures show
    (exact, f1 or forced_f1), ``unit`` the sampling unit of intervals and tests (default: articles, if the set
    has several). ``types`` maps its question ids to classes. ``problems`` are listed on the page. Runs
    without spans (answer selection, pre-training) are left out. A set without a system called ``baseline``,
    or with several, is not tested. Raises RunError if there is nothing to show or no set has the baseline,
    UnavailableError without plotly.
    """
    plotly, problems = plotly_source(), list(problems)
    runs = _reported(runs, problems)
    log.info("reading the records and questions of %s", counted(len(runs), "run"))
    sets = scored_sets(runs, questions, types, problems)
    systems = group_by_system(runs)
    references = _baselines(sets, systems, baseline, problems)
    systems = _best_first(systems, sets[0].split if sets else DEV)
    every = _shown([ShownRun(n, folder, record) for n, (folder, record) in enumerate(runs)], systems)
    unscored = [(folder, record) for folder, record in runs if not record.scores]
    parts = dict.fromkeys(("runs", "cost", "abstention", "calibration", "errors", "breakdowns"), "")
    for n, (scored, reference) in enumerate(zip(sets, references, strict=True)):
        scored.runs += [ShownRun(runs.index(run), *run) for run in unscored]
        sections = _sections(scored, _shown(scored.runs, systems), reference, measure, unit)
        for section, content in sections.items():
            # An id occurs once in a page: those of further sets get their number.
            content = content.replace('id="figure-', f'id="figure-{n}-') if n else content
            parts[section] += f'<div data-set="{n}"{" hidden" if n else ""}>{content}</div>'
    title = f"Runs of {', '.join(list(dict.fromkeys(record.name for _, record in runs))[:3])}"
    failed = sum(record.status != "ok" for _, record in runs)
    summary = counted(len(runs), "run") + (f", {failed:,} of them not finished" if failed else "")
    written = f"{now()[:10]} by qa_arch {versions().get('qa-arch', 'of an unknown version')}"
    parts |= {
        "facts": escape(f"{summary} · written {written}"),
        "sets": "".join(f'<option value="{n}">{escape(s.heading)}</option>' for n, s in enumerate(sets)),
        "legend": "".join(map(_legend_entry, every)),
        "details": _details(every, measure),
        "learning": plots.learning_figures(every, measure),
        "about": _about(sets, runs, problems, written),
    }
    packs = {"plotly": pack_bytes(plotly)} | _packs(sets)
    page = page_html(title, _page_value(sets, every), packs, parts)
    path = write_atomic(out, page)
    return Report(path, len(runs), len(page), tuple(problems))


def _page_value(sets: Sequence[ScoredSet], shown: Sequence[Shown]) -> dict[str, Any]:
    """What the page's own code knows of sets, runs and outcomes."""
    return {
        "sets": [_browsed(scored) for scored in sets],
        "runs": {
            run.number: {
                "label": run.label,
                "system": s.label,
                "place": s.place,
                "threshold": run.record.threshold.value if run.record.threshold else None,
                "adopted": run.record.adopted,
            }
            for s in shown
            for run in s.runs
        },
        "off": [s.label for s in shown[DRAWN:]],
        "outcomes": list(OUTCOMES.items()),
        "boundaries": list(BOUNDARIES.items()),
    }


def _reported(runs: Runs, problems: list[str]) -> list[tuple[Path, RunRecord]]:
    """Runs that find spans, each seed of a system once."""
    with_spans = [run for run in runs if run[1].finds_spans]
    if not with_spans:
        raise RunError("no run with spans to report; qa-arch tables compares runs of other tasks")
    if others := len(runs) - len(with_spans):
        problems.append(f"runs without spans, for which see qa-arch tables: {others}")
    duplicates = {
        folder: f"{folder}: {part} of {system.label} repeats {first}; left out"
        for system in group_by_system(with_spans)
        for folder, first, part in repeated(system)
    }
    problems += duplicates.values()
    return [run for run in with_spans if run[0] not in duplicates]


@dataclass(eq=False)
class ScoredSet:
    """A set that runs were scored on by one protocol and metric, so that their scores are comparable."""

    split: str
    measure: Measure
    facts: SplitFacts
    runs: list[ShownRun] = field(default_factory=list)
    breakdowns: list[Breakdown] = field(default_factory=list)
    questions: QuestionSet | None = None

    @property
    def rows(self) -> dict[ShownRun, Questions]:
        return {run: run.rows for run in self.runs if run.rows is not None}

    @property
    def title(self) -> str:
        """Name of its data, and the split if it differs."""
        return ", ".join(dict.fromkeys((self.facts.name or self.split, self.split)))

    @property
    def heading(self) -> str:
        return f"{self.title} (SQuAD {self.measure.protocol})"


def scored_sets(
    runs: Runs, questions: QuestionSet | None, types: Mapping[str, str] | None, problems: list[str]
) -> list[ScoredSet]:
    """The sets that ``runs`` were scored on: dev first, then those of most runs, calibration last.

    RunError if no run was scored on ``questions``, or ``types`` belong to other questions.
    """
    result: dict[tuple[str, Measure], ScoredSet] = {}
    for n, (folder, record) in enumerate(runs):
        for split in record.scores:
            measure = record.measure(split)
            if measure is None:
                continue
            scored = result.setdefault((split, measure), ScoredSet(split, measure, record.facts(split)))
            scored.runs.append(run := ShownRun(n, folder, record, split))
            if split == CALIBRATION:  # its rows are shown only if it is the only scored set: dev is held out
                rows = questions_folder(folder, CALIBRATION) / QUESTIONS
                if len(record.scores) > 1 or not rows.is_file():
                    continue
            try:
                run.rows = load_questions(folder, record, split)
            except RunError as error:
                problems.append(str(error))
    for scored in result.values():
        first = next(iter(scored.rows.values()), None)
        if first is None:
            continue
        for run, own in scored.rows.items():
            if own.ids != first.ids:
                problems.append(f"{run.folder}: its {scored.split} rows belong to other questions; left out")
                run.rows = None
        if questions is not None and questions.fingerprint == scored.measure.fingerprint:
            scored.questions = questions
        for run, own in scored.rows.items():
            run.mistakes = errors.mistakes(own, scored.questions)
        known = types if types and not types.keys().isdisjoint(first.ids) else None
        scored.breakdowns = breakdowns(first, scored.questions, known)
    if types and not any(item.key == "class" for scored in result.values() for item in scored.breakdowns):
        raise RunError("--types: the runs were scored on none of its questions")
    if questions is not None and all(scored.questions is None for scored in result.values()):
        raise RunError(
            f"--data: no run was scored on {questions.name} (hash {questions.fingerprint[:12]}); name the"
            " file that they were scored on, and the --language if it was not English"
        )
    return sorted(result.values(), key=lambda s: (s.split == CALIBRATION, s.split != DEV, -len(s.runs)))


def _best_first(systems: Sequence[System], split: str) -> list[System]:
    def mean(system: System) -> float:
        points = [record.compared_point(split) for _, record in system.runs]
        return float(np.mean([point.f1 or 0.0 for point in points if point] or [-1.0]))

    return sorted(systems, key=lambda system: -mean(system))


def _baselines(
    sets: Sequence[ScoredSet], systems: Sequence[System], name: str | None, problems: list[str]
) -> list[str | RunError | None]:
    """Label of each set's baseline; None if none is wanted, or why there is none."""
    labels: list[str | RunError | None] = []
    for scored in sets:
        folders = {run.folder for run in scored.runs}
        members = [s for s in systems if any(folder in folders for folder, _ in s.runs)]
        try:
            labels.append(shareable(find_system(members, name).label) if name else None)
        except RunError as error:
            labels.append(error)
            if scored.rows:
                problems.append(f"--baseline, on {scored.title}: {error}; not tested there")
    if name and all(isinstance(baseline, RunError) for baseline in labels):
        raise RunError(f"--baseline: {'; '.join(dict.fromkeys(map(str, labels))) or 'no run has scores'}")
    return labels


def _shown(runs: Sequence[ShownRun], systems: Sequence[System]) -> list[Shown]:
    """The systems with their ``runs``, which get their labels; the others are left out."""
    by_folder = {run.folder: run for run in runs}
    shown = [
        Shown(shareable(s.label), place, [by_folder[folder] for folder, _ in s.runs if folder in by_folder])
        for place, s in enumerate(systems)
    ]
    for system, s in zip(systems, shown, strict=True):
        for run in s.runs:
            run.label = f"{s.label}, seed {run.record.seed}" if len(system.runs) > 1 else s.label
    return [s for s in shown if s.runs]


def _html(table: Table, **options: Any) -> str:
    """The table as HTML, without paths of this machine; nothing without rows."""
    rows = [shareable(dict(row)) for row in table.rows]
    if not rows:
        return ""
    return table_html(replace(table, rows=rows, notes=shareable(list(table.notes))), **options)


def _sections(
    scored: ScoredSet,
    shown: Sequence[Shown],
    baseline: str | RunError | None,
    measure: MeasureName,
    unit: Unit | None,
) -> dict[str, str]:
    """HTML of every section that depends on the scored set."""
    measures = [name for name in _MEASURES if name != "forced_f1" or scored.facts.unanswerable]
    measure = measure if measure in measures else "f1"
    table = _fill_rows(scored, shown)
    tests, notes = _tests(scored, shown, baseline, sorted(measures, key=lambda name: name != measure), unit)
    better = {
        (row["model"], name)
        for name, tested in tests.items()
        for row in tested.rows
        if (row.get("delta") or 0) > 0 and row["p_holm"] < SIGNIFICANT
    }
    notes += [f"bold: better than {baseline}, corrected p < {SIGNIFICANT}"] if better else []
    measured = notes_on([(run.folder, run.record) for run in scored.runs], scored.split, _SCORES)
    notes = [*measured, *([FITTED] if scored.split == CALIBRATION else []), *notes]
    references = [row for row in table.rows if "run" not in row]
    costs, costs_note = plots.cost_figures(shown, measure)
    calibration = _html(_systems_table("Calibration", shown, (*_CALIBRATION, "aurc"), notes=[_CALIBRATED]))
    calibration = calibration if scored.rows else ""
    by_kind = plots.breakdown_figures(shown, scored.breakdowns, measure)
    mark: Mark = lambda row, column: "better" if (row["model"], column.key) in better else ""  # noqa: E731
    return {
        "runs": _html(_systems_table("Systems", shown, _SCORES, references, notes), sortable=True, mark=mark)
        + f"<details><summary>All {counted(len(scored.runs), 'run')}</summary>"
        + f"{_html(_all_runs(shown), sortable=True)}</details>"
        + f'<div class="figures">{plots.difference_figures(shown, tests, str(baseline))}</div>'
        + f"{''.join(f'<h3>{escape(t.title)}</h3>{_html(t)}' for t in tests.values())}",
        "cost": f'<div class="figures small">{costs}</div><p class="empty">{escape(costs_note)}</p>'
        + _html(_systems_table("Costs", shown, _COSTS, notes=[n for n in table.notes if n not in measured])),
        "abstention": f'<div class="figures">{plots.abstention_figures(shown, measure)}</div>',
        "calibration": f'<div class="figures">{plots.calibration_figures(shown)}</div>{calibration}',
        "errors": f"{plots.outcome_figure(shown)}{_html(_wrong_spans(scored, shown))}",
        "breakdowns": f'<div class="figures">{by_kind}</div>'
        + ("" if scored.questions else f'<p class="empty">{_NEEDS_TEXTS}</p>'),
    }


_CALIBRATED = (
    "ECE: mean gap between confidence and accuracy over ten bins, in percent; AURC: area under the"
    " risk-coverage curve, the mean risk over all coverages, in percent"
)
_NEEDS_TEXTS = "By question word, answer type and lengths: these need the texts, <code>--data FILE</code>"


def _fill_rows(scored: ScoredSet, shown: Sequence[Shown]) -> Table:
    """Give every run its row of the table of runs, which is returned."""
    runs = [run for s in shown for run in s.runs]
    keys = ("model", *_SCORES, *_COSTS, *(_CALIBRATION if scored.rows else ()))
    table = runs_table([(run.folder, run.record) for run in runs], split=scored.split, columns=keys)
    # The table keeps the order of the runs, below the heuristics.
    for run, row in zip(runs, [row for row in table.rows if "run" in row], strict=True):
        created = (run.record.created or "")[:16].replace("T", " ")
        run.row = {**row, "model": run.label, "href": f"run-{run.number}", "created": created}
        run.row["error"] = run.record.error
        sample = Sample([], [run.rows] if run.rows is not None else [])  # scores need no records
        for measure in FROM_ROWS:
            if sample.rows and (scores := sample.scores(measure)) is not None:
                run.row[measure] = float(np.nanmean(scores))  # NaN: spans of the unanswerable
    return table


def _systems_table(
    title: str,
    shown: Sequence[Shown],
    keys: Sequence[str],
    references: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> Table:
    """Columns of runs as means over the scored seeds of a system, below them the untrained heuristics."""
    rows: list[dict[str, Any]] = []
    missing: Missing = {}
    for s in shown:
        every = [run.row for run in s.runs]
        own = [run.row for run in s.runs if run.record.compared_point(run.split)] or every
        row: dict[str, Any] = {"model": s.label, "place": s.place, "seeds": len(own), "href": own[0]["href"]}
        row |= mean_row(own, keys, missing)
        row["status"] = next((r["status"] for r in every if r["status"] != "ok"), "ok")
        rows.append(row | {"error": next(filter(None, (r["error"] for r in every)), None)})
    for reference in references:
        scores = {f"{key}_mean": value for key in keys if (value := reference.get(key)) is not None}
        rows.append({"model": f"{reference['model']} (untrained heuristic)", "reference": True, **scores})
    columns = [text("model", "system"), number("seeds", "seeds")]
    heads = {key: COLUMNS[key].heading if key in COLUMNS else key.upper() for key in keys}
    columns += [COLUMNS[key] if key in _COSTS else effects.mean_column(key, heads[key]) for key in keys]
    if any(row.get("status", "ok") != "ok" for row in rows):
        columns.append(text("status", "status"))
    used = [c for c in columns if any(row.get((c.parts or (c.key,))[0]) is not None for row in rows)]
    return Table(title, used, rows, [*notes, *effects.missing_notes(missing, heads)])


def _all_runs(shown: Sequence[Shown]) -> Table:
    rows = [run.row | {"place": s.place} for s in shown for run in s.runs]
    columns = [
        text("model", "run of"),
        *(replace(COLUMNS[key], says_status=False) for key in (*_SCORES, *_COSTS)),  # which has a column
    ]
    columns += [text(key, key) for key in ("status", "created", "run")]
    return Table("Runs", [c for c in columns if any(row.get(c.key) is not None for row in rows)], rows)


def _tests(
    scored: ScoredSet,
    shown: Sequence[Shown],
    baseline: str | RunError | None,
    measures: Sequence[MeasureName],
    unit: Unit | None,
) -> tuple[dict[MeasureName, Table], list[str]]:
    """Tables of ``qa-arch compare`` by measure, or their intervals alone; and notes on what is missing."""
    rows = scored.rows
    runs = {s.label: [run for run in s.runs if run in rows] for s in shown}
    known = {
        label: Sample([run.record for run in own], [rows[run] for run in own])
        for label, own in runs.items()
        if own
    }
    if not known:
        return {}, []
    articles = effects.drawn_articles(list(rows.values()), unit, scored.questions)
    samples = Samples(scored.split, known, articles)
    what = f"{'comparing' if baseline in known else 'intervals of'} {counted(len(known), 'system')}"
    log.info("%s: %s over %ss", scored.title, what, samples.unit)
    notes = [f"not tested: {baseline}"] if isinstance(baseline, RunError) else []
    notes += (
        ["tests against one of the systems: qa-arch report … --baseline NAME"] if baseline is None else []
    )
    tables: dict[MeasureName, Table] = {}
    for measure in measures:
        with_measure = {label: s for label, s in known.items() if s.scores(measure) is not None}
        if lacking := samples.lacking(measure):
            notes.append(lacking)
        tested = baseline if isinstance(baseline, str) and baseline in with_measure else None
        tested = tested if len(with_measure) > 1 else None
        # Without tests EM would repeat the table of F1: either shows the intervals of both.
        if with_measure and samples.testable(samples.where(measure)) and (tested or measure != "exact"):
            own = replace(samples, systems=with_measure)
            what = f"every system against {tested}" if tested else "95% intervals"
            tables[measure] = effects_table(own, tested, measure, title=f"{MEASURES[measure]}: {what}")
    return tables, notes


def _wrong_spans(scored: ScoredSet, shown: Sequence[Shown]) -> Table:
    heads = {"wrong_span": "wrong spans", "overlapping": "boundary errors", "near_misses": "near misses"}
    heads |= BOUNDARIES | {"plausible": "plausible", "with_plausible": "could be plausible"}
    rows = []
    for s in shown:
        own = [run.mistakes.figures() for run in s.runs if run.mistakes is not None]
        flat = [{**f, **f["outcomes"], **f.get("boundaries", {})} for f in own]
        means = {key: np.mean([f[key] for f in flat]) for key in heads if flat and key in flat[0]}
        rows += [{"model": s.label, "place": s.place, "seeds": len(own), **means}] if own else []
    columns = [number(key, heading) for key, heading in heads.items() if any(row.get(key) for row in rows)]
    named = any(row.get("with_plausible") for row in rows)
    plausible = "; plausible: false answers that the data names as plausible ones" if named else ""
    notes = [
        "questions, of several seeds their mean; a boundary error shares words with a gold answer; a near"
        f" miss has F1 of 50 or more{plausible}",
        *([] if scored.questions else ["positions relative to the gold answer need the texts: --data FILE"]),
    ]
    return Table("Wrong spans", [text("model", "system"), number("seeds", "seeds"), *columns], rows, notes)


def _legend_entry(system: Shown) -> str:
    label, on = escape(system.label), str(system.place < DRAWN).lower()
    button = f'<button type="button" aria-pressed="{on}" data-system="{label}">'
    return f"<li>{button}{key_html(system.place)}<span>{label}</span></button></li>"


def _pairs(title: str, pairs: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> Table:
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return Table(title, _PAIR, [{"name": name, "value": str(value)} for name, value in items])


def _folded(table: Table) -> str:
    return f"<details><summary>{escape(table.title)}</summary>{_html(table)}</details>"


def _details(shown: Sequence[Shown], measure: MeasureName) -> str:
    """Settings in which systems differ; record, scores, curves and settings of every run."""
    unlike = differing([s.runs[0].record for s in shown])
    columns = [text("name", "setting"), *(text(str(n), s.label) for n, s in enumerate(shown))]
    rows = [
        {"name": key} | {str(n): str(v) for n, v in enumerate(own) if v is not None}
        for key, own in unlike.items()
    ]
    runs = [run for s in shown for run in s.runs]
    shared, own = _settings([run.record for run in runs])
    return (
        (_folded(Table("Settings in which systems differ", columns, rows)) if rows else "")
        + "".join(_run_details(run, settings, measure) for run, settings in zip(runs, own, strict=True))
        + _folded(_pairs(f"{len(shared)} settings, hashes of data and versions that all runs share", shared))
    )


def _run_details(run: ShownRun, settings: Mapping[str, str], measure: MeasureName) -> str:
    record, scores = run.record, errors.scores_table(run.record)
    error = [("error", record.error)] if record.error else []
    facts = [("status", record.status), *error, ("experiment", record.name)]
    facts += [("folder", str(run.folder)), *errors.run_facts(record), *errors.provenance(record)]
    again = ["qa-arch", "train", "--config-from", shareable(str(run.folder))]
    again += ["--folder", f"runs/again/{run.folder.resolve().name}"]
    command = f'<p class="empty">The same run again: <code>{escape(shlex.join(again))}</code></p>'
    status = f'<span class="told">{escape(record.status)}</span>'
    curves = plots.learning_figures([Shown(run.label, 0, [run])], measure, f"run-{run.number}-", height=210)
    return (
        f"<details><summary>{escape(run.label)} {status}</summary>"
        f'<div class="figures" id="run-{run.number}">'
        f"<div>{_html(replace(scores, title=f'{run.label}: scores')) if scores.rows else ''}"
        f"{curves}</div>"
        f"<div>{_html(_pairs(f'{run.label}: record', facts))}</div></div>"
        f"{_folded(_pairs(f'{run.label}: settings of its own', settings))}"
        f"{'' if record.adopted else command}</details>"
    )


def _settings(records: Sequence[RunRecord]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Settings, hashes of data and versions that all runs share, and the others run by run, as text."""

    def shown(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)

    per_run = [
        {key: shown(value) for key, value in whole_config(record).items()}
        | fingerprints(record)
        | {f"version of {name}": version for name, version in record.versions.items()}
        for record in records
    ]
    same = {key: v for key, v in per_run[0].items() if all(own.get(key) == v for own in per_run)}
    return same, [{key: v for key, v in own.items() if key not in same} for own in per_run]


def _about(sets: Sequence[ScoredSet], runs: Runs, problems: Sequence[str], written: str) -> str:
    facts = {
        "Written": written,
        "Runs": f"{len(runs)}; a system is all seeds of one configuration",
        "Drawn by": "plotly.js, MIT licence, part of this file",
        "Network": "nothing is loaded and nothing is sent",
    }
    for s in sets:
        texts = "included" if s.questions else "not included"
        facts[f"Set: {s.title}"] = (
            f"SQuAD {s.measure.protocol}, hash {s.measure.fingerprint[:12]}, texts {texts}"
        )
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    lines = "".join(f"<li>{escape(line)}</li>" for line in shareable(list(problems)))
    unused = f'<dt>Not usable</dt><dd><ul class="notes">{lines}</ul></dd>' if problems else ""
    return f'<dl class="about">{listed}{unused}</dl>'


def _browsed(scored: ScoredSet) -> dict[str, Any]:
    """What the question browser knows of a set before it unpacks the rows."""
    filters = []
    for facet in scored.breakdowns:
        count = np.bincount(facet.level, minlength=len(facet.names)).tolist()
        filters.append({"key": facet.key, "title": facet.title, "names": facet.names, "count": count})
    runs = [run.number for run in scored.rows]
    return {"runs": runs, "texts": scored.questions is not None, "facets": filters}


def _packs(sets: Sequence[ScoredSet]) -> dict[str, str]:
    """Question ids, levels of breakdowns, texts, and rows by run, of every set."""
    packs = {}
    for n, scored in enumerate(sets):
        for rows in list(scored.rows.values())[:1]:  # all have the same questions
            packs[f"{n}-ids"] = pack_json(list(rows.ids))
            packs[f"{n}-facets"] = pack_bytes(b"".join(f.level.tobytes() for f in scored.breakdowns))
        if scored.questions is not None:
            packs[f"{n}-texts"] = pack_texts(scored.questions)
        for run, rows in scored.rows.items():
            assert run.mistakes is not None, "judged with its rows"
            packs[f"{n}-run{run.number}"] = pack_run(rows, run.mistakes)
    return packs


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
