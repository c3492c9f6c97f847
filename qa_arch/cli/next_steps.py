"""The commands that make sense after a training: look at the run, ask it, compare it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from qa_arch.config.schema import validate
from qa_arch.errors import QaArchError
from qa_arch.results.record import RECORD, read_record
from qa_arch.types.records import CALIBRATION, DEV, RunRecord

SIBLINGS = 20
"""Of the runs of the experiment those that are looked at, the newest first, for one to compare with."""


def next_steps(folders: Sequence[Path]) -> list[str]:
    """At most three commands, for runs of one experiment; none after a failure or a trial of a few steps."""
    records = {folder: read_record(folder) for folder in folders}
    done = {folder: record for folder, record in records.items() if record.status == "ok" and record.scores}
    if not done or any(validate(record.config).trainer.is_trial for record in done.values()):
        return []
    split = DEV if all(DEV in record.scores for record in done.values()) else CALIBRATION
    best = max(done, key=lambda folder: _f1(done[folder], split))
    shown = [] if split == DEV else ["--split", split]
    commands = [["show", str(best), *shown]]
    if not done[best].selects:
        commands.append(["ask", str(best)])
        if len(done) > 1:
            commands.append(["compare", str(best.parent), "--baseline", done[next(iter(done))].model, *shown])
        elif other := _sibling(best, done[best], split):
            commands.append(["compare", str(other), str(best), *shown])
    return [shlex.join(["qa-arch", *words]) for words in commands]


def _f1(record: RunRecord, split: str) -> float:
    point = record.compared_point(split)
    return float(point.f1 or 0.0) if point else 0.0


def _sibling(folder: Path, record: RunRecord, split: str) -> Path | None:
    """The newest other run of the experiment that was scored on the same questions by the same measure."""
    others = [path for path in folder.parent.glob(f"*/{RECORD}") if path.parent != folder]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[:SIBLINGS]:
        try:
            other = read_record(path)
        except QaArchError:
            continue
        if other.status == "ok" and other.measure(split) == record.measure(split) is not None:
            return path.parent
    return None
