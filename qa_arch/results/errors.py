"""One run: its facts and tables for a screen, and the outcome of every question of a scored set.

The scores alone give the outcome. With the texts, the offsets of the spans also tell where a wrong span lies
relative to the gold, and whether a false answer is one of the plausible answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from qa_arch.config.schema import defaults, recipe_of
from qa_arch.errors import DataError
from qa_arch.files import finite
from qa_arch.manifest import from_extras
from qa_arch.metrics.abstention import Bools, Floats, Ints
from qa_arch.metrics.squad import Normalised
from qa_arch.records import (
    CALIBRATED,
    FORCED,
    GIVEN,
    ORACLE,
    THRESHOLD_0,
    Epoch,
    RunRecord,
    SplitFacts,
    is_squad,
)
from qa_arch.results.columns import COLUMNS, EPOCH, Scored, described, overlap_notes, row_of, select_columns
from qa_arch.results.systems import Questions, settings
from qa_arch.results.tables import Table, number, text
from qa_arch.terminal import counted
from qa_arch.types import Example, QuestionSet

OUTCOMES = {
    "right": "right",
    "wrong_span": "wrong span",
    "wrong_abstention": "wrong abstention",
    "missed_answer": "missed answer",
    "unanswered": "answerable, not answered",
    "undue_answer": "false answer",
}
"""Headings. Wrong span: an answerable question was answered, but not exactly. Wrong abstention: it was not
answered although the best span was right. Missed answer: it was not answered, and the best span was wrong.
``unanswered``: either of the two, if the rows do not say which. False answer: an unanswerable question was
answered."""
RIGHT, WRONG_SPAN, WRONG_ABSTENTION, MISSED, UNANSWERED, FALSE = range(len(OUTCOMES))
BOUNDARIES = {
    "short": "part of the gold",
    "long": "more than the gold",
    "crossing": "overlaps one end of the gold",
    "apart": "elsewhere",
    "same": "equal to a gold without words",
}
"""Headings of the positions of a wrong span relative to the gold that it overlaps most."""
NEAR_MISS = 0.5
"""Minimum F1 of a near miss."""
_COLUMNS = {
    "questions": "asked",
    "right": "right, %",
    "wrong_span": "wrong span",
    "overlapping": "boundary",
    "near_misses": "near miss",
    "wrong_abstention": "abstained",
    "missed_answer": "missed",
    "unanswered": "not answered",
    "undue_answer": "false",
    "plausible": "plausible",
}
"""Columns of an error table, narrow enough for a screen."""
_WEIGHTS = {"overlapping": -1, "near_misses": -1, "plausible": -1, "questions": 0, "right": 0}
"""A narrow terminal first leaves out columns that count a part of another one, and last (1) the errors."""
LEGEND = (
    "wrong span: answered, but not exactly (boundary: shares words with a gold answer; near miss: F1 of 50 or"
    " more); wrong abstention: not answered although the best span was right; missed answer: not answered,"
    " and the best span was wrong too; false answer: an unanswerable question was answered"
)
MORE = "--data FILE (the scored set) adds articles and where spans went wrong"
WORST = 20
"""Maximum rows of an error table; ``as_dict`` has all."""


@dataclass(frozen=True, eq=False)
class Mistakes:
    """Outcomes of the questions of a scored set; boundaries, plausible answers and articles need texts."""

    rows: Questions
    outcome: Ints
    """(N,) indices into ``OUTCOMES``."""
    boundary: Ints
    """(N,) indices into ``BOUNDARIES``; -1 for other outcomes than a wrong span, or without texts or the
    place of a gold answer."""
    plausible: Floats
    """(N,) 1 if a false answer is one of the data's plausible answers, 0 if not; NaN if the data has none."""
    articles: Sequence[str] | None
    """None without texts."""

    @property
    def overlaps(self) -> Bools:
        """(N,) whether this is a boundary error: a wrong span that shares words with a gold answer."""
        return (self.outcome == WRONG_SPAN) & (self.rows.f1 > 0)

    @property
    def near_miss(self) -> Bools:
        return (self.outcome == WRONG_SPAN) & (self.rows.f1 >= NEAR_MISS)

    def figures(self, where: Any = slice(None)) -> dict[str, Any]:
        """Counts over the questions ``where``. The outcomes, as far as the rows distinguish them, add up to
        all questions; boundaries and plausible answers only with texts."""
        counts = np.bincount(self.outcome[where], minlength=len(OUTCOMES)).tolist()
        # Of all questions, not of ``where``: the rows of a table need the same columns.
        unknown = (WRONG_ABSTENTION, MISSED) if (self.outcome == UNANSWERED).any() else (UNANSWERED,)
        figures = {
            "questions": sum(counts),
            "outcomes": {name: counts[i] for i, name in enumerate(OUTCOMES) if i not in unknown},
            "overlapping": int(self.overlaps[where].sum()),
            "near_misses": int(self.near_miss[where].sum()),
        }
        if self.articles is None:
            return figures
        boundary, plausible = self.boundary[where], self.plausible[where]
        places = np.bincount(boundary[boundary >= 0], minlength=len(BOUNDARIES)).tolist()
        figures["boundaries"] = dict(zip(BOUNDARIES, places, strict=True))
        figures["plausible"] = int((plausible == 1).sum())
        figures["with_plausible"] = int((~np.isnan(plausible)).sum())
        return figures

    def as_dict(self) -> dict[str, Any]:
        """``figures`` in total, by kind and by article."""
        by = {"by_kind": self._by(self.rows.kinds), "by_article": self._by(self.articles or ())}
        return {"texts": self.articles is not None, **self.figures(), **by}

    def tables(self, split: str) -> list[Table]:
        """Table of all outcomes, then error tables by kind, if the data tags kinds, and by article, if there
        are texts: worst first."""
        tables = [self._outcomes(split)]
        if any(self.rows.kind):
            tables.append(self._table("kind", self.rows.kinds))
        return tables if self.articles is None else [*tables, self._table("article", self.articles)]

    def _outcomes(self, split: str) -> Table:
        counts = self.figures()
        rows: list[tuple[str, int]] = []
        for outcome, amount in counts["outcomes"].items():
            rows.append((OUTCOMES[outcome], amount))
            if outcome == "wrong_span":
                rows += [("  boundary error", counts["overlapping"]), ("  near miss", counts["near_misses"])]
                rows += [(f"  {BOUNDARIES[key]}", n) for key, n in counts.get("boundaries", {}).items() if n]
            if outcome == "undue_answer" and counts.get("with_plausible"):
                rows.append((f"  plausible, of {counts['with_plausible']:,}", counts["plausible"]))
        columns = [text("name", f"questions of {split}"), number("count", "count"), number("share", "%")]
        shares = [
            {"name": name, "count": n, "share": 100 * n / max(counts["questions"], 1)} for name, n in rows
        ]
        return Table("", columns, shares, [LEGEND, MORE] if self.articles is None else [LEGEND])

    def _by(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """``figures`` of the questions of each name."""
        unique, group = np.unique(np.array(names, dtype=object), return_inverse=True)
        return {name: self.figures(group == index) for index, name in enumerate(unique.tolist())}

    def _table(self, heading: str, names: Sequence[str]) -> Table:
        rows = []
        for name, figures in self._by(names).items():
            row = {"name": name, **figures, **figures["outcomes"]}
            row["right"] = 100 * row["right"] / row["questions"]
            row["plausible"] = f"{row.get('plausible', 0):,} of {row.get('with_plausible', 0):,}"
            rows.append(row)
        rows.sort(key=lambda row: row["right"])
        selection = "the worst first" if len(rows) <= WORST else f"the {WORST} worst of {len(rows):,}"
        shown = [
            number(key, head, weight=_WEIGHTS.get(key, 1))
            for key, head in _COLUMNS.items()
            if rows and key in rows[0]
        ]
        if not any(row.get("with_plausible") for row in rows):
            shown = [column for column in shown if column.key != "plausible"]
        return Table(f"By {heading}, {selection}", [text("name", heading), *shown], rows[:WORST])


def mistakes(rows: Questions, questions: QuestionSet | None = None) -> Mistakes:
    """Judge ``rows`` with the set that they were scored on, or by their scores alone.

    Raises DataError if the rows belong to other questions.
    """
    # An abstention is judged by the span that it kept back.
    right = np.where(rows.abstained, rows.span_exact, rows.exact)
    if questions is None:
        nothing = np.full(len(rows), np.nan)
        return Mistakes(rows, _outcomes(rows, right), np.full(len(rows), -1), nothing, None)
    by_id = {example.id: example for example in questions.examples}
    if unknown := [id_ for id_ in rows.ids if id_ not in by_id]:
        raise DataError(
            f"{questions.name}: {len(unknown)} scored questions are not in it, the first is {unknown[0]};"
            " give the data that the run was scored on"
        )
    examples = [by_id[id_] for id_ in rows.ids]
    spans = list(zip(rows.start.tolist(), rows.end.tolist(), strict=True))
    texts = [_text(example, *span) for example, span in zip(examples, spans, strict=True)]
    outcome, normal = _outcomes(rows, right), Normalised(questions.language)
    places, plausible = np.full(len(rows), -1), np.full(len(rows), np.nan)
    # Other outcomes have no boundary to compare: they stay -1 and NaN.
    for q in np.flatnonzero(outcome == WRONG_SPAN).tolist():
        if examples[q].located:
            places[q] = list(BOUNDARIES).index(boundary(examples[q], *spans[q]))
    for q in np.flatnonzero(outcome == FALSE).tolist():
        if examples[q].plausible:
            plausible[q] = normal[texts[q]] in {normal[gold.text] for gold in examples[q].plausible}
    return Mistakes(rows, outcome, places, plausible, [example.title for example in examples])


def _outcomes(rows: Questions, right: Floats) -> Ints:
    """Indices into ``OUTCOMES``. ``right`` is above 0 for a right answer or, where it was withheld, a right
    best span; NaN if unknown."""
    cases = {  # the first that applies counts
        FALSE: ~rows.answerable & ~rows.abstained,
        RIGHT: ~rows.answerable | (~rows.abstained & (right > 0)),
        WRONG_SPAN: ~rows.abstained,
        UNANSWERED: np.isnan(right),
        WRONG_ABSTENTION: right > 0,
    }
    return np.select(list(cases.values()), list(cases), MISSED)


def boundary(example: Example, start: int, end: int) -> str:
    """Position of the span relative to the gold it shares the most characters with (the first on a tie)."""
    gold = max(example.answers, key=lambda gold: min(end, gold.end) - max(start, gold.start))
    if end <= gold.start or gold.end <= start:
        return "apart"
    if (start, end) == (gold.start, gold.end):  # wrong all the same: golds without words do not count
        return "same"
    if gold.start <= start and end <= gold.end:
        return "short"
    return "long" if start <= gold.start and gold.end <= end else "crossing"


def _text(example: Example, start: int, end: int) -> str:
    """Text of the best span, "" if there was none."""
    if start < 0:
        return ""
    if not start < end <= len(example.context):
        raise DataError(
            f"question {example.id}: the recorded span {start}..{end} is not in its passage of"
            f" {len(example.context)} characters; give the data that the run was scored on"
        )
    return example.context[start:end]


POINTS = {
    CALIBRATED: "calibrated",
    THRESHOLD_0: "threshold 0",
    GIVEN: "given",
    FORCED: "forced answer",
    ORACLE: "oracle",
}
"""Operating points as people read them, in the order of tables."""
SCORES = (
    *("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact"),
    *("answerable_precision", "answerable_recall"),
)
"""Columns shown for every set and operating point, besides the scores of extras."""
RUN = (
    *("seed", "encoder", "parameters", "nonzero", "weights_mb", "batch", "micro", "accumulate", "devices"),
    *("strategy", "arithmetic", "epochs", "steps", "seconds", "predict_seconds", "examples_per_second"),
    *("peak_memory_mb", "engine", "read_in", "latency_ms", "latency_ratio", "memory_mb", "memory_ratio"),
)
"""Columns shown for the run as a whole."""
SETTINGS = (
    *("encoder.layers", "encoder.width", "optim.lr", "optim.head_lr", "optim.schedule", "trainer.epochs"),
    *("features.max_length", "features.stride", "decode.search"),
)
"""Settings shown besides those of the model, of extras and of distillation."""
_BARS = "▁▂▃▄▅▆▇█"
_NO_CURVES = ("calibration_threshold_0_f1", "calibration_forced_f1", "train_seconds", "windows_per_second")


def sparkline(values: Sequence[float | None]) -> str:
    """One bar per value, scaled from the lowest to the highest; a blank if missing or not finite."""
    shown = [finite(value) for value in values]
    known = [value for value in shown if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    step = (high - low) / (len(_BARS) - 1) or 1.0  # 1: equal values have no range
    return "".join(" " if value is None else _BARS[round((value - low) / step)] for value in shown)


def _not_read(record: RunRecord) -> tuple[str, ...]:
    """Settings, or sections (``decode.``), that the model does not read."""
    recipe = recipe_of(record.config.get("model", {}))
    return () if recipe is None else tuple(key.removesuffix("*") for key in recipe.unread)


def run_settings(record: RunRecord) -> list[tuple[str, str]]:
    usual, not_read = defaults(), _not_read(record)
    sections = tuple(f"{name}." for name in from_extras("sections"))
    return [
        (key, str(value))
        for key, value in settings(record).items()
        if (key in SETTINGS and value is not None and not key.startswith(not_read))
        or (key.startswith("model.") and key not in ("model.task", "model.name"))
        or (key.startswith(sections) and value is not None)
        or (key.startswith("distillation.") and value != usual.get(key))
    ]


def run_facts(record: RunRecord) -> list[tuple[str, str]]:
    row = row_of(Scored(record.model, "", None, record), RUN)  # of no set: only columns of the run apply
    if "encoder." in _not_read(record):
        del row["encoder"]
    if record.parameters.nonzero is None:
        del row["nonzero"]  # stands for the total
    shown = [(COLUMNS[key].heading, COLUMNS[key].text(row)) for key in RUN if row.get(key) is not None]
    shown += [(f"{split} set", _split_size(facts)) for split, facts in record.data.items()]
    blocks = ", ".join(f"{name} {count:,}" for name, count in record.parameters.blocks.items())
    if blocks:
        shown.append(("parameters by block", blocks))
    if parent := record.parent:
        shown.append(("started from", f"{parent.run} (run hash {parent.run_hash[:12]})"))
    if threshold := record.threshold:
        value = "none, always answers" if threshold.value is None else f"{threshold.value:.3f}"
        shown.append(("null threshold", f"{value}, fitted on {threshold.fitted_on}"))
    if confidence := record.confidence:
        shown.append(("confidence", f"{confidence.method} {confidence.value:.2f}, on {confidence.fitted_on}"))
    return shown


def _split_size(facts: SplitFacts) -> str:
    """Size of a split: questions and how many are unanswerable, or as an extra describes it."""
    if (text := described(facts, facts.protocol)) is not None:
        return text[0]
    questions = counted(facts.questions or 0, "question")
    counts = {key: value for key, value in facts.details.items() if isinstance(value, int | float)}
    extra = "".join(f", {count:,} {key.replace('_', ' ')}" for key, count in counts.items()) + facts.rules
    return f"{questions} ({facts.unanswerable or 0:,} unanswerable), SQuAD {facts.protocol or '?'}{extra}"


def provenance(record: RunRecord) -> list[tuple[str, str]]:
    dirty = ", with uncommitted changes" if record.dirty else ""
    device = ", ".join(f"{key} {value}" for key, value in asdict(record.device).items() if value is not None)
    hashes = {f"{split} hash": facts.fingerprint for split, facts in record.data.items()}
    return [
        ("created", record.created or "unknown"),
        ("commit", f"{record.commit[:12]}{dirty}" if record.commit else "none (not a checkout)"),
        ("hashes", f"run {record.run_hash[:12]}, settings {record.settings_hash[:12]}"),
        ("device", device or "unknown"),
        ("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
        *((name, (fingerprint or "unknown")[:12]) for name, fingerprint in hashes.items()),
    ]


def scores_table(record: RunRecord) -> Table:
    """Table with one row per scored set and operating point."""
    rows = []
    unfitted = record.threshold is not None and record.threshold.fitted_on == "nothing"
    for split, points in record.scores.items():
        for key in sorted(points, key=[*POINTS, *points].index):  # after ours, the points of extras
            if not (key == CALIBRATED and unfitted):  # repeats threshold 0
                point = points[key]
                place = {"split": split, "operating_point": POINTS.get(key)}
                scores = {**point.flat(), "exact": point.exact}  # SQuAD 1.1 calls it exact_match
                rows.append({**place, **scores, "null_threshold": point.threshold})
    others = [point for points in record.scores.values() for point in points.values()]
    measured = {key for point in others if not is_squad(point.protocol) for key in point.metrics}
    keys = (*SCORES, *(key for key in COLUMNS if key in measured))
    shown = [c for c in select_columns(keys) if any(row.get(c.key) is not None for row in rows)]
    (threshold,) = select_columns(["null_threshold"])
    columns = [text("split", "set")]
    if any(row["operating_point"] for row in rows):  # else a task without a null
        columns += [text("operating_point", "operating point"), replace(threshold, weight=1)]
    columns += shown
    bound = "oracle: fitted on the scored questions, an upper bound"
    notes = [bound] if any(ORACLE in points for points in record.scores.values()) else []
    notes += overlap_notes((split, record, split) for split in record.scores)
    notes += [f"{split}{rules}" for split in record.scores if (rules := record.facts(split).rules)]
    return Table("", columns, rows, notes)


def epoch_curves(epochs: Sequence[Epoch]) -> dict[str, list[float | None]]:
    """Values by epoch of every curve, None where one is missing or not finite."""
    curves = {}
    for key in (key for key in EPOCH if key not in _NO_CURVES):
        values = [epoch.value(key) for epoch in epochs]
        if any(value is not None for value in values):
            curves[EPOCH[key]] = list(map(finite, values))
    return curves


def curves_table(record: RunRecord, curves: Mapping[str, Sequence[float | None]]) -> Table:
    """Table of the run's ``epoch_curves``: a sparkline, and the first and last value of each."""
    rows = []
    for name, values in curves.items():
        known = [f"{value:.2f}" for value in values if value is not None]
        ends = " → ".join(dict.fromkeys(known[:1] + known[-1:]))
        rows.append({"name": name, "curve": sparkline(values), "ends": ends})
    chosen = "" if record.best_epoch is None else f"; epoch {record.best_epoch + 1} was kept"
    columns = [text("name", "curve"), text("curve", "by epoch"), text("ends", "from → to")]
    return Table(counted(len(record.epochs), "epoch") + chosen, columns, rows)
