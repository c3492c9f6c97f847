"""Benchmark table as Markdown and JSON, with the machine it was measured on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.targets import TARGETS, Measurement, Target
from qa_arch.provenance import commit, now, processor, versions


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A target with its measurement, or the reason for its absence."""

    target: Target
    measured: Measurement | None
    reason: str = ""

    @property
    def reached(self) -> bool | None:
        return self.target.reached(self.measured.value) if self.measured else None

    def record(self) -> dict[str, Any]:
        """``ratio`` is in ``unit`` ("×" is a ratio to the peer); times are medians in seconds."""
        measured = self.measured
        return {
            "name": self.target.name,
            "ratio": measured.value if measured else None,
            "wanted": self.target.wanted,
            "reached": self.reached,
            "unit": self.target.unit,
            "what": self.target.what,
            "peer": self.target.peer,
            "cpu_ratio": measured.cpu_value if measured else None,
            "ours": asdict(measured.ours) if measured and measured.ours else None,
            "theirs": asdict(measured.theirs) if measured and measured.theirs else None,
            "note": measured.note if measured else f"not measured: {self.reason}",
        }


def describe_machine() -> dict[str, Any]:
    head, changed = commit()
    return {
        "processor": processor(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": versions()["python"],
        "load": [round(value, 2) for value in os.getloadavg()],
        "date": now(),
        "commit": head,
        "uncommitted_changes": changed,
    }


def markdown(rows: Sequence[TargetRow], machine: dict[str, Any]) -> str:
    checkout = (machine["commit"] or "unknown")[:12] + (
        " with changes" if machine["uncommitted_changes"] else ""
    )
    lines = [
        "| row | what | against | measured | target | met | by CPU time | ours | peer | note |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
        "",
        f"{machine['processor']} ({machine['isa']}), {machine['cores']} cores, torch {machine['torch']} with "
        f"{machine['threads']} threads, load {machine['load'][0]} at the start and "
        f"{machine['load_after'][0]} at the end (one-minute averages); {machine['date']}, "
        f"commit {checkout}. "
        "Ratios and times are medians of alternating runs; training rows sum over different batches.",
    ]
    return "\n".join(lines) + "\n"


def summary(results: dict[str, Any]) -> str:
    """Table for README.md from the content of ``table.json``: measured rows, and the other targets' names."""
    rows, machine = results["rows"], results["machine"]
    lines = ["| what | against | measured | target | met |", "|---|---|---:|---:|---|"]
    for row in rows:
        if row["ratio"] is not None:
            value = f"{row['ratio']:.2f} {row['unit']}".strip()
            verdict = "–" if row["wanted"] == "reported" else "yes" if row["reached"] else "**no**"
            lines.append(f"| {row['what']} | {row['peer']} | {value} | {row['wanted']} | {verdict} |")
    measured = {row["name"] for row in rows if row["ratio"] is not None}
    missing = [target.name for target in TARGETS if target.name not in measured]
    lines += ["", f"{machine['processor']}, {machine['cores']} cores, {machine['date'][:10]}."]
    if missing:
        lines[-1] += f" Not measured there: {', '.join(f'`{name}`' for name in missing)}."
    return "\n".join(lines) + "\n"


def _line(row: TargetRow) -> str:
    target, measured = row.target, row.measured
    if measured is None:
        cells = ["-", target.wanted, "-", "-", "-", "-", f"not measured: {row.reason}"]
    else:
        verdict = "-" if target.wanted == "reported" else "yes" if row.reached else "**no**"
        cpu = "-" if measured.cpu_value is None else f"{measured.cpu_value:.2f}"
        times = ["-" if t is None else f"{1000 * t.wall:.0f} ms" for t in (measured.ours, measured.theirs)]
        value = f"{measured.value:.2f} {target.unit}".strip()
        cells = [value, target.wanted, verdict, cpu, *times, measured.note]
    return f"| {' | '.join([f'`{target.name}`', target.what, target.peer, *cells])} |"
