"""The benchmark table as Markdown, from rows as they are kept, with the machine that measured them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.targets import TARGETS

Row = Mapping[str, Any]


def markdown(rows: Sequence[Row], machine: Mapping[str, Any]) -> str:
    """All that is known of the rows."""
    checkout = (machine["commit"] or "unknown")[:12] + (
        " with changes" if machine["uncommitted_changes"] else ""
    )
    lines = [
        "| row | what | against | measured | target | met | by CPU time | ours | peer | took | note |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
        "",
        f"{machine['processor']} ({machine['isa']}), {machine['cores']} cores, torch {machine['torch']} with "
        f"{machine['threads']} threads, load {machine['load'][0]} at the start and "
        f"{machine['load_after'][0]} at the end (one-minute averages); {machine['date']}, "
        f"commit {checkout}; the rows took {sum(row['seconds'] for row in rows) / 60:.1f} minutes. "
        "Ratios and times are medians of alternating runs; training rows sum over different batches.",
    ]
    return "\n".join(lines) + "\n"


def summary(results: Mapping[str, Any]) -> str:
    """Table for README.md from the content of ``table.json``: measured rows, and the other targets' names."""
    rows, machine = results["rows"], results["machine"]
    lines = ["| what | against | measured | target | met |", "|---|---|---:|---:|---|"]
    for row in rows:
        if row["ratio"] is not None:
            cells = (row["what"], row["peer"], _value(row), row["wanted"], _verdict(row) or "–")
            lines.append(f"| {' | '.join(cells)} |")
    measured = {row["name"] for row in rows if row["ratio"] is not None}
    missing = [target.name for target in TARGETS if target.name not in measured]
    lines += ["", f"{machine['processor']}, {machine['cores']} cores, {machine['date'][:10]}."]
    if missing:
        lines[-1] += f" Not measured there: {', '.join(f'`{name}`' for name in missing)}."
    return "\n".join(lines) + "\n"


def verdict(row: Row) -> str:
    """One line on a row."""
    if row["ratio"] is None:
        return row["note"]
    return f"{_value(row)} (wanted {row['wanted']}: {_verdict(row) or '-'})"


def _line(row: Row) -> str:
    ours, theirs = (
        "-" if row[side] is None else f"{1000 * row[side]['wall']:.0f} ms" for side in ("ours", "theirs")
    )
    cpu = "-" if row["cpu_ratio"] is None else f"{row['cpu_ratio']:.2f}"
    cells = (_value(row), row["wanted"], _verdict(row) or "-", cpu, ours, theirs, f"{row['seconds']:.0f} s")
    return f"| `{row['name']}` | {' | '.join((row['what'], row['peer'], *cells, row['note']))} |"


def _value(row: Row) -> str:
    return "-" if row["ratio"] is None else f"{row['ratio']:.2f} {row['unit']}".strip()


def _verdict(row: Row) -> str:
    """Empty for rows without a target and for rows that were not measured."""
    if row["reached"] is None or row["wanted"] == "reported":
        return ""
    return "yes" if row["reached"] else "**no**"
