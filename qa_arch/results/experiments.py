"""What ``experiments/*/tables.py`` is written with, a function a kind of table or figure, and how it is run.

An experiment's ``tables.py`` defines ``tables(folder)``, which returns its tables, and may define
``figures(folder)``, which draws its figures and returns their paths; ``folder`` is the experiment's own, with
the committed records in ``records/``. The file is code of the checkout and is executed: only that of an
experiment folder which was named (``qa-arch tables experiments/demo``, ``--all``), never one among records.

``records`` is a folder or glob below ``records/``, or a list of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

from qa_arch.config.check import suggest
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.metrics.error_analysis import Judged
from qa_arch.metrics.significance import Unit
from qa_arch.records import DEV, RECORD, RECORDS, TRAIN, Globs, RunRecord, Runs, recorded
from qa_arch.results import figures as draw
from qa_arch.results.columns import SPAN_COLUMNS, comparison, named
from qa_arch.results.comparisons import UNITS, against_baseline, compare, effects_table
from qa_arch.results.figures import SizePoint as SizePoint
from qa_arch.results.figures import SizeScores
from qa_arch.results.provenance import dev_access_note
from qa_arch.results.published import COUNTS as COUNTS
from qa_arch.results.published import DataSet as DataSet
from qa_arch.results.published import Published as Published
from qa_arch.results.published import PublishedRow as PublishedRow
from qa_arch.results.published import mean_metric
from qa_arch.results.published import published_vs_ours as published_vs_ours
from qa_arch.results.published import sets_table as sets_table
from qa_arch.results.questions import kind_name, load_questions, mistakes
from qa_arch.results.systems import System, find_system, group_by_system, labelled
from qa_arch.results.tables import Table, number, text

TABLES = "tables.py"
_SPAN_FIGURES = ("exact", "f1", "HasAns_f1", "NoAns_f1", "parameters")
"""Figures that every published row names to programs, whether or not they were published."""


def experiment_tables(folder: Path) -> list[Table]:
    """The tables of one experiment, without those for which nothing is recorded or published yet.

    Executes ``tables.py`` in the folder. Raises RunError where there are records and a table names others,
    ConfigError where the file cannot be executed or asks for what there is not.
    """
    with _naming(folder / TABLES):
        return [table for table in _script(folder).tables(folder) if table.rows]


def experiment_figures(folder: Path) -> list[Path]:
    """Draw the experiment's figures beside its table; those of which nothing is recorded are left out."""
    with _naming(folder / TABLES):
        made = getattr(_script(folder), "figures", lambda folder: ())(folder)
        return [path for paths in made for path in paths]


def _script(folder: Path) -> ModuleType:
    spec = spec_from_file_location(f"experiment_{folder.name}", folder / TABLES)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "tables"):
        raise ConfigError("defines no tables(folder); see qa_arch/results/experiments.py")
    return module


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of the checkout's own code name its file; errors of records have named theirs."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except QaArchError:
        raise
    except Exception as error:
        raise ConfigError(f"{path}: cannot be executed ({type(error).__name__}: {error})") from error


@dataclass(frozen=True)
class Wanted:
    """A row that is to be filled: ``command`` makes the run, ``model`` is the name in its record."""

    model: str
    command: str
    batch: int | None = None
    """Of the run; None: any."""

    @property
    def row(self) -> dict[str, Any]:
        return {"model": self.model} | ({} if self.batch is None else {"batch": self.batch})

    @property
    def note(self) -> str:
        name = self.model if self.batch is None else f"{self.model}, batch {self.batch}"
        return f"{name}: not run yet; `{self.command}` fills the row"


def _missing(wanted: Sequence[Wanted], runs: Runs) -> list[Wanted]:
    """The rows that no finished run fills."""
    done = [(record.model, record.batch.global_size) for _, record in runs if record.status == "ok"]
    filled = {(model, size) for model, batch in done for size in (batch, None)}
    return [row for row in wanted if (row.model, row.batch) not in filled]


def runs_table(
    folder: Path,
    title: str,
    *,
    columns: Sequence[str] = SPAN_COLUMNS,
    records: Globs = "**",
    split: str = DEV,
    published: Sequence[Published] = (),
    wanted: Sequence[Wanted] = (),
    notes: Sequence[str] = (),
    sort: Sequence[str] = (),
) -> Table:
    """One row a run, below published rows, above the ``wanted`` ones that no run fills yet.

    ``sort`` are columns that the runs are ordered by; otherwise they stand in the order of their folders.
    """
    runs, shown = recorded(folder, records), named(columns)
    named(sort, "sort")
    missing = _missing(wanted, runs)
    if runs:
        table = comparison(runs, split=split, title=title, columns=columns, also=sort, root=folder)
    elif any((folder / RECORDS).rglob(RECORD)) and not (published or missing):
        raise RunError(f"{folder / RECORDS}: no {RECORD} below '{records}'; commit the records first")
    else:
        table = Table(title, shown, [])
    in_our_rows = {row.model: row.figures for row in reversed(published) if row.in_our_rows}
    rows = [*table.rows, *(row.row for row in missing)]
    rows = [{**in_our_rows.get(row["model"], {}), **row} for row in rows]
    if sort:
        rows.sort(key=lambda row: _place(row, sort))
    own = [
        {"model": f"{row.model} (published)", **dict.fromkeys(_SPAN_FIGURES), **row.figures, "note": row.note}
        for row in published
        if not row.in_our_rows
    ]
    sources = dict.fromkeys(
        row.note if row.in_our_rows else f"{row.model}, published: {row.note}" for row in published
    )
    below = [*table.notes, *notes, *sources, *(row.note for row in missing), *_code_note(runs)]
    fingerprints = {record.fingerprint(split) for _, record in runs}
    if split == DEV and (note := dev_access_note(folder, fingerprints)):
        below.append(note)
    return replace(table, rows=[*own, *rows], notes=below)


def _place(row: Mapping[str, Any], keys: Sequence[str]) -> list[tuple[bool, Any]]:
    """What sorts the row by ``keys``: heuristics first, runs without a value last."""
    learned = "run" in row or "split" not in row
    values = [row.get(key) for key in keys]
    return [(learned, 0), *((value is None, 0 if value is None else value) for value in values)]


def _code_note(runs: Runs) -> list[str]:
    """What code made the runs, where it is not a single commit."""
    commits = Counter(record.commit[:7] for _, record in runs if record.commit)
    changed = sum(bool(record.dirty) for _, record in runs)
    if len(commits) < 2 and not changed:
        return []
    of_runs = ", ".join(f"{commit} ({count})" for commit, count in commits.most_common())
    tail = f"; {changed} of {len(runs)} with uncommitted changes beside it" if changed else ""
    return [f"code of the runs, by commit: {of_runs}{tail}"]


def _systems(folder: Path, records: Globs, split: str) -> list[System]:
    """The systems that were scored on the split, by their labels."""
    runs = [(folder / place, record) for place, record in recorded(folder, records) if split in record.scores]
    return sorted(group_by_system(runs), key=lambda system: system.label)


def baseline_table(
    folder: Path,
    title: str,
    baseline: str,
    *,
    records: Globs = "**",
    split: str = DEV,
    spans: bool = False,
    unit: Unit = "question",
    paired: bool = False,
) -> Table:
    """Every system tested against one of them; nothing before two systems are recorded.

    With ``spans`` F1 is compared on the answerable questions, where "no answer" is never allowed. ``unit`` is
    what is resampled beside the seeds. With ``paired`` each run was made of the baseline's of the same seed.
    """
    systems = _systems(folder, records, split)
    if len(systems) < 2:
        return Table(title, [], [])
    parent = find_system(systems, baseline)
    return against_baseline(systems, parent, split=split, spans=spans, unit=unit, paired=paired, title=title)


def pairwise_table(
    folder: Path,
    title: str,
    a: str,
    b: str,
    *,
    records: Globs = "**",
    split: str = DEV,
    unit: Unit = "question",
) -> Table:
    """System ``b`` against ``a``, by their labels: every measure, and F1 by kind of question; nothing before
    both are recorded."""
    systems = _systems(folder, records, split)
    if not {a, b} <= {system.label for system in systems}:
        return Table(title, [], [])
    result = compare(find_system(systems, a), find_system(systems, b), split=split, unit=unit)
    return effects_table(result, title)


DRAWBACKS = (
    text("model", "model"),
    number("parameters", "parameters"),
    number("peak_memory_mb", "peak MB"),
    number("epoch_seconds", "seconds an epoch"),
    number("cut", "questions cut"),
    number("extra", "extra windows, %"),
    number("boundary", "boundary errors, %"),
    number("not_answered", "not answered, %"),
    number("undue", "false answers, %"),
    text("worst", "worst kinds (right, %)"),
)
_DRAWBACK_NOTES = (
    "seconds an epoch: training alone; questions cut: longer than the encoder is given, over all splits;"
    " extra windows: those beyond one a question, on the scored set, where passages do not fit",
    "boundary errors: wrong spans that share words with a gold answer, of all answerable questions, as is"
    " not answered; false answers: of all unanswerable ones",
)
WORST, FEWEST = 2, 20
"""Kinds that are named, and questions that a kind must have to be named."""


def drawbacks_table(
    experiment: Path,
    title: str,
    *,
    records: Globs = "**",
    split: str = DEV,
    wanted: Sequence[Wanted] = (),
    notes: Sequence[str] = (),
) -> Table:
    """What the models of an ``experiment`` cost and where they fail, a row a system, the mean over its seeds,
    and a ``wanted`` one; RunError where runs do not compare.

    Figures of single questions are left out where a run has no rows of them.
    """
    runs = [(experiment / place, record) for place, record in recorded(experiment, records)]
    below: list[str] = []
    if runs:
        shown = ["model", "peak_memory_mb", "exact"]
        below += [*comparison(runs, split=split, columns=shown).notes, *_DRAWBACK_NOTES]
    missing = _missing(wanted, runs)
    rows = [{"model": system.label, **_drawbacks(system.runs, split)} for system in group_by_system(runs)]
    below += [*notes, *(row.note for row in missing)]
    return Table(title, DRAWBACKS, [*rows, *(row.row for row in missing)], below)


def _drawbacks(runs: Runs, split: str) -> dict[str, Any]:
    records = [record for _, record in runs]
    row: dict[str, Any] = {
        "parameters": _mean(record.parameters.total for record in records),
        "peak_memory_mb": _mean(record.peak_memory_mb for record in records),
        "epoch_seconds": _mean(_mean(epoch.train_seconds for epoch in record.epochs) for record in records),
        "cut": _mean(_cut(record) for record in records),
        "extra": _mean(_extra(record, split) for record in records),
        "runs": len(runs),
        "status": next((record.status for record in records if record.status != "ok"), "ok"),
    }
    judged = [question for folder, record in runs for question in _judged(folder, record, split)]
    return row | (_failures(judged) if judged else {})


def _failures(judged: Sequence[Judged]) -> dict[str, Any]:
    answerable = [row for row in judged if row.answerable]
    silent = ("wrong_abstention", "missed_answer", "unanswered")
    return {
        "boundary": _share(row.overlaps for row in answerable),
        "not_answered": _share(row.outcome in silent for row in answerable),
        "undue": _share(row.outcome == "undue_answer" for row in judged if not row.answerable),
        "worst": _worst(judged),
    }


def _worst(judged: Sequence[Judged]) -> str:
    """The kinds with the smallest shares of right answers; two where rows tell neither tag nor word."""
    tagged = any(row.kind for row in judged)
    kinds: dict[str, list[bool]] = {}
    for row in judged:
        name = kind_name(row) if tagged or row.answerable else "unanswerable"
        kinds.setdefault(name, []).append(row.outcome == "right")
    known = {name: 100 * fmean(right) for name, right in kinds.items() if len(right) >= FEWEST}
    return ", ".join(f"{name} {known[name]:.1f}" for name in sorted(known, key=known.__getitem__)[:WORST])


def _judged(folder: Path, record: RunRecord, split: str) -> Sequence[Judged]:
    """The questions of a run, of the kind they are tagged with or else of their question word."""
    try:
        rows = load_questions(folder, record, split)
    except RunError:
        return ()
    judged = mistakes(rows).judged
    if rows.word is None or any(rows.kind):
        return judged
    return [replace(row, kind=word) for row, word in zip(judged, rows.word, strict=True)]


def _cut(record: RunRecord) -> int | None:
    """Questions of which an end was cut off, over all splits."""
    known = [n for facts in record.data.values() if (n := facts.truncated_questions) is not None]
    return sum(known) if known else None


def _extra(record: RunRecord, split: str) -> float | None:
    """Windows beyond one a question, as a share of the questions in percent."""
    facts = record.facts(split)
    return 100 * (facts.windows / facts.questions - 1) if facts.windows and facts.questions else None


def _mean(values: Iterable[float | None]) -> Any:
    """The mean of the known values, the value itself where all are the same; None for none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return known[0] if len(set(known)) == 1 else fmean(known)


def _share(which: Iterable[bool]) -> float | None:
    flags = list(which)
    return 100 * sum(flags) / len(flags) if flags else None


def learning_curves(
    folder: Path, file: str, title: str, measures: Sequence[str], *, records: Globs = "**"
) -> Sequence[Path]:
    """``measures`` by epoch, a line a system."""
    for key in measures:
        if key not in draw.MEASURES:
            raise ConfigError(f"measures: unknown measure '{key}'{suggest(key, draw.MEASURES)}")
    runs = [run for run in recorded(folder, records) if run[1].epochs]
    return draw.curves_figure(runs, measures, title=title, path=folder / file) if runs else ()


def size_curves(
    folder: Path,
    file: str,
    title: str,
    sizes: Sequence[str],
    *,
    published: Sequence[SizePoint] = (),
    split: str = DEV,
) -> Sequence[Path]:
    """EM and F1 by the number of training questions, of the runs below ``sizes``; nothing for one size."""
    runs = [run for run in recorded(folder, sizes) if split in run[1].scores]
    ours = by_size(runs, split) if runs else []
    return draw.sizes_figure(ours, published, title=title, path=folder / file) if len(ours) > 1 else ()


def by_size(runs: Runs, split: str) -> list[SizeScores]:
    """The scores by number of training questions, in rising order; RunError for runs that do not compare."""
    comparison(runs, split=split, columns=["model"])
    by_questions: dict[int, list[RunRecord]] = {}
    for _, record in runs:
        questions = record.facts(TRAIN).questions
        if questions and record.compared_point(split):
            by_questions.setdefault(questions, []).append(record)
    return [
        SizeScores(
            questions,
            exact=mean_metric(records, split, "exact"),
            f1=mean_metric(records, split, "f1"),
            train_exact=mean_metric(records, TRAIN, "exact"),
        )
        for questions, records in sorted(by_questions.items())
    ]


def _drawn_table(
    folder: Path, title: str, columns: Sequence[str], records: Globs, split: str
) -> Table | None:
    """The runs that were scored on the split, named by their systems; None where there are none."""
    runs = [run for run in recorded(folder, records) if split in run[1].scores]
    if not runs:
        return None
    table = labelled(comparison(runs, split=split, columns=columns, root=folder), runs)
    return replace(table, title=title)


def dot_plot(
    folder: Path,
    file: str,
    title: str,
    columns: Sequence[str],
    *,
    records: Globs = "**",
    split: str = DEV,
) -> Sequence[Path]:
    """A panel a column, a line a system and a mark a run; the best of the first column on top.

    Heuristics without any of the figures are left out.
    """
    for column in named(columns):
        if column.mark is None:
            raise ConfigError(f"columns: '{column.key}' is no percentage, which a dot plot shows")
    table = _drawn_table(folder, title, ["model", *columns], records, split)
    if table is None:
        return ()
    rows = [row for row in table.rows if "run" in row or any(row.get(k) is not None for k in columns)]
    return draw.comparison_figure(replace(table, rows=rows), folder / file, measures=columns, by=columns[0])


def difference_plot(
    folder: Path,
    file: str,
    title: str,
    baseline: str,
    *,
    records: Globs = "**",
    split: str = DEV,
    unit: Unit = "question",
    names: Mapping[str, str] | None = None,
) -> Sequence[Path]:
    """Differences from a ``baseline`` in F1, and in F1 of the spans where "no answer" is never allowed, with
    their 95% intervals; nothing before two systems are recorded. ``names`` are what readers call them."""
    panels = {
        measure: baseline_table(folder, title, baseline, records=records, split=split, spans=spans, unit=unit)
        for measure, spans in (("F1", False), ("F1 of spans, never null", True))
    }
    if not all(table.rows for table in panels.values()):
        return ()
    caption = (
        f"Bars: 95% intervals over {UNITS[unit]} and seeds, not corrected for the number of comparisons."
        " Grey: zero lies inside, so the difference may be chance."
        f" Baseline: {(names or {}).get(baseline, baseline)}."
    )
    return draw.difference_figure(panels, folder / file, title=title, caption=caption, names=names)


def pareto_plot(
    folder: Path,
    file: str,
    title: str,
    *,
    costs: Sequence[str] = draw.COSTS,
    measures: Sequence[str] = ("exact", "f1"),
    records: Globs = "**",
    split: str = DEV,
    notes: Sequence[str] = (),
) -> Sequence[Path]:
    """``measures`` against ``costs`` (columns of runs), a point a run; nothing before a run was measured."""
    table = _drawn_table(folder, title, ["model", *measures, *costs, "engine", "read_in"], records, split)
    if table is None or not any(row.get("engine") for row in table.rows):
        return ()
    rows = [
        {**row, "model": f"{row['model']}, ONNX {row['read_in']}"} if row.get("engine") == "onnx" else row
        for row in table.rows
    ]
    table = replace(table, rows=rows, notes=[*table.notes, *notes])
    return draw.pareto_figure(table, folder / file, costs=costs, measures=measures)
