"""The tables of ``experiments/``: what a ``table.yaml`` asks for, built from committed records alone.

An example, with everything but ``title`` optional; ``tables: [...]`` holds several such mappings:

    title: MiniLM on an eighth of SQuAD 2.0
    split: dev                     # or calibration
    records: v2                    # folder or glob below records/ (default: all)
    columns: [model, exact, f1, spans_f1]
    published:
      - {model: BERT-base, exact: 73.7, f1: 76.3, note: "all of train, all of dev, margin fitted on dev"}
    notes: [Both models saw the same 3 epochs.]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from qa_arch.config.check import read, suggest
from qa_arch.errors import ConfigError, RunError
from qa_arch.results.comparison import COLUMNS, HEADINGS, Table, comparison
from qa_arch.results.openings import openings_note, read_openings
from qa_arch.results.record import RECORD, read_record

SPEC = "table.yaml"
RECORDS = "records"


@dataclass(frozen=True)
class Published:
    """A row of somebody else's figures; ``note`` says by which protocol they were measured."""

    model: str
    note: str
    exact: float | None = None
    f1: float | None = None
    HasAns_f1: float | None = None
    NoAns_f1: float | None = None
    parameters: int | None = None


@dataclass(frozen=True)
class TableSpec:
    """One table of an experiment."""

    title: str
    split: Literal["dev", "calibration"] = "dev"
    records: str = "**"
    columns: list[str] = field(default_factory=lambda: list(COLUMNS))
    published: list[Published] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_specs(folder: Path) -> list[TableSpec]:
    """The tables that the folder's ``table.yaml`` asks for; ConfigError names the faulty setting."""
    import yaml  # type: ignore[import-untyped]

    path = folder / SPEC
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    several = isinstance(raw, Mapping) and set(raw) == {"tables"} and isinstance(raw["tables"], list)
    try:
        specs = [read(TableSpec, item) for item in (raw["tables"] if several else [raw])]
        for key in (key for spec in specs for key in spec.columns):
            if key not in HEADINGS:
                raise ConfigError(f"columns: unknown column '{key}'{suggest(key, HEADINGS)}")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return specs


def experiment_tables(folder: Path) -> list[Table]:
    """The tables of one experiment, made of its committed records and the published figures."""
    return [_table(folder, spec) for spec in read_specs(folder)]


def _table(folder: Path, spec: TableSpec) -> Table:
    paths = sorted((folder / RECORDS).glob(f"{spec.records.rstrip('/')}/**/{RECORD}"))
    if not paths:
        raise RunError(f"{folder / RECORDS}: no {RECORD} below '{spec.records}'; commit the records first")
    runs = [(path.parent.relative_to(folder), read_record(path)) for path in dict.fromkeys(paths)]
    table = comparison(runs, split=spec.split, title=spec.title, columns=spec.columns)
    rows = [*(_published_row(row) for row in spec.published), *table.rows]
    notes = [*table.notes, *spec.notes, *(f"{row.model}, published: {row.note}" for row in spec.published)]
    fingerprints = {record.data.get(spec.split, {}).get("fingerprint") for _, record in runs}
    openings = [opening for opening in read_openings(folder) if opening.fingerprint in fingerprints]
    if openings and spec.split == "dev":
        notes.append(openings_note(openings))
    return replace(table, rows=rows, notes=notes)


def _published_row(row: Published) -> dict[str, Any]:
    return {
        "model": f"{row.model} (published)",
        "exact": row.exact,
        "f1": row.f1,
        "HasAns_f1": row.HasAns_f1,
        "NoAns_f1": row.NoAns_f1,
        "parameters": row.parameters,
        "note": row.note,
    }


def fill(page: str, slug: str, table: str) -> str:
    """``page`` with ``table`` between ``<!-- table: SLUG -->`` and ``<!-- end -->``, wherever these stand."""
    begin, end = f"<!-- table: {slug} -->\n", "<!-- end -->"
    pattern = re.escape(begin) + r".*?" + re.escape(end)
    return re.sub(pattern, lambda _: f"{begin}\n{table.strip()}\n\n{end}", page, flags=re.DOTALL)
