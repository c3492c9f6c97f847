"""The comparison of runs: one row a run, with what its numbers were measured by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from qa_arch.config.checkpoints import CHECKPOINTS
from qa_arch.errors import RunError
from qa_arch.results.columns import Scored, Table, figures, named
from qa_arch.results.record import Runs
from qa_arch.types.records import (
    CALIBRATION,
    DEV,
    SELECTION,
    TRAIN,
    Measure,
    RunRecord,
    SplitFacts,
    is_language,
)

MEMORY = {
    "cuda": "peak memory: what was allocated on the first GPU",
    "cpu": "peak memory: the resident memory of the first process, libraries included",
}
"""What ``peak_memory_mb`` measures, by kind of device."""

SPAN_COLUMNS = ("model", "exact", "f1", "HasAns_f1", "NoAns_f1", "null_threshold", "parameters", "seconds")
SELECTION_COLUMNS = ("model", "accuracy", "mrr", "parameters", "seconds")
TYPE_COLUMNS = ("model", "accuracy", "main_accuracy", "mrr", "parameters", "seconds")
TOKEN_COLUMNS = ("model", "token_accuracy", "perplexity", "bits_per_byte")
SENTENCE_COLUMNS = ("sentence_accuracy", "sentence_f1")
"""What is shown where nothing else is asked for: of spans, answer selection, classes, and of pre-training,
without and with sentence tasks."""


def comparison(
    runs: Runs,
    *,
    split: str | None = None,
    title: str | None = None,
    columns: Sequence[str] | None = None,
    also: Collection[str] = (),
    root: Path | None = None,
) -> Table:
    """Runs beside each other, and beside the rows that need no learning where these were recorded.

    ``split`` defaults to dev, or calibration where no run was scored on dev. ``columns`` are shown (keys of
    ``results.columns``), ``also`` are computed for programs and for sorting. ``root`` is where the folders
    of ``runs`` count from. A run that did not finish keeps its row and says why. Runs scored on different
    data, under different protocols or with different versions of the metric are refused with RunError.
    """
    if not runs:
        raise RunError("no runs to compare; name a folder that holds run.json files")
    split = split or next((s for s in (DEV, CALIBRATION) if any(s in r.scores for _, r in runs)), DEV)
    measured = {measure: folder for folder, record in runs if (measure := record.measure(split))}
    if len(measured) > 1:
        places = ", ".join(str(folder) for folder in measured.values())
        raise RunError(
            f"runs scored on {len(measured)} different {split} sets, protocols or metric versions do not"
            f" compare ({places}); compare one kind at a time"
        )
    shown = named(columns or _usual(runs, split))
    requested = {column.key for column in shown} | set(also)
    scored = [Scored(r.model, split, r.compared_point(split), r, folder, root) for folder, r in runs]
    rows = [figures(row, requested) for row in (*_heuristics(runs, split), *scored)]
    return Table(
        title or f"{runs[0][1].name}: {split}",
        shown,
        rows,
        _notes(runs, split, {column.key for column in shown}),
    )


def _usual(runs: Runs, split: str) -> tuple[str, ...]:
    """The columns of runs like these, with the seed where a model comes several times."""
    points = [point for _, record in runs if (point := record.compared_point(split))]
    columns: tuple[str, ...] = SPAN_COLUMNS
    if any(point.protocol == SELECTION for point in points):
        columns = SELECTION_COLUMNS
    if any(is_language(point.protocol) for point in points):
        pairs = any(SENTENCE_COLUMNS[0] in point.metrics for point in points)
        columns = (*TOKEN_COLUMNS, *(SENTENCE_COLUMNS if pairs else ()), "parameters", "seconds")
    references = [p for _, record in runs for p in record.references.get(split, {}).values()]
    if any("main_accuracy" in point.metrics for point in (*points, *references)):
        columns = TYPE_COLUMNS
    if any(count > 1 for count in Counter(record.model for _, record in runs).values()):
        columns = (columns[0], "seed", *columns[1:])
    return columns


def by_measure(runs: Runs) -> list[list[tuple[Path, RunRecord]]]:
    """Runs grouped into tables: one for each experiment and each set that it was scored on.

    A run without scores stands beside the first of its experiment that was trained on the same set.
    Downloaded checkpoints are of no experiment: they stand in every table of the set they were scored on.
    """
    groups: dict[tuple[str, str, Measure | None], list[tuple[Path, RunRecord]]] = {}
    firsts: dict[tuple[str, Any], tuple[str, str, Measure | None]] = {}
    for folder, record in sorted(runs, key=lambda run: not run[1].scores):  # stable: scored runs first
        split = next((split for split in (DEV, CALIBRATION) if split in record.scores), "")
        key = record.name, split, record.measure(split)
        first = firsts.setdefault((record.name, record.fingerprint(TRAIN)), key)
        groups.setdefault(key if record.scores else first, []).append((folder, record))
    for key in [key for key in groups if key[0] == CHECKPOINTS]:
        hosts = [other for other in groups if other[0] != CHECKPOINTS and other[1:] == key[1:]]
        for host in hosts:
            groups[host] += groups[key]
        if hosts:
            del groups[key]
    return [groups[key] for key in sorted(groups, key=str)]


def _heuristics(runs: Runs, split: str) -> list[Scored]:
    """The heuristics, once: their scores depend on the data alone."""
    scored: Mapping[str, Any] = next((r.references[split] for _, r in runs if r.references.get(split)), {})
    return [Scored(name, split, point) for name, point in scored.items()]


def _notes(runs: Runs, split: str, shown: Collection[str]) -> list[str]:
    notes = []
    scored = next(((r, p) for _, r in runs if (p := r.compared_point(split))), None)
    if scored is not None:
        record, point = scored
        notes.append(_measured_on(record.facts(split), split, point.protocol))
        if point.protocol == "2.0" and {"f1", "exact"} & set(shown):
            notes.append(_fitted_on([r for _, r in runs if r.compared_point(split)]))
    if downloaded := [record.model for _, record in runs if record.name == CHECKPOINTS]:
        notes.append(
            f"{', '.join(dict.fromkeys(downloaded))}: downloaded; what it was trained on is not known,"
            " perhaps these articles too"
        )
    if "seconds" in shown:
        notes.append("seconds of training, without preparation and validation")
    if "peak_memory_mb" in shown:
        kinds = {record.device.kind for _, record in runs}
        notes += [note for kind, note in MEMORY.items() if kind in kinds]
    for folder, record in runs:
        compared = record.compared_point(split)
        if compared is not None and compared.overlap:
            shared = len(compared.overlap)
            notes.append(f"{folder}: scored although {shared} articles are also in its training data")
    return notes


def _fitted_on(records: Sequence[RunRecord]) -> str:
    """What the null thresholds were fitted on; where that differs, of which models."""
    models: dict[str, dict[str, None]] = {}
    for record in records:
        models.setdefault(_fit(record), {})[record.model] = None
    first, *others = models
    rest = "".join(f"; of {', '.join(models[fit])} on {fit}" for fit in others)
    return f"null threshold fitted on {first}{rest}"


def _fit(record: RunRecord) -> str:
    if record.threshold is None:
        return "nothing"
    prior = record.threshold.prior
    weighted = "" if prior is None else f", its unanswerable questions counted as {prior:.0%}"
    return f"{record.threshold.fitted_on}{weighted}"


def _measured_on(facts: SplitFacts, split: str, protocol: str) -> str:
    if is_language(protocol):
        tokens, blocks = facts.extra.get("tokens") or 0, facts.windows or 0
        return (
            f"{facts.name or split}: {tokens:,} tokens in {blocks:,} blocks; perplexity by predicted token,"
            " bits per byte of the text in UTF-8 (docs/pretraining.md)"
        )
    questions = f"{facts.name or split}: {facts.questions or 0:,} questions"
    if protocol == SELECTION:
        offered = f"{facts.candidates or 0:,.1f} candidates each on average"
        return f"{questions}, {offered}; where scores are equal the right candidate stands last"
    return f"{questions}, of them {facts.unanswerable or 0:,} unanswerable; official SQuAD {protocol} scores"
