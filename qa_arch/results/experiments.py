"""What ``experiments/*/tables.py`` is written with: a function a kind of table or figure.

An experiment's ``tables.py`` defines ``tables(folder)``, which returns its tables, and may define
``figures(folder)``, which draws its figures and returns their paths; ``folder`` is the experiment's own, with
the committed records in ``records/``. The file is code of the checkout and is executed: only that of an
experiment folder which was named (``qa-arch tables experiments/demo``, ``--all``), never one among records.

``records`` is a folder or glob below ``records/``, or a list of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qa_arch.config.check import suggest
from qa_arch.errors import ConfigError, RunError
from qa_arch.metrics.significance import Unit
from qa_arch.results.baseline_table import baseline_table as against_baseline
from qa_arch.results.columns import Table, named, number, text
from qa_arch.results.comparison import SPAN_COLUMNS, comparison
from qa_arch.results.dev_access_log import dev_access_note
from qa_arch.results.difference_figure import difference_figure
from qa_arch.results.drawbacks import drawbacks
from qa_arch.results.effects import UNITS
from qa_arch.results.learning_curves import MEASURES, SizePoint, by_size, curves_figure, sizes_figure
from qa_arch.results.pairwise import compare, effects_table
from qa_arch.results.pareto import COSTS, pareto_figure
from qa_arch.results.plots import comparison_figure
from qa_arch.results.published_vs_ours import PublishedRow as PublishedRow
from qa_arch.results.published_vs_ours import published_vs_ours as published_vs_ours
from qa_arch.results.record import RECORD, RECORDS, Globs, Runs, recorded
from qa_arch.results.systems import System, find_system, group_by_system, labelled
from qa_arch.types.records import DEV

COUNTS = ("examples", "negatives", "articles", "articles_with_negatives")
"""What a table of data sets shows where nothing else is asked for."""
ALL_COUNTS = (*COUNTS, "questions", "answers", "question_words")


@dataclass(frozen=True)
class Published:
    """A row of somebody else's figures, by column; ``note`` says by which protocol they were measured.

    With ``in_our_rows`` they get no row of their own but stand in the rows of our ``model``, in columns that
    only published figures have: for figures measured on another task.
    """

    model: str
    figures: Mapping[str, float]
    note: str
    in_our_rows: bool = False

    def __post_init__(self) -> None:
        named(self.figures, f"{self.model}, published")


@dataclass(frozen=True)
class Wanted:
    """A row that is to be filled: ``command`` makes the run, ``model`` is the name in its record."""

    model: str
    command: str
    batch: int | None = None
    """Of the run; None: any."""


@dataclass(frozen=True)
class DataSet:
    """One data set: its published counts, and ours from ``records/<file>``, what ``qa-arch stats`` prints."""

    name: str
    file: str
    published: Mapping[str, int] = field(default_factory=dict)
    source: str | None = None
    """What ``--data`` must name, where that is not the file's own name."""
    open: bool = True
    """False for a set that nobody can count, as its questions are kept back."""


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
    rows = [_with_published(row, published) for row in (*table.rows, *map(_empty, missing))]
    if sort:
        rows.sort(key=lambda row: _place(row, sort))
    own = [_published_row(row) for row in published if not row.in_our_rows]
    sources = dict.fromkeys(
        row.note if row.in_our_rows else f"{row.model}, published: {row.note}" for row in published
    )
    below = [*table.notes, *notes, *sources, *map(_to_be_run, missing), *_code_note(runs)]
    fingerprints = {record.fingerprint(split) for _, record in runs}
    if split == DEV and (note := dev_access_note(folder, fingerprints)):
        below.append(note)
    return replace(table, rows=[*own, *rows], notes=below)


def _code_note(runs: Runs) -> list[str]:
    """What code made the runs, where it is not a single commit."""
    commits = Counter(record.commit[:7] for _, record in runs if record.commit)
    changed = sum(bool(record.dirty) for _, record in runs)
    if len(commits) < 2 and not changed:
        return []
    of_runs = ", ".join(f"{commit} ({count})" for commit, count in commits.most_common())
    tail = f"; {changed} of {len(runs)} with uncommitted changes beside it" if changed else ""
    return [f"code of the runs, by commit: {of_runs}{tail}"]


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
    table = against_baseline(systems, parent, split=split, spans=spans, unit=unit, paired=paired)
    return replace(table, title=title)


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


def drawbacks_table(
    experiment: Path,
    title: str,
    *,
    records: Globs = "**",
    split: str = DEV,
    wanted: Sequence[Wanted] = (),
    notes: Sequence[str] = (),
) -> Table:
    """What the models of an ``experiment`` cost and where they fail, a row a system and a ``wanted`` one."""
    runs = [(experiment / place, record) for place, record in recorded(experiment, records)]
    table, missing = drawbacks(runs, split=split, title=title), _missing(wanted, runs)
    rows = [*table.rows, *map(_empty, missing)]
    return replace(table, rows=rows, notes=[*table.notes, *notes, *map(_to_be_run, missing)])


def sets_table(
    folder: Path,
    title: str,
    sets: Sequence[DataSet],
    *,
    columns: Sequence[str] = COUNTS,
    notes: Sequence[str] = (),
) -> Table:
    """Published counts and ours, a row each; a set that was not counted says by which command it is."""
    for key in columns:
        if key not in ALL_COUNTS:
            raise ConfigError(f"columns: unknown count '{key}'{suggest(key, ALL_COUNTS)}")
    rows: list[dict[str, Any]] = []
    below = list(notes)
    for data in sets:
        if data.published:
            rows.append({"set": f"{data.name} (published)", **data.published})
        if not data.open:
            continue
        counts = _counts(folder, data)
        rows.append({"set": data.name, **{key: counts.get(key) for key in columns}})
        if not counts:
            target = folder / RECORDS / data.file
            command = f"qa-arch stats --data {data.source or data.file} --json > {target.as_posix()}"
            below.append(f"{data.name}: not counted here; `{command}` fills the row")
    shown = [text("set", "set"), *(number(key, key.replace("_", " ")) for key in columns)]
    return Table(title, shown, rows, below)


def learning_curves(
    folder: Path, file: str, title: str, measures: Sequence[str], *, records: Globs = "**"
) -> Sequence[Path]:
    """``measures`` by epoch, a line a system."""
    for key in measures:
        if key not in MEASURES:
            raise ConfigError(f"measures: unknown measure '{key}'{suggest(key, MEASURES)}")
    runs = [run for run in recorded(folder, records) if run[1].epochs]
    return curves_figure(runs, measures, title=title, path=folder / file) if runs else ()


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
    return sizes_figure(ours, published, title=title, path=folder / file) if len(ours) > 1 else ()


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
    runs = [run for run in recorded(folder, records) if split in run[1].scores]
    if not runs:
        return ()
    table = labelled(comparison(runs, split=split, columns=["model", *columns], root=folder), runs)
    rows = [row for row in table.rows if "run" in row or any(row.get(k) is not None for k in columns)]
    table = replace(table, title=title, rows=rows)
    return comparison_figure(table, folder / file, measures=columns, by=columns[0])


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
    return difference_figure(panels, folder / file, title=title, caption=caption, names=names)


def pareto_plot(
    folder: Path,
    file: str,
    title: str,
    *,
    costs: Sequence[str] = COSTS,
    measures: Sequence[str] = ("exact", "f1"),
    records: Globs = "**",
    split: str = DEV,
    notes: Sequence[str] = (),
) -> Sequence[Path]:
    """``measures`` against ``costs`` (columns of runs), a point a run; nothing before a run was measured."""
    named([*costs, *measures])
    runs = [run for run in recorded(folder, records) if split in run[1].scores]
    if not any(record.cost for _, record in runs):
        return ()
    shown = ["model", *measures, *costs, "engine", "read_in"]
    table = labelled(comparison(runs, split=split, columns=shown, root=folder), runs)
    rows = [{**row, "model": _with_engine(row)} for row in table.rows]
    table = replace(table, title=title, rows=rows, notes=[*table.notes, *notes])
    return pareto_figure(table, folder / file, costs=costs, measures=measures)


def _with_engine(row: Mapping[str, Any]) -> str:
    """The model's name, and where ONNX Runtime read it, that."""
    return f"{row['model']}, ONNX {row['read_in']}" if row.get("engine") == "onnx" else str(row["model"])


def _systems(folder: Path, records: Globs, split: str) -> list[System]:
    """The systems that were scored on the split, by their labels."""
    runs = [(folder / place, record) for place, record in recorded(folder, records)]
    systems = group_by_system([run for run in runs if split in run[1].scores])
    return sorted(systems, key=lambda system: system.label)


def _missing(wanted: Sequence[Wanted], runs: Runs) -> list[Wanted]:
    """The rows that no finished run fills."""
    done = [(record.model, record.batch.global_size) for _, record in runs if record.status == "ok"]
    filled = {(model, size) for model, batch in done for size in (batch, None)}
    return [row for row in wanted if (row.model, row.batch) not in filled]


def _empty(row: Wanted) -> dict[str, Any]:
    return {"model": row.model} | ({} if row.batch is None else {"batch": row.batch})


def _to_be_run(row: Wanted) -> str:
    name = row.model if row.batch is None else f"{row.model}, batch {row.batch}"
    return f"{name}: not run yet; `{row.command}` fills the row"


def _place(row: Mapping[str, Any], keys: Sequence[str]) -> list[tuple[bool, Any]]:
    """What sorts the row by ``keys``: heuristics first, runs without a value last."""
    learned = "run" in row or "split" not in row
    return [(learned, 0)] + [
        (row.get(key) is None, row.get(key) if row.get(key) is not None else 0) for key in keys
    ]


def _published_row(row: Published) -> dict[str, Any]:
    figures = dict.fromkeys(_SPAN_FIGURES) | dict(row.figures)
    return {"model": f"{row.model} (published)", **figures, "note": row.note}


_SPAN_FIGURES = ("exact", "f1", "HasAns_f1", "NoAns_f1", "parameters")
"""Figures that every published row names to programs, whether or not they were published."""


def _with_published(row: Mapping[str, Any], published: Sequence[Published]) -> dict[str, Any]:
    """``row`` with the figures that were published for its model on another task."""
    own = (other for other in published if other.in_our_rows and other.model == row["model"])
    figures = next((other.figures for other in own), {})
    return {**figures, **row}


def _counts(folder: Path, data: DataSet) -> Mapping[str, Any]:
    path = folder / RECORDS / data.file
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path}: not what `qa-arch stats --json` prints ({error})") from error
