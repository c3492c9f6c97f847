"""Figures of the report, as Plotly's JSON: one colour and mark per system, means and ranges over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from qa_arch.metrics.abstention import Floats, reliability, thresholds
from qa_arch.records import CALIBRATION, DEV, RunRecord
from qa_arch.results.columns import COLUMNS
from qa_arch.results.effects import MEASURES, MeasureName, measured
from qa_arch.results.errors import OUTCOMES, Mistakes
from qa_arch.results.html import figure_html
from qa_arch.results.systems import Breakdown, Questions, listed
from qa_arch.results.tables import Table

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "hexagon", "x")
COLOURS = len(SYMBOLS)
"""Colours of the style sheet, ``--c0`` and up; systems beyond them repeat a colour with another mark."""
OUTCOME_COLOURS = dict(zip(OUTCOMES, ("--line", "--e0", "--e1", "--e2", "--e2", "--e3"), strict=True))
COSTS = {"batch": "windows in one optimizer step", "strategy": "", "train_questions": "", "parameters": ""}
COSTS |= {"seconds": "seconds, without validation", "peak_memory_mb": "MiB"}
"""Columns that scores are drawn over, and their units."""
POINTS = 240
"""Maximum number of points of a mean curve."""
NO_ROWS = "Needs question rows (questions.parquet next to run.json): qa-arch evaluate --run RUN writes them."
OTHER_ROWS = "Needs question rows, which this page has of calibration only if nothing else was scored."
NO_ODDS = "Needs null odds, which these adopted systems lack: qa-arch adopt … --na-prob."
RELIABILITY = {
    "answerability": (
        "Is it answerable?",
        "Softmax of the best span against “no answer”, and how many of those questions have an answer.",
        "Not for adopted systems, whose null odds have their own scale, nor if every question has an answer.",
    ),
    "answers": (
        "Is the answer right?",
        "Softmax of the answer over all candidates, and how many of the answers given match exactly.",
        "Adopted systems have no probabilities of answers.",
    ),
    "fitted": (
        "Is it right? (fitted confidence)",
        "The confidence that is served, by the temperature fitted on calibration, and how many answers are"
        " right, “no answer” included.",
        "Adopted systems have confidences if adopted with qa-arch adopt … --calibration.",
    ),
}
"""Title, caption, and the reason if it cannot be drawn."""
SIGNIFICANT = 0.05
_ROWS = {"margin": {"l": 10, "r": 14, "t": 6, "b": 36}}
Points = tuple[Any, Any]
"""x and y."""


@dataclass(eq=False)
class ShownRun:
    """A run on one scored set."""

    number: int
    folder: Path
    record: RunRecord
    split: str = DEV
    label: str = ""
    """Label of its system, and the seed if that has several."""
    rows: Questions | None = None
    """None without question rows."""
    mistakes: Mistakes | None = None
    row: dict[str, Any] = field(default_factory=dict)
    """Values by column (``results.columns``)."""

    @cached_property
    def curves(self) -> dict[str, Floats] | None:
        """``metrics.abstention.thresholds``, with ``exact``; None without null odds."""
        rows = self.rows
        return None if rows is None or np.isnan(rows.null_odds).all() else _curves(rows, rows.null_odds)

    @cached_property
    def mark(self) -> dict[str, float] | None:
        """Values of ``curves`` at the run's own null threshold, which thinned curves may lack; None without
        curves or threshold."""
        point = self.record.compared_point(self.split)
        if self.rows is None or self.curves is None or point is None or point.threshold is None:
            return None
        # With these as odds, 0 for answered and 1 for abstained, the cut at 0 is the run's own.
        own = _curves(self.rows, self.rows.abstained.astype(np.float64))
        at = int(np.searchsorted(own["threshold"], 0.0, "right")) - 1
        return {name: curve[at] for name, curve in own.items()} | {"threshold": point.threshold}

    def confidence(self, kind: str) -> tuple[Floats, Any] | None:
        """Confidences of one kind of ``RELIABILITY``, and whether they were justified."""
        rows = self.rows
        if rows is None or self.curves is None:
            return None
        if kind == "answerability":
            unknown = self.record.adopted or rows.answerable.all()
            return None if unknown else (expit(-rows.null_odds), rows.answerable)
        values, given = rows.confidence, np.ones(len(rows), dtype=bool)
        if kind == "answers":
            values, given = rows.probability, ~rows.abstained
        return None if np.isnan(values).all() else (values[given], rows.exact[given] > 0)


def _curves(rows: Questions, odds: Floats) -> dict[str, Floats]:
    exact = thresholds(odds, rows.span_exact, rows.answerable)
    return thresholds(odds, rows.span_f1, rows.answerable) | {"exact": exact["score"]}


@dataclass(frozen=True, eq=False)
class Shown:
    """A system on one scored set; its ``place`` among all of the page decides colour and mark."""

    label: str
    place: int
    runs: Sequence[ShownRun]

    @property
    def colour(self) -> str:
        return f"--c{self.place % COLOURS}"

    def trace(self, x: Any, y: Any, hover: str, **options: Any) -> dict[str, Any]:
        """A trace that the legend switches with the system; ``hover`` follows its name."""
        template = {"hovertemplate": f"%{{fullData.name}}<br>{hover}<extra></extra>"}
        return {"x": x, "y": y, "name": self.label, "legendgroup": self.label, **template, **options}

    def marks(self, **options: Any) -> dict[str, Any]:
        symbol = SYMBOLS[(self.place + self.place // COLOURS) % COLOURS]
        line = {"color": "--paper", "width": 1}
        return {"color": self.colour, "symbol": symbol, "size": 9, "line": line, **options}

    def curve(self, curves: Sequence[Points], *, steps: bool = False, **line: Any) -> list[dict[str, Any]]:
        """The mean of the seeds' curves, and below it a band from the lowest to the highest seed, except
        below a dotted line."""
        x, mean, low, high = mean_curve(curves, steps=steps)
        hover = "%{x:.3~g}, %{y:.2f}"
        if len(curves) > 1:
            hover += f", mean of {len(curves)} seeds (%{{customdata[0]:.2f}} to %{{customdata[1]:.2f}})"
        style = {"color": self.colour, "width": 1.9, "shape": "hv" if steps else "linear", **line}
        drawn = self.trace(x, mean, hover, mode="lines", line=style, customdata=np.stack([low, high], -1))
        if len(curves) < 2 or "dash" in line or not len(x):
            return [drawn] if len(x) else []
        if steps:
            # Every corner of the steps: the way back runs right to left, where "hv" steps at the other ends.
            x, low, high = np.repeat(x, 2)[1:], np.repeat(low, 2)[:-1], np.repeat(high, 2)[:-1]
        area: dict[str, Any] = {
            "x": [*x, *x[::-1]],
            "y": [*low, *high[::-1]],
            "fill": "toself",
            "fillcolor": self.colour,
        }
        return [
            drawn | area | {"mode": "none", "opacity": 0.16, "hoverinfo": "skip", "customdata": []},
            drawn,
        ]


def mean_curve(curves: Sequence[Points], *, steps: bool = False) -> tuple[Floats, Floats, Floats, Floats]:
    """x, mean, lowest and highest of ``curves`` wherever all of them have a value, at most ``POINTS`` points.

    Between its points a curve is linear, or keeps its last value (``steps``).
    """
    known: list[tuple[Floats, Floats]] = []
    for points in curves:
        x, y = (np.asarray(values, np.float64) for values in points)
        x, y = x[np.isfinite(x) & np.isfinite(y)], y[np.isfinite(x) & np.isfinite(y)]
        # Interpolation needs ascending x; records may hold another order.
        order = np.argsort(x, kind="stable")
        known += [(x[order], y[order])] if len(x) else []
    if len(known) < 2:
        x, y = known[0] if known else (np.empty(0), np.empty(0))
        return x, y, y, y
    grid = np.unique(np.concatenate([x for x, _ in known]))
    # Beyond the shortest curve the mean would jump, as it would be one of fewer curves.
    grid = grid[(grid >= max(x[0] for x, _ in known)) & (grid <= min(x[-1] for x, _ in known))]
    if len(grid) > POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, POINTS).round().astype(int)]
    values = np.stack(
        [y[np.searchsorted(x, grid, "right") - 1] if steps else np.interp(grid, x, y) for x, y in known]
    )
    return grid, values.mean(0), values.min(0), values.max(0)


def lines(
    shown: Iterable[Shown], points: Callable[[ShownRun], Points | None], **options: Any
) -> list[dict[str, Any]]:
    """Mean curves of systems through the ``points`` of their runs."""
    known = ((s, [p for run in s.runs if (p := points(run)) is not None]) for s in shown)
    return [trace for s, curves in known if curves for trace in s.curve(curves, **options)]


def dots(shown: Iterable[Shown], point: Callable[[ShownRun], Points | None]) -> list[dict[str, Any]]:
    """A mark for every run that has a ``point``."""
    traces = []
    for s in shown:
        known = [(run.label, *p) for run in s.runs if (p := point(run)) is not None]
        known = [(name, x, y) for name, x, y in known if None not in (x, y) and x == x and y == y]  # not NaN
        if known:
            names, x, y = zip(*known, strict=True)
            hover = {"hovertemplate": "%{text}<br>%{x}, %{y:.2f}<extra></extra>"}
            traces.append(s.trace(x, y, "", mode="markers", marker=s.marks(), text=names) | hover)
    return traces


def axes(x: str, y: str, xaxis: Any = None, yaxis: Any = None, **layout: Any) -> dict[str, Any]:
    return {"xaxis": {"title": x, **(xaxis or {})}, "yaxis": {"title": y, **(yaxis or {})}, **layout}


def _bands(shown: Sequence[Shown]) -> str:
    several = any(len(s.runs) > 1 for s in shown)
    return " Lines: means over seeds. Bands: lowest to highest seed." if several else ""


def learning_figures(shown: Sequence[Shown], measure: MeasureName, prefix: str = "", **layout: Any) -> str:
    """Losses and the calibration score by epoch."""
    most = max(len(run.record.epochs) for s in shown for run in s.runs)
    axis = {"dtick": max(1, -(-most // 10)), "range": [0.9, most + 0.1]}

    def points(key: str, run: ShownRun) -> Points:
        values = [epoch.value(key) for epoch in run.record.epochs]
        return range(1, len(values) + 1), [np.nan if value is None else value for value in values]

    def chosen(key: str, run: ShownRun) -> Points | None:
        best = run.record.best_epoch
        return None if best is None else (best + 1, run.record.epochs[best].value(key))

    loss = [
        *lines(shown, partial(points, "train_loss"), dash="dot", width=1.4),
        *lines(shown, partial(points, "calibration_loss")),
        *dots(shown, partial(chosen, "calibration_loss")),
    ]
    reason = "No epoch was finished."
    if most == 1:  # one point is no curve
        trained = [run for s in shown for run in s.runs if run.record.epochs]
        losses = listed([f"{run.label} {run.record.epochs[0].train_loss or np.nan:.3f}" for run in trained])
        reason = f"Only one epoch: nothing to plot. Training loss: {losses}."
    caption = f"Dotted: training. Solid: calibration. A mark is the epoch that a run selected.{_bands(shown)}"
    drawn = loss if most > 1 else []
    figures = figure_html(
        f"{prefix}loss", "Loss by epoch", caption, drawn, axes("epoch", "loss", axis, **layout), reason
    )
    if most < 2:
        return figures
    key = f"calibration_{measure}"
    return figures + figure_html(
        f"{prefix}learned",
        f"Calibration {MEASURES[measure]} by epoch",
        "On the held-out calibration split, which selects the epoch.",
        [*lines(shown, partial(points, key)), *dots(shown, partial(chosen, key))],
        axes("epoch", f"{MEASURES[measure]}, %", axis, **layout),
        "Not recorded.",
    )


def cost_figures(shown: Sequence[Shown], measure: MeasureName) -> tuple[str, str]:
    """``measure`` over each of ``COSTS`` that differs between runs, and a note on the others."""
    figures, same, unknown = "", [], []
    small = {"height": 230, "margin": {"l": 44, "r": 10, "t": 8, "b": 38}}
    for key, unit in COSTS.items():
        title, rows = COLUMNS[key].heading, [run.row for s in shown for run in s.runs]
        values = list(dict.fromkeys(row[key] for row in rows if None not in (row.get(key), row.get(measure))))
        if len(values) < 2:  # a single value explains no score
            same += [f"{title} {COLUMNS[key].text({key: value})}" for value in values]
            unknown += [] if values else [title]
            continue
        wide = key != "strategy" and 0 < 20 * min(values) < max(values)
        axis = {"type": "log" if wide else "category" if key == "strategy" else "linear", "nticks": 6}
        axis |= {"exponentformat": "SI"} | ({} if wide or key == "strategy" else {"rangemode": "tozero"})
        traces = dots(shown, lambda run, key=key: (run.row.get(key), run.row.get(measure)))  # type: ignore[misc]
        layout = axes(unit or title, f"{MEASURES[measure]}, %", axis, **small)
        figures += figure_html(f"cost-{key}", f"{MEASURES[measure]} and {title}", "", traces, layout)
    note = f"Not drawn, as all runs have the same: {'; '.join(same)}. " if same else ""
    return figures, note + (f"Not recorded: {'; '.join(unknown)}." if unknown else "")


def difference_figures(shown: Sequence[Shown], tests: Mapping[MeasureName, Table], baseline: str) -> str:
    """Differences from ``baseline`` with their intervals, from a table of ``effects_table`` by measure."""
    figures = ""
    for measure, table in tests.items():
        rows = {row["model"]: row for row in table.rows if row.get("delta") is not None}
        tested = [s for s in shown if s.label in rows]
        traces = [_interval(s, place, rows[s.label]) for place, s in enumerate(tested)]
        names = {"tickvals": list(range(len(tested))), "ticktext": [s.label for s in tested], "ticks": ""}
        side = {"range": [len(tested) - 0.5, -0.5], **names}
        zero = {"zeroline": True, "zerolinecolor": "--soft", "zerolinewidth": 1}
        layout = axes("difference, points", "", zero, side, height=90 + 34 * len(tested), **_ROWS)
        caption = f"Against {baseline}, with 95% intervals. Open marks: p of 0.05 or more after correction."
        name = f"Δ {MEASURES[measure]}"
        figures += figure_html(f"delta-{measure}", name, caption, traces, layout) if traces else ""
    return figures


def _interval(s: Shown, place: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """A difference and its interval, on the line ``place``."""
    delta, low, high = row["delta"], row["delta_95_low"], row["delta_95_high"]
    marks = s.marks(**({} if row["p_holm"] < SIGNIFICANT else {"color": "--paper"}))
    marks["line"] = {"color": s.colour, "width": 2}
    # An interval that is clipped at ±100 is not symmetric.
    bar = {"symmetric": False, "array": [high - delta], "arrayminus": [delta - low], "color": s.colour}
    hover = f"%{{x:+.2f}} ({low:+.2f} to {high:+.2f}), p {row['p_holm']:.3f}"
    return s.trace([delta], [place], hover, mode="markers", marker=marks, error_x={**bar, "width": 0})


def _reason(shown: Sequence[Shown]) -> str:
    """Why there are no question rows or null odds."""
    runs = [run for s in shown for run in s.runs]
    if any(run.split == CALIBRATION for run in runs):
        return OTHER_ROWS
    return NO_ODDS if runs and all(run.record.adopted for run in runs) else NO_ROWS


def abstention_figures(shown: Sequence[Shown], measure: MeasureName) -> str:
    """Scores over the null threshold, risk over coverage, and precision over recall of abstention."""
    curves = [run.curves for s in shown for run in s.runs if run.curves is not None]
    odds = np.concatenate([np.zeros(0), *(own["threshold"] for own in curves)])  # perhaps no curves
    finite = odds[np.isfinite(odds)]
    low, high = np.percentile(finite, [1, 99]) if len(finite) else (0.0, 1.0)  # without outliers
    room = 0.03 * (high - low)
    name, score = ("EM", "exact") if measure == "exact" else ("F1", "score")

    def drawn(x: str, y: str, *, steps: bool = False) -> list[dict[str, Any]]:
        """Curves, and every run at its own null threshold."""

        def place(run: ShownRun) -> Points | None:
            return None if run.mark is None else (run.mark[x], run.mark[y])

        def path(run: ShownRun) -> Points | None:
            return None if run.curves is None else (run.curves[x], run.curves[y])

        return [*lines(shown, path, steps=steps), *dots(shown, place)]

    reason = _reason(shown)
    titles = ("Risk and coverage", "Precision and recall of abstention")
    return (
        figure_html(
            "thresholds",
            f"{name} over the null threshold",
            "“No answer” is given where the null odds exceed the threshold; a mark is a run's own. Curves end"
            f" where unknown scores of abstained answers would be needed.{_bands(shown)}",
            drawn("threshold", score, steps=True),
            axes("null threshold", f"{name}, %", {"range": [low - room, high + room]}),
            reason,
        )
        + figure_html(
            "risk",
            titles[0],
            "Risk: 100 − mean F1 of the answered questions, as the threshold rises and more are answered.",
            drawn("coverage", "risk"),
            axes("coverage: answered, %", "risk, %", {"range": [0, 101]}, {"rangemode": "tozero"}),
            reason,
        )
        + figure_html(
            "abstain",
            titles[1],
            "Precision: abstentions that are right. Recall: unanswerable questions abstained from.",
            drawn("recall", "precision"),
            axes("recall, %", "precision, %", {"range": [0, 101]}, {"range": [0, 102]}),
            "Every question of this set has an answer." if curves else reason,
        )
    )


def calibration_figures(shown: Sequence[Shown]) -> str:
    """Reliability diagrams; seeds of a system are pooled."""
    figures, scale = "", {"range": [-0.02, 1.02]}
    for kind, (title, caption, reason) in RELIABILITY.items():
        traces = []
        for s in shown:
            known = [pair for run in s.runs if (pair := run.confidence(kind)) is not None]
            pairs = [np.concatenate(part) for part in zip(*known, strict=True)]
            if not pairs or not len(pairs[0]):  # unknown, or nothing was answered
                continue
            pooled = reliability(*pairs)
            size = 4 + 9 * np.sqrt(pooled.count / pooled.count.max())  # the area grows with the count
            hover = "confidence %{x:.2f}, observed %{y:.2f}<br>%{customdata} questions"
            style: dict[str, Any] = {"line": {"color": s.colour, "width": 1.8}, "marker": s.marks(size=size)}
            style |= {"mode": "lines+markers", "customdata": pooled.count}
            traces.append(s.trace(pooled.confidence, pooled.observed, hover, **style))
        even: dict[str, Any] = {"x": [0, 1], "y": [0, 1], "mode": "lines", "hoverinfo": "skip"}
        even |= {"line": {"color": "--faint", "width": 1, "dash": "dot"}}
        caption += " Dotted line: perfect calibration. Larger marks: more questions; seeds are pooled."
        known_odds = any(run.curves is not None for s in shown for run in s.runs)
        figures += figure_html(
            f"reliability-{kind}",
            title,
            caption,
            [even, *traces] if traces else [],
            axes("confidence", "observed", scale, scale),
            reason if known_odds else _reason(shown),
        )
    return figures


def outcome_figure(shown: Sequence[Shown]) -> str:
    """Shares of outcomes, one bar per system: of several seeds their mean."""
    judged = {s.label: [r.mistakes.figures() for r in s.runs if r.mistakes is not None] for s in shown}
    judged = {label: figures for label, figures in judged.items() if figures}
    traces = []
    for key, name in OUTCOMES.items():
        if not any(key in own["outcomes"] for figures in judged.values() for own in figures):
            continue
        counts = [np.mean([own["outcomes"].get(key, 0) for own in figures]) for figures in judged.values()]
        shares = [
            100 * n / figures[0]["questions"] for n, figures in zip(counts, judged.values(), strict=True)
        ]
        bar: dict[str, Any] = {"type": "bar", "orientation": "h", "name": name, "y": list(judged)}
        bar |= {"x": shares, "customdata": counts}
        bar |= {"marker": {"color": OUTCOME_COLOURS[key], "line": {"color": "--paper", "width": 1.5}}}
        bar |= {"text": [f"{share:.0f}" if share >= 4 else "" for share in shares], "textposition": "inside"}
        hover = f"%{{y}}<br>{name}: %{{x:.1f}}% (%{{customdata:.1f}} questions)<extra></extra>"
        traces.append(bar | {"insidetextanchor": "middle", "textangle": 0, "hovertemplate": hover})
    caption = (
        "Of all questions, percent; of several seeds their mean. Wrong abstention: no answer given though the"
        " best span was right. Missed answer: no answer given, and the best span was wrong too. False answer:"
        " answered an unanswerable question."
    )
    side, stacked = {"autorange": "reversed", "ticks": ""}, {"barmode": "stack", "bargap": 0.35}
    size = {"height": 130 + 30 * len(judged), "showlegend": True, **_ROWS}
    drawn = axes("questions, %", "", {"range": [0, 100]}, side, **stacked, **size)
    return figure_html("errors", "Outcomes", caption, traces, drawn, _reason(shown))


def breakdown_figures(shown: Sequence[Shown], breakdowns: Sequence[Breakdown], measure: MeasureName) -> str:
    """The measure by level of each breakdown that has several, one mark per system."""
    figures = ""
    for breakdown in breakdowns:
        rows = {s: [run.rows for run in s.runs if run.rows is not None] for s in shown}
        means = {
            s: np.mean([_by_level(r, breakdown, measure) for r in own], 0) for s, own in rows.items() if own
        }
        table = np.stack(list(means.values()))
        known = np.flatnonzero(np.isfinite(table).any(0))
        if not len(known) or len(breakdown.names) < 2:
            continue  # nothing to compare
        if breakdown.key == "article":  # the hardest first
            known = known[np.argsort(np.nanmean(table[:, known], 0), kind="stable")]
        counted = breakdown.level[measured(next(filter(None, rows.values()))[0], measure)]
        count = np.bincount(counted, minlength=len(breakdown.names))
        names = [f"{breakdown.names[level]}  ({count[level]:,})" for level in known]
        step, middle = min(0.13, 0.7 / len(means)), (len(means) - 1) / 2
        traces = [
            s.trace(
                values[known],
                np.arange(len(names)) + (nth - middle) * step,
                "%{text}: %{x:.1f}",
                **{"mode": "markers", "marker": s.marks(), "text": names},
            )
            for nth, (s, values) in enumerate(means.items())
        ]
        side = {
            "range": [len(names) - 0.5, -0.5],
            "ticks": "",
            "tickvals": list(range(len(names))),
            "ticktext": names,
        }
        size = {"height": 64 + 34 * len(names), **_ROWS}
        layout = axes(f"{MEASURES[measure]}, %", "", {"range": [-3, 103]}, side, **size)
        figures += figure_html(f"by-{breakdown.key}", breakdown.title, "", traces, layout)
    return figures or figure_html("breakdown", "By kind of question", "", [], {}, _reason(shown))


def _by_level(rows: Questions, breakdown: Breakdown, measure: MeasureName) -> Floats:
    """Mean of the measure in percent for every level; NaN for a level without questions of the measure."""
    where = measured(rows, measure)
    values = rows.span_f1 if measure == "forced_f1" else getattr(rows, measure)
    level, levels = breakdown.level[where], len(breakdown.names)
    with np.errstate(invalid="ignore"):
        return 100 * np.bincount(level, values[where], levels) / np.bincount(level, minlength=levels)
