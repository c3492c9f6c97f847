"""The tables and figures of ``experiments/``, built from committed records and published figures alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qa_arch.errors import RunError
from qa_arch.metrics.significance import RESAMPLES
from qa_arch.results.against import against_baseline
from qa_arch.results.beside import BesideSpec, beside
from qa_arch.results.compare import compare
from qa_arch.results.comparison import ALL_HEADINGS, Table, comparison
from qa_arch.results.drawbacks import drawbacks
from qa_arch.results.groups import Group, by_label, find_group, group_runs
from qa_arch.results.openings import opened_note
from qa_arch.results.record import RECORD, Runs, read_record
from qa_arch.results.render import markdown
from qa_arch.results.sides import effects_table
from qa_arch.results.spec import (
    COUNT_HEADINGS,
    AgainstSpec,
    AnyTable,
    DotsSpec,
    DrawbacksSpec,
    EffectsSpec,
    Globs,
    Published,
    SetSpec,
    SetsSpec,
    SizesSpec,
    TableSpec,
    Wanted,
    read_sheet,
)

RECORDS = "records"


def experiment_tables(folder: Path) -> list[Table]:
    """The tables of one experiment, less what nothing is recorded or published for yet.

    Raises RunError where there are records and a table names others.
    """
    made = (_made(folder, spec) for spec in read_sheet(folder).tables)
    return [table for table in made if table.rows]


def _made(folder: Path, spec: AnyTable) -> Table:
    if isinstance(spec, SetsSpec):
        return _sets(folder, spec)
    if isinstance(spec, BesideSpec):
        return beside(folder / RECORDS, spec)
    if isinstance(spec, DrawbacksSpec):
        return _drawbacks(folder.parent / spec.drawbacks, spec)
    if isinstance(spec, AgainstSpec):
        return _against(folder, spec)
    if isinstance(spec, EffectsSpec):
        return _effects(folder, spec)
    return _runs(folder, spec)


def experiment_figures(folder: Path) -> list[Path]:
    """Draw the experiment's figures beside its table; those of which nothing is recorded are left out."""
    from qa_arch.results.curves import curves_figure

    drawn: list[Path] = []
    for spec in read_sheet(folder).figures:
        if isinstance(spec, SizesSpec):
            drawn += _sizes(folder, spec)
            continue
        if isinstance(spec, DotsSpec):
            drawn += _dots(folder, spec)
            continue
        runs = _with_epochs(_recorded(folder, spec.records))
        if runs:
            drawn += curves_figure(runs, spec.measures, title=spec.title, path=folder / spec.file)
    return drawn


def fill(page: str, slug: str, tables: Sequence[Table]) -> str:
    """``page`` with an experiment's tables where it asks for them.

    The first stands between ``<!-- table: SLUG -->`` and ``<!-- end -->``, the second between
    ``<!-- table: SLUG 2 -->`` and the same, and so on.
    """
    for number, table in enumerate(tables, start=1):
        mark = f"table: {slug}" + (f" {number}" if number > 1 else "")
        page = fill_between(page, mark, markdown(table, titled=False))
    return page


def fill_between(page: str, mark: str, text: str) -> str:
    """``page`` with ``text`` between ``<!-- MARK -->`` and ``<!-- end -->``, wherever these stand."""
    begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
    pattern = re.escape(begin) + r".*?" + re.escape(end)
    return re.sub(pattern, lambda _: f"{begin}\n{text.strip()}\n\n{end}", page, flags=re.DOTALL)


def _sizes(folder: Path, spec: SizesSpec) -> list[Path]:
    """The figure, once there are two sizes to compare."""
    from qa_arch.results.sizes import by_size, sizes_figure

    every = [run for records in spec.sizes for run in _recorded(folder, records)]
    runs = [run for run in every if spec.split in run[1].scores]
    if not runs or len(by_size(runs, spec.split)) < 2:
        return []
    path = folder / spec.file
    return [*sizes_figure(runs, spec.published, split=spec.split, title=spec.title, path=path)]


def _dots(folder: Path, spec: DotsSpec) -> list[Path]:
    """The figure, once there is a run; heuristics without any of the measures are left out."""
    from qa_arch.results.plots import comparison_figure

    runs = [run for run in _recorded(folder, spec.records) if spec.split in run[1].scores]
    if not runs:
        return []
    table = by_label(comparison(runs, split=spec.split, columns=["model", *spec.dots]), runs)
    table = replace(table, title=spec.title)
    scored = [r for r in table.rows if "run" in r or any(r.get(key) is not None for key in spec.dots)]
    table = replace(table, rows=scored)
    return [*comparison_figure(table, folder / spec.file, measures=spec.dots, by=spec.dots[0])]


def _recorded(folder: Path, records: Globs) -> Runs:
    globs = [records] if isinstance(records, str) else records
    paths = {path for one in globs for path in (folder / RECORDS).glob(f"{one.rstrip('/')}/**/{RECORD}")}
    return [(path.parent.relative_to(folder), read_record(path)) for path in sorted(paths)]


def _with_epochs(runs: Runs) -> Runs:
    return [(folder, record) for folder, record in runs if record.epochs]


def _runs(folder: Path, spec: TableSpec) -> Table:
    runs = _recorded(folder, spec.records)
    missing = _missing(spec.wanted, runs)
    if runs:
        table = comparison(runs, split=spec.split, title=spec.title, columns=spec.columns)
    elif any((folder / RECORDS).rglob(RECORD)) and not (spec.published or missing):
        raise RunError(f"{folder / RECORDS}: no {RECORD} below '{spec.records}'; commit the records first")
    else:
        table = Table(spec.title, {key: ALL_HEADINGS[key] for key in spec.columns}, [])
    own = [row for row in spec.published if not row.beside]
    ours = [_beside(row, spec.published) for row in (*table.rows, *map(_empty, missing))]
    if spec.sort:
        ours.sort(key=lambda row: _place(row, spec.sort))
    rows = [*map(_published_row, own), *ours]
    told = dict.fromkeys(
        row.note if row.beside else f"{row.model}, published: {row.note}" for row in spec.published
    )
    notes = [*table.notes, *spec.notes, *told, *map(_to_be_run, missing)]
    fingerprints = {record.fingerprint(spec.split) for _, record in runs}
    if spec.split == "dev" and (opened := opened_note(folder, fingerprints)):
        notes.append(opened)
    return replace(table, rows=rows, notes=notes)


def _drawbacks(folder: Path, spec: DrawbacksSpec) -> Table:
    """The table of the experiment in ``folder``, with a row for each run that its own tables wait for."""
    runs = [(folder / place, record) for place, record in _recorded(folder, spec.records)]
    table = drawbacks(runs, split=spec.split, title=spec.title)
    wanted = [row for one in read_sheet(folder).tables for row in getattr(one, "wanted", [])]
    each = {row.model: replace(row, batch=None) for row in reversed(wanted)}  # of one batch size is enough
    missing = _missing(list(reversed(each.values())), runs)
    rows = [*table.rows, *map(_empty, missing)]
    return replace(table, rows=rows, notes=[*table.notes, *spec.notes, *map(_to_be_run, missing)])


def _against(folder: Path, spec: AgainstSpec) -> Table:
    """Nothing, before two systems are recorded."""
    groups = _groups(folder, spec)
    if len(groups) < 2:
        return Table(spec.title, {}, [])
    baseline = find_group(groups, spec.baseline)
    return replace(against_baseline(groups, baseline, split=spec.split, spans=spec.spans), title=spec.title)


def _effects(folder: Path, spec: EffectsSpec) -> Table:
    """Nothing, before both systems are recorded."""
    groups = _groups(folder, spec)
    if not set(spec.effects) <= {group.label for group in groups}:
        return Table(spec.title, {}, [])
    a, b = (find_group(groups, label) for label in spec.effects)
    return effects_table(compare(a, b, split=spec.split), RESAMPLES, spec.title)


def _groups(folder: Path, spec: AgainstSpec | EffectsSpec) -> list[Group]:
    """The systems that were scored on the split, by their labels."""
    runs = [(folder / place, record) for place, record in _recorded(folder, spec.records)]
    groups = group_runs([run for run in runs if spec.split in run[1].scores])
    return sorted(groups, key=lambda group: group.label)


def _missing(wanted: Sequence[Wanted], runs: Runs) -> list[Wanted]:
    """The rows that no finished run fills."""
    done = [(record.model, record.batch.global_size) for _, record in runs if record.status == "ok"]
    met = {(model, size) for model, batch in done for size in (batch, None)}
    return [row for row in wanted if (row.model, row.batch) not in met]


def _empty(row: Wanted) -> dict[str, Any]:
    return {"model": row.model} | ({} if row.batch is None else {"batch": row.batch})


def _to_be_run(row: Wanted) -> str:
    named = row.model if row.batch is None else f"{row.model}, batch {row.batch}"
    return f"{named}: not run yet; `{row.command}` fills the row"


def _place(row: Mapping[str, Any], keys: Sequence[str]) -> list[tuple[bool, Any]]:
    """What sorts the row by ``keys``: heuristics first, runs without a value last."""
    learned = "run" in row or "split" not in row
    return [(learned, 0)] + [
        (row.get(key) is None, row.get(key) if row.get(key) is not None else 0) for key in keys
    ]


def _published_row(row: Published) -> dict[str, Any]:
    return {"model": f"{row.model} (published)", **row.figures, "note": row.note}


def _beside(row: Mapping[str, Any], published: Sequence[Published]) -> dict[str, Any]:
    """``row`` with the figures that were published for its model on another task."""
    found = next((other for other in published if other.beside and other.model == row["model"]), None)
    figures = {} if found is None else {k: v for k, v in found.figures.items() if v is not None}
    return {**figures, **row}


def _sets(folder: Path, spec: SetsSpec) -> Table:
    """Published counts and ours, a row each; a set that was not counted says by which command it is."""
    rows: list[dict[str, Any]] = []
    notes = list(spec.notes)
    for one in spec.sets:
        if one.published:
            rows.append({"set": f"{one.name} (published)", **one.published})
        if not one.open:
            continue
        counted = _counted(folder, one)
        rows.append({"set": one.name, **{key: counted.get(key) for key in spec.columns}})
        if not counted:
            target = folder / RECORDS / one.file
            command = f"qa-arch stats --data {one.source or one.file} --json > {target.as_posix()}"
            notes.append(f"{one.name}: not counted here; `{command}` fills the row")
    return Table(spec.title, {"set": "set"} | {k: COUNT_HEADINGS[k] for k in spec.columns}, rows, notes)


def _counted(folder: Path, one: SetSpec) -> Mapping[str, Any]:
    path = folder / RECORDS / one.file
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path}: not what `qa-arch stats --json` prints ({error})") from error
