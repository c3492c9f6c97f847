"""The table of runs: heading, computation and format of each column, and which runs are comparable.

Each figure of a run is defined once, in ``COLUMNS``, for the terminal, Markdown, LaTeX, CSV and JSON, the
report page, dot plots and sorting. ``runs_table`` builds the table: one row per run, and notes on how its
numbers were measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from qa_arch.config.check import suggest
from qa_arch.errors import ConfigError, RunError, one_line
from qa_arch.manifest import extras, leave_out
from qa_arch.metrics.abstention import Bools, Floats, answerable_probability, auroc, reliability
from qa_arch.provenance import PACKAGES
from qa_arch.records import (
    ADOPTED,
    CALIBRATION,
    CHECKPOINTS,
    DEV,
    ORACLE,
    THRESHOLD_0,
    TRAIN,
    Measure,
    Point,
    RunRecord,
    Runs,
    SplitFacts,
    is_squad,
)
from qa_arch.results.systems import Questions, group_by_system, load_questions, require_one_measure
from qa_arch.results.tables import Column, Table, two_decimals
from qa_arch.terminal import counted


@dataclass(frozen=True)
class Scored:
    """A run or heuristic on one split, the input of every column."""

    model: str
    split: str
    point: Point | None
    """The compared operating point; None if the split was not scored."""
    record: RunRecord | None = None
    """None for a heuristic."""
    folder: Path | None = None
    root: Path | None = None
    """Folder that ``folder`` is relative to, if not the working folder."""

    @cached_property
    def rows(self) -> Questions | None:
        """Question rows, read on first use; None if there are none."""
        if self.record is None or self.folder is None:
            return None
        try:
            return load_questions((self.root or Path()) / self.folder, self.record, self.split)
        except RunError:
            return None


def select_columns(keys: Iterable[str], where: str = "columns") -> list[Column]:
    """Columns of runs by key; ConfigError for an unknown one."""
    keys = list(keys)
    for key in keys:
        if key not in COLUMNS:
            raise ConfigError(f"{where}: unknown column '{key}'{suggest(key, COLUMNS)}")
    return [COLUMNS[key] for key in keys]


def row_of(scored: Scored, requested: Collection[str] = ()) -> dict[str, Any]:
    """Row of a run or heuristic: key -> value of every column that applies, costly ones if ``requested``."""
    return {
        key: column.value(scored)
        for key, column in COLUMNS.items()
        if column.value and column.applies(scored) and (key in requested or not column.on_request)
    }


def _is_run(scored: Scored) -> bool:
    return scored.record is not None


def is_score(key: str) -> bool:
    """Whether a column is measured on the scored set, and so has a spread over seeds."""
    return key not in COLUMNS or COLUMNS[key].applies is not _is_run  # AURC of the report is no column


def _is_scored_run(scored: Scored) -> bool:
    return scored.record is not None and scored.point is not None


def _has_spans(scored: Scored) -> bool:
    return scored.point is not None and is_squad(scored.point.protocol)


def _run(key: str, heading: str, value: Callable[[RunRecord], Any], **options: Any) -> Column:
    """Column of a run, independent of the scored set."""
    return Column(key, heading, lambda scored: value(scored.record), _is_run, **options)


def _efficiency(key: str, heading: str, value: Callable[[RunRecord], Any], **options: Any) -> Column:
    """Column of a run's size on disk and in memory or its latency, in tables that request it."""
    return _run(key, heading, value, on_request=True, **options)


def _spans(key: str, heading: str, metric: str | None = None, **options: Any) -> Column:
    """Column of a span score at the compared operating point, by its official key."""
    return Column(key, heading, lambda scored: scored.point.metric(metric or key), _has_spans, **options)


def score(key: str, heading: str, **options: Any) -> Column:
    """Column of a score under a protocol of an extra; absent if not measured."""

    def applies(scored: Scored) -> bool:
        point = scored.point
        return point is not None and not is_squad(point.protocol) and key in point.metrics

    return Column(key, heading, lambda scored: scored.point.metric(key), applies, **options)


def _rows(key: str, heading: str, value: Callable[[Questions], float | None], **options: Any) -> Column:
    """Column computed from question rows, in tables that request it."""

    def from_rows(scored: Scored) -> float | None:
        return None if scored.rows is None else value(scored.rows)

    return Column(key, heading, from_rows, _is_scored_run, on_request=True, **options)


def _f1_at(key: str, heading: str, name: str) -> Column:
    """Column of F1 at an operating point other than the compared one."""
    return Column(
        key, heading, lambda s: (point := s.record.point(s.split, name)) and point.f1, _is_scored_run
    )


def _encoder(record: RunRecord) -> str | None:
    """Pre-training run of the encoder, else its name, else its family."""
    if record.encoder and record.encoder.seed is not None:
        return f"{record.encoder.model}, seed {record.encoder.seed}"
    name, family = (record.setting("encoder", key) for key in ("name", "family"))
    return name if record.setting("encoder", "init") == "pretrained" else family and f"random {family}"


def _tflop(record: RunRecord) -> float | None:
    """Floating-point operations of training in units of 10^12; None for runs that did not count them."""
    counts = [epoch.flops for epoch in record.epochs if epoch.flops is not None]
    return sum(counts) / 1e12 if counts else None


def _cost(key: str) -> Callable[[RunRecord], Any]:
    return lambda record: record.cost and getattr(record.cost, key)


def _auroc(rows: Questions) -> float | None:
    value = auroc(-rows.null_odds, rows.answerable)  # null odds are low for what has an answer
    return None if value is None else 100 * value


def _answerable_ece(scored: Any) -> float | None:
    """ECE of the probability that a question is answerable, from the record's logistic function."""
    rows, fitted = scored.rows, scored.record.answerability
    if rows is None or fitted is None:
        return None
    return ece(answerable_probability(rows.null_odds, fitted.slope, fitted.intercept), rows.answerable)


def ece(confidence: Floats, score: Floats | Bools) -> float | None:
    """ECE of ``confidence`` in percent, scores above 0 being right; None if any score or every confidence is
    unknown."""
    # Single unknown confidences are in no bin; an unknown score would count as wrong.
    unknown = np.isnan(confidence).all() or np.isnan(score).any()
    return None if unknown else reliability(confidence, score > 0).ece


_SCORES = (
    Column("model", "model", lambda scored: scored.model, left=True),
    _run("seed", "seed", lambda record: record.seed, format=str),
    _run("status", "status", lambda record: record.status),
    Column("split", "split", lambda scored: scored.split, left=True),
    Column("run", "run", lambda scored: str(scored.folder), _is_run, left=True),
    _spans("exact", "EM", says_status=True, mark=("#0072B2", "o")),
    _spans("f1", "F1", mark=("#D55E00", "s")),
    _spans("HasAns_exact", "HasAns EM", mark=("#0072B2", "p")),
    _spans("HasAns_f1", "HasAns F1", mark=("#009E73", "^")),
    _spans("NoAns_exact", "NoAns EM", mark=("#D55E00", "h")),
    _spans("NoAns_f1", "NoAns F1", mark=("#CC79A7", "D")),
    _spans("recall", "recall", "token_recall"),
    _spans("precision", "precision", "token_precision"),
    _spans("answerable_ap", "AP, answerable", "pr_oracle_ap", mark=("#E69F00", "P")),
    _spans("answerable_precision", "answering precision", on_request=True),
    _spans("answerable_recall", "answering recall", on_request=True),
    Column("null_threshold", "null threshold", lambda s: s.point.threshold, _has_spans, format=two_decimals),
)
_FIGURES = (
    Column("protocol", "protocol", lambda s: s.point.protocol, lambda s: s.point is not None),
    _f1_at("threshold_0_f1", "F1 at threshold 0", THRESHOLD_0),
    _f1_at("oracle_f1", "F1 oracle", ORACLE),
    Column(
        "forced_f1",
        "answerable F1 (forced answer)",
        lambda scored: scored.record.forced_f1(scored.split),
        _is_scored_run,
        mark=("#56B4E9", "v"),
    ),
    _run("encoder", "encoder", _encoder, left=True, on_request=True),
    _run("parameters", "parameters", lambda record: record.parameters.total),
    _efficiency("nonzero", "not zero", lambda record: record.parameters.nonzero or record.parameters.total),
    _efficiency("weights_mb", "MB on disk", lambda r: r.weights_bytes and r.weights_bytes / 1e6),
    _efficiency("engine", "engine", _cost("engine")),
    _efficiency("read_in", "read in", _cost("precision")),
    _efficiency("latency_ms", "ms per question", _cost("latency_ms")),
    _efficiency("latency_ratio", "× latency", _cost("latency_ratio"), format=two_decimals),
    _efficiency("memory_mb", "MiB in memory", _cost("memory_mb")),
    _efficiency("memory_ratio", "× memory", _cost("memory_ratio"), format=two_decimals),
    _run("train_questions", "training questions", lambda record: record.facts(TRAIN).questions),
    _run("epochs", "epochs", lambda record: len(record.epochs) or None),
    _run("seconds", "seconds", lambda record: record.seconds.fit),
    _run("predict_seconds", "seconds to predict", lambda record: record.seconds.predict),
    _run("batch", "global batch", lambda record: record.batch.global_size),
    _run("micro", "micro batch", lambda record: record.batch.micro),
    _run("accumulate", "accumulated", lambda record: record.batch.accumulate),
    _run("devices", "devices", lambda record: record.batch.devices),
    _run("strategy", "strategy", lambda record: record.strategy),
    _run("arithmetic", "computed in", lambda r: r.precision or r.setting("trainer", "precision")),
    _run("steps", "optimizer steps", lambda r: r.epochs[-1].step if r.epochs else None),
    _efficiency("train_tflop", "training TFLOP", _tflop, format=two_decimals),
    _run("examples_per_second", "windows/s", lambda record: record.examples_per_second),
    _run("peak_memory_mb", "peak MiB", lambda record: record.peak_memory_mb),
    _rows("auroc", "AUROC, answerable", _auroc, mark=("#0072B2", "X")),
    _rows("ece", "ECE, spans", lambda rows: ece(rows.probability, rows.span_exact), mark=("#D55E00", "d")),
    _rows("ece_fitted", "ECE, fitted", lambda rows: ece(rows.confidence, rows.exact), mark=("#009E73", "d")),
    Column("answerable_ece", "ECE, answerable", _answerable_ece, _is_scored_run, on_request=True),
)


_EPOCH = {
    "train_loss": "training loss",
    "train_labels": "loss of labels",
    "train_soft_targets": "loss of soft targets",
    "calibration_loss": "calibration loss",
    "calibration_exact": "calibration EM",
    "calibration_f1": "calibration F1",
    "calibration_threshold_0_f1": "calibration F1 at threshold 0",
    "calibration_forced_f1": "calibration answerable F1 (forced answer)",
    "train_seconds": "seconds of training",
    "windows_per_second": "windows per second",
}
"""Headings of the values recorded per epoch."""
Described = Callable[[SplitFacts], tuple[str, str]]
"""Size of a set that was scored under a protocol, and the note on its scores below a table."""


def _all_columns() -> tuple[dict[str, Column], dict[str, Described], dict[str, str]]:
    """Columns, protocols and headings of epochs, of the core and of all extras."""
    columns = {column.key: column for column in (*_SCORES, *_FIGURES)}
    added, protocols, epoch = dict[str, Column](), dict[str, Described](), dict(_EPOCH)
    for module in (extra.columns for extra in extras() if extra.columns):
        try:
            loaded = import_module(module)
            for column in loaded.COLUMNS:
                if column.key in {*columns, *added}:
                    leave_out(f"{module}: column '{column.key}' already exists")
                else:
                    added[column.key] = column
            protocols |= getattr(loaded, "PROTOCOLS", {})
            epoch |= getattr(loaded, "EPOCH", {})
        except Exception as error:  # whatever another package raises, the message names its module
            leave_out(f"{module}: cannot be loaded ({type(error).__name__}: {one_line(error)})")
    # They move to the end only here: no column of an extra may take their keys either.
    figures = {column.key: columns.pop(column.key) for column in _FIGURES}
    return columns | added | figures, protocols, epoch


COLUMNS, PROTOCOLS, EPOCH = _all_columns()
"""Every column of runs by key, in the order of CSV and JSON: scores, then those of extras, then figures; the
protocols of extras, without what a record appends after a colon; and the headings of an epoch's values."""


def described(facts: SplitFacts, protocol: str | None) -> tuple[str, str] | None:
    """Size of a set and note on its scores, under the protocol of an extra; None under SQuAD's."""
    if is_squad(protocol):
        return None
    describe = PROTOCOLS.get(str(protocol).partition(":")[0])
    return (f"protocol {protocol}", "") if describe is None else describe(facts)


MEMORY = {
    "cuda": "peak memory: what was allocated on the first GPU",
    "cpu": "peak memory: the resident memory of the first process, libraries included",
}
"""Meaning of ``peak_memory_mb`` by kind of device."""

SPAN_COLUMNS = ("model", "exact", "f1", "HasAns_f1", "NoAns_f1", "null_threshold", "parameters", "seconds")
"""Default columns for spans; for others the scores that the runs have take the place of those of spans."""


def runs_table(
    runs: Runs,
    *,
    split: str | None = None,
    title: str | None = None,
    columns: Sequence[str] | None = None,
    also: Collection[str] = (),
    root: Path | None = None,
) -> Table:
    """Table of runs, one row each, below the heuristics that were scored with them.

    ``split`` defaults to dev, or calibration if no run was scored on dev. ``columns`` (keys of ``COLUMNS``)
    are shown, ``also`` are computed for programs and for sorting. ``root`` is the folder that the paths of
    ``runs`` are relative to. An unfinished run keeps its row, with its status. Raises RunError for runs
    scored on different data, protocols or metric versions.
    """
    if not runs:
        raise RunError("no runs to compare; name a folder that holds run.json files")
    split = split or next((s for s in (DEV, CALIBRATION) if any(s in r.scores for _, r in runs)), DEV)
    require_one_measure({folder: measure for folder, r in runs if (measure := r.measure(split))})
    shown = select_columns(columns or _default_columns(runs, split))
    keys = {column.key for column in shown}
    # Heuristics appear once: their scores depend only on the data, of which a note names the calibration set.
    references: Mapping[str, Any] = next(
        (r.references[split] for _, r in runs if r.references.get(split)), {}
    )
    scored = [Scored(name, split, point) for name, point in references.items()]
    scored += [Scored(r.model, split, r.compared_point(split), r, folder, root) for folder, r in runs]
    rows = [row_of(item, {*keys, *also}) for item in scored]
    return Table(title or f"{runs[0][1].name}: {split}", shown, rows, notes_on(runs, split, keys))


def _default_columns(runs: Runs, split: str) -> tuple[str, ...]:
    """Default columns for these runs, with the seed if a model occurs several times."""
    points = [point for _, record in runs if (point := record.compared_point(split))]
    references = [point for _, record in runs for point in record.references.get(split, {}).values()]
    columns: tuple[str, ...] = SPAN_COLUMNS
    if others := [point for point in (*points, *references) if not is_squad(point.protocol)]:
        measured = {key for point in others for key in point.metrics}
        columns = ("model", *(key for key in COLUMNS if key in measured), "parameters", "seconds")
    models = [record.model for _, record in runs]
    return columns if len(set(models)) == len(models) else (columns[0], "seed", *columns[1:])


def by_measure(runs: Runs) -> list[list[tuple[Path, RunRecord]]]:
    """Group runs into tables, one per experiment and scored set.

    A run without scores joins the first group of its experiment that was trained on the same set, or the
    first at all if it read none. Downloaded checkpoints and adopted systems belong to no experiment: they
    join every table of the set they were scored on.
    """
    groups: dict[tuple[str, str, Measure | None], list[tuple[Path, RunRecord]]] = {}
    firsts: dict[tuple[str, Any], tuple[str, str, Measure | None]] = {}
    for folder, record in sorted(runs, key=lambda run: not run[1].scores):  # stable: scored runs first
        split = next((split for split in (DEV, CALIBRATION) if split in record.scores), "")
        key = record.name, split, record.measure(split)
        firsts.setdefault((record.name, None), key)  # None: for runs that ended before they read data
        first = firsts.setdefault((record.name, record.fingerprint(TRAIN)), key)
        groups.setdefault(key if record.scores else first, []).append((folder, record))
    guests = (ADOPTED, CHECKPOINTS)
    for key in [key for key in groups if key[0] in guests]:
        hosts = [other for other in groups if other[0] not in guests and other[1:] == key[1:]]
        for host in hosts:
            groups[host] += groups[key]
        if hosts:
            del groups[key]
    return [groups[key] for key in sorted(groups, key=str)]  # as texts, since a measure may be None


def notes_on(runs: Runs, split: str, shown: Collection[str]) -> list[str]:
    """How the columns ``shown`` of ``runs`` were measured."""
    notes = []
    scored = next(((r, p) for _, r in runs if (p := r.compared_point(split))), None)
    if scored is not None:
        record, point = scored
        notes.append(_measured_on(record.facts(split), split, point.protocol))
        # Answers adopted without a fit are scored as they are, at no threshold.
        fitted = [
            (system.label, r)
            for system in group_by_system(runs)
            for _, r in system.runs
            if r.compared_point(split) and (r.threshold or not r.adopted)
        ]
        if point.protocol == "2.0" and fitted and {"f1", "exact"} & set(shown):
            notes.append(_fitted_on(fitted))
    heuristics = [(folder, r.fingerprint(CALIBRATION)) for folder, r in runs if r.references.get(split)]
    if len({calibration for _, calibration in heuristics}) > 1:  # the table has those of the first run
        first, _ = heuristics[0]
        notes.append(f"heuristics: fitted on the calibration set of {first}; other runs have other sets")
    unknown = (r for _, r in runs if r.name == CHECKPOINTS and not r.facts(TRAIN).titles)
    if downloaded := [record.model for record in unknown]:
        notes.append(
            f"{', '.join(dict.fromkeys(downloaded))}: downloaded; what it was trained on is not known,"
            " perhaps these articles too"
        )
    # Besides these libraries a record has the versions of the user's packages that its config names.
    for package in sorted({name for _, r in runs for name in r.versions} - {"python", *PACKAGES}):
        versions = Counter(r.versions[package] for _, r in runs if package in r.versions)
        if len(versions) > 1:
            counts = ", ".join(f"{version} ({count})" for version, count in versions.items())
            notes.append(f"code of the runs differs, by version of {package}: {counts}")
    for record in (record for _, record in runs if record.name == ADOPTED):
        counts = "".join(f"; {n:,} {key.replace('_', ' ')}" for key, n in record.facts(split).counts.items())
        notes.append(f"{record.model}, seed {record.seed}: adopted, training data unknown{counts}")
    if "seconds" in shown:
        notes.append("seconds: training only, without data preparation and validation")
    if "peak_memory_mb" in shown:
        kinds = {record.device.kind for _, record in runs}
        notes += [note for kind, note in MEMORY.items() if kind in kinds]
    return notes + overlap_notes((folder, record, split) for folder, record in runs)


def overlap_notes(scored: Iterable[tuple[Path | str, RunRecord, str]]) -> list[str]:
    """Notes that name the runs, by folder, whose training data has articles of the set they were scored
    on."""
    return [
        f"{folder}: scored although {counted(len(shared), 'article')} of it are also in its training data"
        for folder, record, split in scored
        if (point := record.compared_point(split)) and (shared := point.overlap)
    ]


def _fitted_on(labelled: Sequence[tuple[str, RunRecord]]) -> str:
    """Note on what the null thresholds of records were fitted on, by the labels of their systems if that
    differs."""
    systems: dict[str, dict[str, None]] = {}
    for label, record in labelled:
        threshold = record.threshold
        fit = threshold.fitted_on if threshold else "nothing"
        if threshold and threshold.prior is not None:
            fit += f", its unanswerable questions counted as {threshold.prior:.0%}"
        if threshold and threshold.width is not None:
            fit += f", F1 smoothed over {threshold.width:g} s.d. of the null odds"
        systems.setdefault(fit, {})[label] = None
    first, *others = systems
    rest = "".join(f"; of {', '.join(systems[fit])} on {fit}" for fit in others)
    return f"null threshold fitted on {first}{rest}"


def _measured_on(facts: SplitFacts, split: str, protocol: str) -> str:
    if (text := described(facts, protocol)) is not None:
        return f"{facts.name or split}: {text[1] or text[0]}"
    questions = f"{facts.name or split}: {counted(facts.questions or 0, 'question')}"
    negatives = f"{facts.unanswerable or 0:,} of them unanswerable"
    return f"{questions}, {negatives}; official SQuAD {protocol} scores{facts.rules}"
