"""Functions for ``experiments/*/tables.py``, one per kind of table or figure, and the execution of that file.

An experiment's ``tables.py`` defines ``tables(folder)``, which returns its tables, and may define
``figures(folder)``, which draws its figures and returns their paths; ``folder`` is the experiment's own, with
the committed records in ``records/``. Tables of a single experiment are built in its file. The file is code
of the checkout and is executed: only in an experiment folder that the user named (``qa-arch tables
experiments/demo``, ``--all``), never among records.

``records`` is a folder or glob below ``records/``, or a list of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from runpy import run_path
from typing import Any

from qa_arch.config.check import suggest
from qa_arch.config.files import read_json
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.provenance import dev_access_note
from qa_arch.records import DEV, RECORD, RECORDS, Globs, Runs, recorded
from qa_arch.results import figures
from qa_arch.results.columns import EPOCH, SPAN_COLUMNS, comparison, select_columns
from qa_arch.results.comparisons import against_baseline, compare
from qa_arch.results.samples import MEASURES, MeasureName
from qa_arch.results.systems import System, find_system, group_by_system, labelled
from qa_arch.results.tables import Table, number, text

TABLES = "tables.py"
_DRAWN: tuple[MeasureName, ...] = ("f1", "spans")
_SPAN_FIGURES = ("exact", "f1", "HasAns_f1", "NoAns_f1", "parameters")
"""Keys that every published row has in CSV and JSON, whether or not they were published."""


def experiment_tables(folder: Path) -> list[Table]:
    """Tables of one experiment, without those that have no recorded or published rows yet.

    Executes ``tables.py`` in the folder. Raises RunError if a table matches none of the existing records,
    ConfigError if the file cannot be executed or names something that does not exist.
    """
    with _errors_naming(folder / TABLES):
        return [table for table in _script(folder)["tables"](folder) if table.rows]


def experiment_figures(folder: Path) -> list[Path]:
    """Draw the experiment's figures in its folder, except those without records; return their paths."""
    with _errors_naming(folder / TABLES):
        drawn = _script(folder).get("figures", lambda folder: ())(folder)
        return [path for paths in drawn for path in paths]


def _script(folder: Path) -> Mapping[str, Any]:
    """Execute ``tables.py`` and return its namespace."""
    defined = run_path(str(folder / TABLES), run_name=f"experiment_{folder.name}")
    if "tables" not in defined:
        raise ConfigError("defines no tables(folder); see qa_arch/results/experiments.py")
    return defined


@contextmanager
def _errors_naming(path: Path) -> Iterator[None]:
    """Make errors of the executed file name its path; errors of records already name theirs."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except QaArchError:
        raise
    except Exception as error:
        raise ConfigError(f"{path}: cannot be executed ({type(error).__name__}: {error})") from error


@dataclass(frozen=True)
class Published:
    """A row of published scores by column; ``note`` states the protocol they were measured by.

    With ``in_our_rows`` they get no row of their own but appear in the rows of our ``model``, in columns for
    published scores only: for scores measured on another task.
    """

    model: str
    figures: Mapping[str, float]
    note: str
    in_our_rows: bool = False

    def __post_init__(self) -> None:
        select_columns(self.figures, f"{self.model}, published")


@dataclass(frozen=True)
class Wanted:
    """A row still to be filled: ``command`` makes the run, ``model`` is the name in its record."""

    model: str
    command: str
    batch: int | None = None
    """Global batch size of the run; None: any."""

    @property
    def row(self) -> dict[str, Any]:
        return {"model": self.model} | ({} if self.batch is None else {"batch": self.batch})

    @property
    def note(self) -> str:
        name = self.model if self.batch is None else f"{self.model}, batch {self.batch}"
        return f"{name}: not run yet; `{self.command}` fills the row"


def missing_rows(wanted: Sequence[Wanted], runs: Runs) -> list[Wanted]:
    """The rows that no finished run fills."""
    finished = [(record.model, record.batch.global_size) for _, record in runs if record.status == "ok"]
    filled = {(model, size) for model, batch in finished for size in (batch, None)}
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
    """Table with one row per run, below published rows and above ``wanted`` rows that no run fills yet.

    ``sort`` are columns to sort the runs by, heuristics first and runs without a value last; by default they
    are in the order of their folders.
    """
    runs, shown = recorded(folder, records), select_columns(columns)
    select_columns(sort, "sort")
    missing = missing_rows(wanted, runs)
    table = Table(title, shown, [])
    if runs:
        table = comparison(runs, split=split, title=title, columns=columns, also=sort, root=folder)
    elif any((folder / RECORDS).rglob(RECORD)) and not (published or missing):
        raise RunError(f"{folder / RECORDS}: no {RECORD} below {records!r}; commit the records first")
    in_our_rows = {row.model: row.figures for row in reversed(published) if row.in_our_rows}
    rows = [{**in_our_rows.get(row["model"], {}), **row} for row in (*table.rows, *(m.row for m in missing))]

    def sort_key(row: Mapping[str, Any]) -> list[tuple[bool, Any]]:
        is_run = "run" in row or "split" not in row
        values = [row.get(key) for key in sort]
        return [(is_run, 0), *((value is None, 0 if value is None else value) for value in values)]

    published_rows = [
        {"model": f"{row.model} (published)", **dict.fromkeys(_SPAN_FIGURES), **row.figures, "note": row.note}
        for row in published
        if not row.in_our_rows
    ]
    sources = dict.fromkeys(
        row.note if row.in_our_rows else f"{row.model}, published: {row.note}" for row in published
    )
    all_notes = [*table.notes, *notes, *sources, *(row.note for row in missing), *_code_note(runs)]
    fingerprints = {record.fingerprint(split) for _, record in runs}
    if split == DEV and (note := dev_access_note(folder, fingerprints)):
        all_notes.append(note)
    if sort:
        rows.sort(key=sort_key)
    return replace(table, rows=[*published_rows, *rows], notes=all_notes)


def _code_note(runs: Runs) -> list[str]:
    """Note on the commits that made the runs, unless it is a single clean one."""
    commits = Counter(record.commit[:7] for _, record in runs if record.commit)
    changed = sum(bool(record.dirty) for _, record in runs)
    if len(commits) < 2 and not changed:
        return []
    counts = ", ".join(f"{commit} ({count})" for commit, count in commits.most_common())
    tail = f"; {changed} of {len(runs)} with uncommitted changes" if changed else ""
    return [f"code of the runs, by commit: {counts}{tail}"]


def _systems(folder: Path, records: Globs, split: str) -> list[System]:
    """Systems that were scored on the split, sorted by label."""
    runs = [(folder / place, record) for place, record in recorded(folder, records) if split in record.scores]
    return sorted(group_by_system(runs), key=lambda system: system.label)


def baseline_table(
    folder: Path, title: str, baseline: str, *, records: Globs = "**", split: str = DEV, **options: Any
) -> Table:
    """Table of every system against one of them, empty until two are recorded. ``options`` are those of
    ``against_baseline``: ``measure``, ``unit``, ``paired``, ``order``, ``equivalence``."""
    systems = _systems(folder, records, split)
    if len(systems) < 2:
        return Table(title, [], [])
    parent = find_system(systems, baseline)
    return against_baseline(systems, parent, split=split, title=title, **options)


def pairwise_table(
    folder: Path, title: str, a: str, b: str, *, records: Globs = "**", split: str = DEV
) -> Table:
    """Table of system ``b`` against ``a``, by label: every measure, and F1 by kind of question; empty until
    both are recorded."""
    systems = _systems(folder, records, split)
    if not {a, b} <= {system.label for system in systems}:
        return Table(title, [], [])
    return compare(find_system(systems, a), find_system(systems, b), split=split, title=title)


def learning_curves(
    folder: Path, file: str, title: str, measures: Sequence[str], *, records: Globs = "**"
) -> Sequence[Path]:
    """Draw ``measures`` by epoch, one line per system."""
    for key in measures:
        if key not in EPOCH:
            raise ConfigError(f"measures: unknown measure '{key}'{suggest(key, EPOCH)}")
    runs = [run for run in recorded(folder, records) if run[1].epochs]
    if not runs:
        return ()
    for key in measures:
        if not any(epoch.value(key) is not None for _, record in runs for epoch in record.epochs):
            raise ConfigError(f"{title}: no run recorded '{key}'; leave it out of the figure")
    return figures.save_figure(lambda: figures.draw_curves(runs, measures, title), folder / file)


def drawn_table(
    folder: Path, title: str, columns: Sequence[str], records: Globs, split: str = DEV
) -> Table | None:
    """Table of the runs that were scored on the split, named by system; None if there are none."""
    runs = [run for run in recorded(folder, records) if split in run[1].scores]
    if not runs:
        return None
    table = labelled(comparison(runs, split=split, columns=columns, root=folder), runs)
    return replace(table, title=title)


def dot_plot(
    folder: Path, file: str, title: str, columns: Sequence[str], *, records: Globs = "**", split: str = DEV
) -> Sequence[Path]:
    """Draw one panel per column, one line per system and one mark per run; best of the first column on top.

    Heuristics without any of the values are left out.
    """
    for column in select_columns(columns):
        if column.mark is None:
            raise ConfigError(
                f"columns: '{column.key}' is not a percentage; a dot plot shows only percentages"
            )
    table = drawn_table(folder, title, ["model", *columns], records, split)
    if table is None:
        return ()
    rows = [row for row in table.rows if "run" in row or any(row.get(k) is not None for k in columns)]
    shown = replace(table, rows=rows)
    return figures.save_figure(lambda: figures.draw_dots(shown, columns), folder / file)


def difference_plot(
    folder: Path,
    file: str,
    title: str,
    baseline: str,
    *,
    names: Mapping[str, str],
) -> Sequence[Path]:
    """Draw differences from ``baseline`` in F1 and in answerable F1 (forced answer), with 95% intervals;
    nothing until two systems are recorded. ``names`` maps labels to display names."""
    panels = {
        MEASURES[measure]: baseline_table(folder, title, baseline, measure=measure) for measure in _DRAWN
    }
    if not all(table.rows for table in panels.values()):
        return ()
    caption = (
        "Bars: 95% intervals, not corrected for the number of comparisons. Grey: p is 0.05 or more after"
        " Holm's correction, so the difference may be chance."
        f" Baseline: {names.get(baseline, baseline)}."
    )
    return figures.save_figure(lambda: figures.draw_differences(panels, title, caption, names), folder / file)


COUNTS = ("examples", "negatives", "articles", "articles_with_negatives")
"""Default columns of a table of data sets."""


@dataclass(frozen=True)
class DataSet:
    """A data set: its published counts, and ours from ``records/<file>``, the output of ``qa-arch stats``."""

    name: str
    file: str | None
    """None for a set that cannot be counted because its questions are not public."""
    published: Mapping[str, int] = field(default_factory=dict)
    source: str | None = None
    """Source for ``--data``, if it is not the file's own name."""


def sets_table(
    folder: Path,
    title: str,
    sets: Sequence[DataSet],
    *,
    columns: Sequence[str] = COUNTS,
    notes: Sequence[str] = (),
) -> Table:
    """Table of published counts and ours, one row each; notes give the command for sets not counted yet."""
    rows: list[dict[str, Any]] = []
    all_notes = list(notes)
    for data in sets:
        if data.published:
            rows.append({"set": f"{data.name} (published)", **data.published})
        if data.file is None:
            continue
        path = folder / RECORDS / data.file
        counts = read_json(path, "it is what `qa-arch stats --json` prints") if path.is_file() else {}
        rows.append({"set": data.name, **{key: counts.get(key) for key in columns}})
        if not counts:
            command = f"qa-arch stats --data {data.source or data.file} --json > {path.as_posix()}"
            all_notes.append(f"{data.name}: not counted here; `{command}` fills the row")
    shown = [text("set", "set"), *(number(key, key.replace("_", " ")) for key in columns)]
    return Table(title, shown, rows, all_notes)
